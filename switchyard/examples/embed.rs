//! Bring your own watch: Services proxied by nftables, in a new network namespace.
//!
//! ```text
//! sudo ip netns add try
//! sudo ip netns exec try cargo run -p switchyard --features k8s-openapi --example embed
//! ```

use std::error::Error;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{from_value, json};
use switchyard::{NodeConfig, Proxy, StartError, SyncReport, objects::Kind};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    run(|line| println!("{line}"))
}

/// Starts a proxy in the network namespace of this thread.
fn start() -> std::result::Result<Proxy, StartError> {
    Proxy::builder(NodeConfig::new("node-1")).backend(switchyard::nftables()).start()
}

/// Proxies as a program with informers would. `print` receives what happened.
pub fn run(mut print: impl FnMut(String)) -> Result<()> {
    let mut print = |what: &str, report: Option<SyncReport>| {
        if let Some(SyncReport { added, removed, .. }) = report {
            print(format!("{what}: added={added} removed={removed}"));
        }
    };

    // What an informer holds after its first lists. The first sync starts when Services and
    // EndpointSlices have been listed, not earlier: half a cluster would be programmed as a whole
    // one.
    let (service, listed) = (service()?, slice(&["10.244.1.10"])?);
    let proxy = start()?;
    let mut reports = proxy.reports();
    proxy.replace(Kind::Service, [service.clone().into()])?;
    proxy.replace(Kind::EndpointSlice, [listed.into()])?;
    print("first lists", reports.blocking_recv());

    // What an informer receives afterwards. There is `Proxy::delete`, too.
    let changed = slice(&["10.244.1.11"])?;
    proxy.apply(changed.clone())?;
    print("another pod", reports.blocking_recv());

    // The kernel is left as it is: connections go on, and new ones are served. A later proxy, of
    // this process or of another one, takes over what it finds.
    proxy.stop()?;
    let proxy = start()?;
    proxy.replace(Kind::Service, [service.into()])?;
    proxy.replace(Kind::EndpointSlice, [changed.into()])?;
    print("started again", proxy.reports().blocking_recv());

    // Removes everything.
    Ok(proxy.clean_up()?)
}

/// A Service, as an API server would send it.
fn service() -> Result<Service> {
    Ok(from_value(json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.96.0.10",
            "clusterIPs": ["10.96.0.10"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        },
    }))?)
}

/// An EndpointSlice of the Service, with these endpoints.
fn slice(addresses: &[&str]) -> Result<EndpointSlice> {
    let endpoint = |ip| json!({"addresses": [ip], "conditions": {"ready": true}});
    Ok(from_value(json!({
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    }))?)
}
