//! Objects that are put straight into etcd, before an API server reads them: 40,000 take seconds,
//! and minutes by requests to the server.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{Client, Config};
use packet_rig::wait::scaled;
use serde_json::{Value, json};
use tokio::time;

use super::server::READY;
use crate::{load, resource::Resource, store::Store};

/// The objects that are put in a transaction, of which etcd takes 128.
const AT_ONCE: usize = 100;

/// Puts the objects of a store into the etcd at this URL, by the gateway that it has for JSON, and
/// waits for etcd to start.
pub(super) async fn put(etcd: &str, store: &Store) {
    let client = Client::try_from(Config::new(etcd.parse().unwrap())).unwrap();
    let started = Instant::now();
    while let Err(error) = send(&client, "/v3/kv/range", json!({"key": encoded("/")})).await {
        assert!(started.elapsed() < scaled(READY), "etcd does not answer: {error}");
        time::sleep(Duration::from_millis(50)).await;
    }
    let puts: Vec<Value> = stored(store)
        .map(|(key, object)| {
            json!({"requestPut": {"key": encoded(&key), "value": encoded(&object.to_string())}})
        })
        .collect();
    for puts in puts.chunks(AT_ONCE) {
        send(&client, "/v3/kv/txn", json!({"success": puts})).await.unwrap();
    }
}

/// Returns the objects and their keys in etcd, with the namespace of [`load`]. ServiceCIDRs are
/// left out, as a server makes its own.
fn stored(store: &Store) -> impl Iterator<Item = (String, Value)> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": load::NAMESPACE},
        "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
    });
    let namespace = (format!("/registry/namespaces/{}", load::NAMESPACE), namespace);
    let folders = [
        (Resource::Nodes, "minions"),
        (Resource::Services, "services/specs"),
        (Resource::EndpointSlices, "endpointslices"),
    ];
    let objects = folders.into_iter().flat_map(|(resource, folder)| {
        let snapshot = store.snapshot(resource, None).expect("the newest version");
        snapshot.objects.into_iter().map(move |((namespace, name), object)| {
            let place = if resource.is_namespaced() { format!("{namespace}/{name}") } else { name };
            (format!("/registry/{folder}/{place}"), Value::clone(&object.value))
        })
    });
    [namespace].into_iter().chain(objects)
}

fn encoded(text: &str) -> String {
    STANDARD.encode(text)
}

async fn send(client: &Client, path: &str, body: Value) -> Result<(), kube::Error> {
    let request = http::Request::post(path).header("content-type", "application/json");
    client.request_text(request.body(body.to_string().into_bytes()).unwrap()).await.map(drop)
}
