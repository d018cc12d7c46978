//! The Kubernetes source: four watches on an API server.
//!
//! | Resource | Selectors |
//! |---|---|
//! | `v1` nodes | field `metadata.name=<node>` |
//! | `v1` services | label `!service.kubernetes.io/service-proxy-name`, field `spec.clusterIP!=None` |
//! | `discovery.k8s.io/v1` endpointslices | label `!service.kubernetes.io/headless` |
//! | `networking.k8s.io/v1` servicecidrs | none; may be absent or forbidden |
//!
//! The watches run beside each other. Each begins with a list, streamed where the server can
//! (`sendInitialEvents`) and else in pages of 500, and ends it with one
//! [`Event::Replace`]. When the server no longer remembers the
//! watch's version (410), the watch lists again: the last state stays until the new list is
//! complete, and the `Replace` tells of everything that was deleted meanwhile.
//!
//! Client, TLS, authentication and back-off are the `kube` crate's. Its watcher is not used: it
//! keeps bookmarks and reconnections to itself, so that one cannot tell a quiet watch from a dead
//! one; it waits for a response without limit; and it repeats a refused request for ever.
//!
//! A watch that says nothing for 90 s is taken for dead and opened again. A healthy server sends a
//! bookmark every 60 to 75 s. A connection that is closed or reset is noticed at once.

mod client;
mod decode;
mod health;
mod list;
mod pace;
mod requests;
mod watch;

use std::{path::PathBuf, time::Duration};

use ::kube::Client;
use proxy_core::objects::{EndpointSlice, Event, Node, Service, ServiceCidr};
use tokio::{
    sync::mpsc::Sender,
    task::{JoinError, JoinSet},
};

pub use self::{
    client::{ClientError, client},
    health::WatchHealth,
    pace::{Pacer, RequestPace},
};
use self::{
    decode::Lean,
    watch::{Target, Watch},
};
use crate::{flags::Precedence, metrics::RequestMetrics, version};

/// How to reach the API server.
#[derive(Clone, Debug)]
pub struct KubeConfig {
    /// The kubeconfig file; `None` means the service account of the pod that we are in, unless
    /// `master` is given.
    pub kubeconfig: Option<PathBuf>,
    /// The server's address, in place of the kubeconfig's.
    pub master: Option<String>,
    /// What we call ourselves.
    pub user_agent: String,
    /// How fast requests may follow each other.
    pub pace: RequestPace,
    /// The patience with the server.
    pub timing: Timing,
    /// Where requests are counted.
    pub requests: Option<RequestMetrics>,
}

impl Default for KubeConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            master: None,
            user_agent: version::user_agent(Precedence::Flags),
            pace: RequestPace::default(),
            timing: Timing::default(),
            requests: None,
        }
    }
}

/// How long the server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A watch that says nothing for this long is opened again.
    pub idle: Duration,
    /// How long the head of an answer may take.
    pub response: Duration,
    /// How long a list, or a page of one, may take.
    pub list: Duration,
    /// How long the server should keep a watch open: this long to twice as long, by chance, so that
    /// the nodes of a cluster do not come back together.
    pub watch: Duration,
    /// How often a resource is asked for that the server does not have or does not allow, and that
    /// we can do without.
    pub absent: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(90),
            response: Duration::from_secs(30),
            list: Duration::from_secs(120),
            watch: Duration::from_secs(300),
            absent: Duration::from_secs(300),
        }
    }
}

/// Why the Kubernetes source ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeSourceError {
    /// It is not known how to reach the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A watch panicked.
    #[error("a watch ended unexpectedly")]
    Watch(#[source] JoinError),
}

/// Watches the API server as the proxy of node `node_name`, and sends what it says until the
/// receiver is dropped.
///
/// # Errors
/// If it cannot be found out how to reach the server. That the server does not answer is no error:
/// it is tried again for ever.
pub async fn run(
    config: KubeConfig,
    node_name: &str,
    sender: Sender<Event>,
) -> Result<(), KubeSourceError> {
    let client = client(&config).await?;
    let pacer = Pacer::new(config.pace);
    watch_all(client, pacer, config.timing, node_name, sender, WatchHealth::new()).await
}

/// As [`run`], with a client and a pacer that were made before (they may be shared with whatever else
/// talks to the server), and marking in `health` when the watches are heard from.
///
/// # Errors
/// If a watch panics.
pub async fn watch_all(
    client: Client,
    pacer: Pacer,
    timing: Timing,
    node_name: &str,
    sender: Sender<Event>,
    health: WatchHealth,
) -> Result<(), KubeSourceError> {
    let mut watches = JoinSet::new();
    let context = (client, pacer, timing, sender.clone(), health);
    start::<Node>(
        &mut watches,
        &context,
        Target {
            path: "/api/v1/nodes",
            labels: None,
            fields: Some(format!("metadata.name={node_name}")),
            is_optional: false,
        },
    );
    start::<ServiceCidr>(
        &mut watches,
        &context,
        Target {
            path: "/apis/networking.k8s.io/v1/servicecidrs",
            labels: None,
            fields: None,
            is_optional: true,
        },
    );
    start::<Service>(
        &mut watches,
        &context,
        Target {
            path: "/api/v1/services",
            labels: Some("!service.kubernetes.io/service-proxy-name"),
            fields: Some("spec.clusterIP!=None".to_owned()),
            is_optional: false,
        },
    );
    start::<EndpointSlice>(
        &mut watches,
        &context,
        Target {
            path: "/apis/discovery.k8s.io/v1/endpointslices",
            labels: Some("!service.kubernetes.io/headless"),
            fields: None,
            is_optional: false,
        },
    );
    drop(context);
    tokio::select! {
        () = sender.closed() => Ok(()),
        Some(ended) = watches.join_next() => ended.map_err(KubeSourceError::Watch),
    }
}

fn start<T: Lean>(
    watches: &mut JoinSet<()>,
    (client, pacer, timing, sender, health): &(Client, Pacer, Timing, Sender<Event>, WatchHealth),
    target: Target,
) {
    let pulse = health.of(T::KIND);
    let server = (client.clone(), pacer.clone());
    watches.spawn(Watch::<T>::new(server, target, *timing, sender.clone(), pulse).run());
}
