//! The watches of an API server: four, with streamed lists, fallbacks to other lists, and
//! credentials that are renewed.
//!
//! | Resource | Selectors |
//! |---|---|
//! | `v1` nodes | field `metadata.name=<node>` |
//! | `v1` services | label `!service.kubernetes.io/service-proxy-name`, or with the configured value; field `spec.clusterIP!=None` |
//! | `discovery.k8s.io/v1` endpointslices | label `!service.kubernetes.io/headless` |
//! | `networking.k8s.io/v1` servicecidrs | none; may be absent or forbidden |
//!
//! The watches run independently. Each begins with a list, whose objects are sent as they arrive,
//! followed by [`Event::Listed`]. Later lists, and a first one that began again, are one
//! [`Event::Replace`]. `docs/architecture.md` in the repository has the ways to list, the treatment
//! of failures, and why the loop is not `kube::runtime::watcher`.
//!
//! Client, TLS and authentication are the `kube` crate's, with client-go's behaviour where that
//! differs: the proxy variables ([`client`]), and credentials that change.

#![forbid(unsafe_code)]

mod client;
mod config;
mod content_type;
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
    client::{ClientError, Connection, client, connect},
    config::{KubeConfig, Timing},
    content_type::ContentType,
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
/// the receiver is dropped: to an engine (`Engine::inputs`), or to a channel of events. Not twice
/// to the same engine: as what the first lists lack is not reported, objects that were deleted
/// since another call would stay.
///
/// # Errors
/// If the configuration does not say how to reach the server. A server that does not answer, and an
/// exec plugin that fails, are no errors: requests and runs are repeated for ever.
pub async fn run<I: From<Event> + Send + 'static>(
    config: KubeConfig,
    node_name: &str,
    sender: Sender<I>,
) -> Result<(), KubeSourceError> {
    let Connection { client, server, .. } = connect(&config).await?;
    let mut pacer = Pacer::new(config.pace);
    if let Some(observer) = config.observer {
        pacer = pacer.observed_by(observer);
    }
    let service_proxy_name = config.service_proxy_name.as_deref();
    let content_type = config.content_type;
    let scope = Scope { node_name, service_proxy_name, server: Some(&server), content_type };
    watch_all(client, pacer, config.timing, scope, sender, WatchHealth::new()).await
}

/// The objects that the proxy of a node watches.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The name of the node.
    pub node_name: &'a str,
    /// The same as [`KubeConfig::service_proxy_name`].
    pub service_proxy_name: Option<&'a str>,
    /// The name or address of the server, for the log ([`Connection::server`]).
    pub server: Option<&'a str>,
    /// The same as [`KubeConfig::content_type`].
    pub content_type: ContentType,
}

impl<'a> From<&'a str> for Scope<'a> {
    /// Returns the scope of this node's own proxy.
    fn from(node_name: &'a str) -> Self {
        Self {
            node_name,
            service_proxy_name: None,
            server: None,
            content_type: ContentType::default(),
        }
    }
}

/// Does the same as [`run`] with a client and a pacer that the caller may share with other users of
/// the API server, and records in `health` when the server was last heard from. Not twice to the
/// same engine either.
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
    let server = || scope.server.map(str::to_owned);
    let mut watches = JoinSet::new();
    let context = (client, pacer, timing, sender.clone(), health);
    start::<Node, _>(
        &mut watches,
        &context,
        Target {
            path: "/api/v1/nodes",
            labels: None,
            fields: Some(format!("metadata.name={}", scope.node_name)),
            server: server(),
            form: scope.content_type,
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
            server: server(),
            form: scope.content_type,
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
            server: server(),
            form: scope.content_type,
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
            server: server(),
            form: scope.content_type,
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
