//! Requests that change the objects of a cluster.

use http::{Method, Request};
use kube::Client;
use serde_json::Value;

/// The kinds that tests use: `apiVersion`, `kind`, name in paths, whether objects have a namespace,
/// and whether the status is its own resource.
const KINDS: [(&str, &str, &str, bool, bool); 5] = [
    ("v1", "Namespace", "namespaces", false, false),
    ("v1", "Node", "nodes", false, true),
    ("v1", "Service", "services", true, true),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", true, false),
    ("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", false, false),
];

/// The place of an object in the API.
struct Place {
    /// The path of the objects of the kind, e.g. `/api/v1/nodes`.
    collection: String,
    name: String,
    has_status: bool,
}

impl Place {
    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let name = text(&object["metadata"]["name"]);
        let known = KINDS.into_iter().find(|known| known.0 == version && known.1 == kind);
        let Some((_, _, plural, is_namespaced, has_status)) = known.filter(|_| !name.is_empty())
        else {
            panic!("the test's object cannot be sent: {version} {kind} {name:?}")
        };
        let base = match version.contains('/') {
            true => format!("/apis/{version}"),
            false => format!("/api/{version}"),
        };
        let collection = match (is_namespaced, &object["metadata"]["namespace"]) {
            (false, _) => format!("{base}/{plural}"),
            (true, Value::String(namespace)) => format!("{base}/namespaces/{namespace}/{plural}"),
            (true, _) => format!("{base}/namespaces/default/{plural}"),
        };
        Self { collection, name, has_status }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }
}

/// Creates an object, or replaces the one of the same name, with its status.
pub(crate) async fn apply(client: &Client, object: &Value) {
    let place = Place::of(object);
    match send(client, Method::PUT, &place.path(), Some(object)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            send(client, Method::POST, &place.collection, Some(object)).await.unwrap();
        }
        other => other.unwrap(),
    }
    if place.has_status && !object["status"].is_null() {
        let path = format!("{}/status", place.path());
        send(client, Method::PUT, &path, Some(object)).await.unwrap();
    }
}

/// Deletes an object, of which only the kind, the namespace and the name count.
pub(crate) async fn delete(client: &Client, object: &Value) {
    send(client, Method::DELETE, &Place::of(object).path(), None).await.unwrap();
}

async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(), kube::Error> {
    let body = body.map(|object| object.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body);
    client.request_text(request.unwrap()).await.map(drop)
}
