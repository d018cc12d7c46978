//! Bring your own watch: Services proxied by nftables, in a new network namespace.
//!
//! ```text
//! sudo ip netns add try
//! sudo ip netns exec try cargo run -p switchyard --features k8s-openapi --example embed
//! ```

use std::error::Error;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{from_value, json};
use switchyard::{
    NodeConfig, Proxy, SyncReport,
    objects::{Kind, Object},
};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    run(|line| println!("{line}"))
}

/// Serves a Service, in the network namespace of this thread.
fn serve(service: Object, slice: Object) -> Result<Proxy, Box<dyn Error + Send + Sync>> {
    let proxy = Proxy::builder(NodeConfig::new("node-1"))
        .backend(switchyard::nftables()) // or a backend of your own
        .start()?; // addresses, conntrack, health check node ports, localhost: included

    // The first lists of your informers. Nothing is programmed before Services and EndpointSlices
    // have been listed: half a cluster would be programmed as a whole one.
    proxy.replace(Kind::Service, [service])?;
    proxy.replace(Kind::EndpointSlice, [slice])?;
    Ok(proxy)
}

/// Proxies as a program with informers would. `print` receives what happened.
pub fn run(mut print: impl FnMut(String)) -> Result<()> {
    let mut print = |what: &str, report: Option<SyncReport>| {
        if let Some(SyncReport { added, removed, .. }) = report {
            print(format!("{what}: added={added} removed={removed}"));
        }
    };
    let proxy = serve(service()?.into(), slice(&["10.244.1.10"])?.into())?;
    let mut reports = proxy.reports();
    print("first lists", reports.blocking_recv());

    // What an informer receives afterwards. There is `Proxy::delete`, too.
    let changed = slice(&["10.244.1.11"])?;
    proxy.apply(changed.clone())?;
    print("another pod", reports.blocking_recv());

    // The kernel is left as it is: connections go on, and new ones are served. A later proxy, of
    // this process or of another one, takes over what it finds.
    proxy.stop()?;
    let proxy = serve(service()?.into(), changed.into())?;
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
