//! Bring your own watch: an engine with the nftables backend, fed by the program that embeds it.
//!
//! ```text
//! sudo ip netns add try
//! sudo ip netns exec try cargo run -p switchyard-examples --bin embed
//! ```

use std::{error::Error, sync::Arc};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::{from_value, json};
use switchyard_conntrack::Reconciler;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    engine::Engine,
    error::ErrorChain,
    objects::Kind,
    proxier::SyncReport,
    runner::{EngineEvent, Observer},
};
use switchyard_interfaces::AddressFollower;
use switchyard_nft::{NftConfig, NftProxier};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task,
};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // What an informer holds after its first lists.
    let (service, listed) = (service()?, slice(&["10.244.1.10"])?);

    let (engine, mut reports) = start()?;
    engine.replace(Kind::Service, [service.clone().into()]).await?;
    // The first sync starts when Services and EndpointSlices have been listed, not earlier: half a
    // cluster would be programmed as a whole one.
    engine.replace(Kind::EndpointSlice, [listed.into()]).await?;
    print("first lists", reports.recv().await);

    // What an informer receives afterwards. There is `Engine::delete`, too.
    let changed = slice(&["10.244.1.11"])?;
    engine.apply(changed.clone()).await?;
    print("another pod", reports.recv().await);

    // `stop` waits for the engine's thread, hence the blocking task. The kernel is left as it is:
    // connections go on, and new ones are served.
    task::spawn_blocking(|| engine.stop()).await??;

    // A later engine, of this process or of another one, takes over what it finds.
    let (engine, mut reports) = start()?;
    engine.replace(Kind::Service, [service.into()]).await?;
    engine.replace(Kind::EndpointSlice, [changed.into()]).await?;
    print("started again", reports.recv().await);

    // The backend comes back from the engine, and removes everything if asked to.
    let mut backend = task::spawn_blocking(|| engine.stop()).await??;
    backend.clean_up().await?;
    println!("cleaned up");
    Ok(())
}

/// Starts an engine in the network namespace of this thread.
fn start() -> Result<(Engine, UnboundedReceiver<SyncReport>)> {
    let mut node = NodeConfig::new("node-1");
    // Traffic from these sources is a pod's, and is not masqueraded.
    node.local_pods = LocalPodsConfig::ClusterCidr(vec!["10.244.1.0/24".parse()?]);

    // Opening the backend programs nothing. The backend and the conntrack clean-up work in the
    // namespace in which they are opened, so open them where the engine is started.
    let backend = NftProxier::open(NftConfig::default())?;
    let flows = Reconciler::start(|_| ())?;

    let (sender, reports) = mpsc::unbounded_channel();
    let engine = Engine::builder(node)
        .observer(Arc::new(Reports { sender, flows }))
        // Node ports are served on the addresses of the node's interfaces.
        .addresses(AddressFollower::new())
        .start(backend)?;
    Ok((engine, reports))
}

/// Receives what the engine reports, on the engine's thread: methods must not block.
struct Reports {
    sender: UnboundedSender<SyncReport>,
    flows: Reconciler,
}

impl Observer for Reports {
    fn on_event(&self, event: &EngineEvent<'_>) {
        // A UDP flow stays with its endpoint for as long as conntrack remembers it, whatever the
        // rules say. Without this line, clients talk to endpoints that are gone.
        self.flows.on_event(event);
        match event {
            // Nobody may listen any more.
            EngineEvent::Synced(outcome) => _ = self.sender.send(outcome.report.clone()),
            // The engine tries again, with growing delays.
            EngineEvent::SyncFailed { error, .. } => {
                eprintln!("sync failed: {}", ErrorChain(*error))
            }
            // The rest of the object is used.
            EngineEvent::Rejected(problem) => eprintln!("{problem}"),
            _ => {}
        }
    }
}

fn print(what: &str, report: Option<SyncReport>) {
    if let Some(SyncReport { added, removed, .. }) = report {
        println!("{what}: added={added} removed={removed}");
    }
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
