//! The watches of an API server: four, with streamed lists, fallbacks to other lists, and
//! credentials that are renewed.
//!
//! # The watches
//!
//! | Resource | Selectors |
//! |---|---|
//! | `v1` nodes | field `metadata.name=<node>` |
//! | `v1` services | label `!service.kubernetes.io/service-proxy-name`, or with the configured value; field `spec.clusterIP!=None` |
//! | `discovery.k8s.io/v1` endpointslices | label `!service.kubernetes.io/headless` |
//! | `networking.k8s.io/v1` servicecidrs | none; may be absent or forbidden |
//!
//! - The watches run independently. Each begins with a list, whose objects are sent as they
//!   arrive, followed by [`Event::Listed`]. Later lists, and a first one that began again, are one
//!   [`Event::Replace`].
//! - A list is streamed (`sendInitialEvents`). A server that is overloaded (429), fails (5xx), does
//!   not answer or cannot be reached is asked for a stream again, with growing pauses that are not
//!   shorter than its `Retry-After`. Other lists are asked for where streaming fails: servers
//!   without that feature answer 422 or 400, servers whose etcd lacks progress requests (3.4.x
//!   before 3.4.25, 3.5.x before 3.5.8) answer 200 and send an error of code 500 in the stream, and
//!   a stream may end early or fall silent. Five errors 5xx in a row count as well. Lists are
//!   streamed again once a watch was established after the list, or when three lists have failed.
//! - A list that is not streamed is first asked for as the server's cache has it: of any version at
//!   the start (`resourceVersion=0`), and not older than what is known later. Older servers read a
//!   list without a version from etcd, and one with a limit. Where the server cannot use the
//!   version (410, "too large", 400, 422, a list without a version), the newest list is read in
//!   pages of 500. client-go does the same.
//! - Requests ask to leave out `metadata.managedFields` (KEP-5958), which servers before 1.38
//!   ignore.
//! - When the server no longer has the version of a watch (410), the watch lists again: the last
//!   state stays until the new list is complete, and the `Replace` carries every deletion in
//!   between.
//! - A watch that is silent for 90 s counts as dead and is opened again; a healthy server sends a
//!   bookmark every 60 to 75 s. After two silent watches in a row the watch lists again, because a
//!   server that was restored from a backup is silent until its versions catch up. A connection
//!   that is closed or reset is noticed at once, and a host that is gone after 30 s (client-go: 45
//!   s): TCP probes idle connections, and gives up data that nothing acknowledges.
//!
//! # Access
//!
//! Client, TLS and authentication are the `kube` crate's, with client-go's behaviour where that
//! differs: the proxy variables ([`client`]), and credentials that change. Client certificate files
//! named in the kubeconfig are read again when they change, an exec plugin is run again when its
//! credentials expire or are rejected, for a minute at most, and a token file is read again every
//! minute and when its token is rejected.
//!
//! # Why not `kube::runtime::watcher`
//!
//! The watch loop is our own. As of kube 5.0, `watcher` differs from what a proxy needs in ways
//! that its configuration, and a layer around the client, cannot change:
//!
//! - An object that is deleted while a list is streamed stays in the list: the watcher logs the
//!   `DELETED` and drops it, because the API's documentation rules it out (kube-rs/kube#1499). API
//!   servers do send it, and client-go handles it.
//! - A stream that ends is opened again inside the watcher, without an item, so that the consumer
//!   can neither delay the next request nor notice that a streamed list never completes: a server
//!   that closes watches at once gets requests in a tight loop. The back-off of kube-rs/kube#577
//!   covers errors alone.
//! - A watch whose version the server rejects with HTTP status 410 is opened at the same version
//!   for ever (kube-rs/kube#1042).
//! - A list whose continue token expires is read in pages again, for ever if the token always
//!   expires; client-go reads the whole list in one piece.
//! - A watcher has one list strategy and cannot start at a version, so that changing the strategy
//!   after a failure means a new list.
//! - `DeserializeGuard` keeps the metadata of an object that cannot be decoded, but not the field
//!   that is wrong; it copies every object twice, and one object without usable metadata fails the
//!   page.
//!
//! Bookmarks, silence, response time limits and pace could be had from a layer.

#![forbid(unsafe_code)]

mod client;
mod config;
mod health;
mod observer;
mod pace;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

use kube::Client;
use switchyard_core::objects::{EndpointSlice, Event, Node, Service, ServiceCidr};
use tokio::{
    sync::mpsc::Sender,
    task::{JoinError, JoinSet},
};

use self::watch::{DecodableObject, Target, Watch};
pub use self::{
    client::{ClientError, client, peer},
    config::{KubeConfig, Timing},
    health::WatchHealth,
    observer::RequestObserver,
    pace::{Pacer, RequestPace},
};

/// Why the Kubernetes source ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeSourceError {
    /// The configuration does not say how to reach the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A watch panicked.
    #[error("a watch ended unexpectedly")]
    Watch(#[source] JoinError),
}

/// Watches the API server as the proxy of node `node_name`, and sends all objects and changes until
/// the receiver is dropped: to an engine (`Engine::inputs`), or to a channel of events.
///
/// # Errors
/// If the configuration does not say how to reach the server. A server that does not answer is no
/// error: requests are repeated for ever.
pub async fn run<I: From<Event> + Send + 'static>(
    config: KubeConfig,
    node_name: &str,
    sender: Sender<I>,
) -> Result<(), KubeSourceError> {
    let client = client(&config).await?;
    let mut pacer = Pacer::new(config.pace);
    if let Some(observer) = config.observer {
        pacer = pacer.observed_by(observer);
    }
    let scope = Scope { node_name, service_proxy_name: config.service_proxy_name.as_deref() };
    watch_all(client, pacer, config.timing, scope, sender, WatchHealth::new()).await
}

/// The objects that the proxy of a node watches.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The name of the node.
    pub node_name: &'a str,
    /// The same as [`KubeConfig::service_proxy_name`].
    pub service_proxy_name: Option<&'a str>,
}

impl<'a> From<&'a str> for Scope<'a> {
    /// Returns the scope of this node's own proxy.
    fn from(node_name: &'a str) -> Self {
        Self { node_name, service_proxy_name: None }
    }
}

/// Does the same as [`run`] with a client and a pacer that the caller may share with other users of
/// the API server, and records in `health` when the server was last heard from.
///
/// # Errors
/// If a watch panics.
pub async fn watch_all<I: From<Event> + Send + 'static>(
    client: Client,
    pacer: Pacer,
    timing: Timing,
    scope: impl Into<Scope<'_>>,
    sender: Sender<I>,
    health: WatchHealth,
) -> Result<(), KubeSourceError> {
    let scope = scope.into();
    let mut watches = JoinSet::new();
    let context = (client, pacer, timing, sender.clone(), health);
    start::<Node, _>(
        &mut watches,
        &context,
        Target {
            path: "/api/v1/nodes",
            labels: None,
            fields: Some(format!("metadata.name={}", scope.node_name)),
            is_optional: false,
        },
    );
    start::<ServiceCidr, _>(
        &mut watches,
        &context,
        Target {
            path: "/apis/networking.k8s.io/v1/servicecidrs",
            labels: None,
            fields: None,
            is_optional: true,
        },
    );
    start::<Service, _>(
        &mut watches,
        &context,
        Target {
            path: "/api/v1/services",
            labels: Some(match scope.service_proxy_name {
                Some(name) => format!("service.kubernetes.io/service-proxy-name={name}"),
                None => "!service.kubernetes.io/service-proxy-name".to_owned(),
            }),
            fields: Some("spec.clusterIP!=None".to_owned()),
            is_optional: false,
        },
    );
    start::<EndpointSlice, _>(
        &mut watches,
        &context,
        Target {
            path: "/apis/discovery.k8s.io/v1/endpointslices",
            labels: Some("!service.kubernetes.io/headless".to_owned()),
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

fn start<T: DecodableObject, I: From<Event> + Send + 'static>(
    watches: &mut JoinSet<()>,
    (client, pacer, timing, sender, health): &(Client, Pacer, Timing, Sender<I>, WatchHealth),
    target: Target,
) {
    let pulse = health.pulse(T::KIND);
    let server = (client.clone(), pacer.clone());
    watches.spawn(Watch::<T, I>::new(server, target, *timing, sender.clone(), pulse).run());
}
