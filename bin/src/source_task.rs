//! The source of objects, connected to the engine.

use std::{convert::Infallible, iter, sync::Arc, time::Duration};

use futures::{FutureExt, future};
use switchyard_core::{error::ErrorChain, runner::Input};
use switchyard_kernel::route::SharedAddresses;
use switchyard_sources::{
    kube::{
        self as kube, Connection, KubeConfig, KubeSourceError, Pacer, RequestObserver, RequestPace,
        Scope, WatchHealth,
    },
    manifests::{self, ManifestsError},
};
use tokio::{sync::mpsc::Sender, time};
use tracing::debug;

use crate::config::settings::{ClientSettings, SourceSettings};
use crate::{
    api_addresses,
    explain::names::NameReader,
    node_events::{self, EventQueue},
    objects::{self, ClientLink, ObjectsError},
};

/// The time after the start at which the API server's release is read.
const RELEASE_WAIT: Duration = Duration::from_secs(10);
/// The time after which the API server's release is read again: the alert on components of several
/// releases (KubeVersionMismatch of kubernetes-mixin) waits for 15 minutes.
const RELEASE_PERIOD: Duration = Duration::from_secs(10 * 60);

/// Why the source of objects ended.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    #[error(transparent)]
    Socket(#[from] ObjectsError),
    #[error(transparent)]
    Cluster(#[from] KubeSourceError),
    /// The source ended while the engine was receiving.
    #[error("the source of objects ended unexpectedly")]
    Ended,
}

/// Everything else that the program exchanges with an API server.
pub struct ApiServerLink {
    /// Records when the watches were last heard from.
    pub watches: WatchHealth,
    /// Kubernetes Events to be sent to the API server.
    pub recorded: EventQueue,
    pub requests: Arc<dyn RequestObserver>,
    /// Gets the addresses that connections go to, if the mode has to know them before the first
    /// sync.
    pub addresses: Option<SharedAddresses>,
    /// Reads the names of endpoints for those who ask.
    pub names: Arc<NameReader>,
    /// Gets the API server's release of Kubernetes.
    pub release: Box<dyn Fn(&str) + Send + Sync>,
}

/// Sends the events of the source for ever.
pub async fn run(
    source: &SourceSettings,
    node_name: &str,
    engine: Sender<Input>,
    link: ApiServerLink,
    client_link: ClientLink,
) -> SourceError {
    match from_source(source, node_name, engine, link, client_link).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// Checks whether the settings name a source that could be reached. Sends no request.
pub async fn check(source: &SourceSettings) -> Result<(), SourceError> {
    if let SourceSettings::Cluster(settings) = source {
        client(settings).await?;
    }
    Ok(())
}

/// Makes a client of the API server. Sends no request.
pub async fn client(settings: &ClientSettings) -> Result<::kube::Client, SourceError> {
    Ok(kube::client(&kube_config(settings)).await.map_err(KubeSourceError::from)?)
}

fn kube_config(client: &ClientSettings) -> KubeConfig {
    KubeConfig {
        kubeconfig: client.kubeconfig.clone(),
        master: client.master.clone(),
        content_type: client.content_type,
        pace: RequestPace { qps: client.qps, burst: client.burst },
        service_proxy_name: client.service_proxy_name.clone(),
        ..KubeConfig::new(client.user_agent.clone())
    }
}

/// Asks the API server for its release of Kubernetes, again and again, as it may be upgraded.
async fn follow_release(
    client: ::kube::Client,
    pacer: Pacer,
    report: Box<dyn Fn(&str) + Send + Sync>,
) -> Infallible {
    // The watches come first.
    for pause in iter::once(RELEASE_WAIT).chain(iter::repeat(RELEASE_PERIOD)) {
        time::sleep(pause).await;
        pacer.permit("GET").await;
        match client.apiserver_version().await {
            Ok(info) => report(&info.git_version),
            Err(error) => debug!(err = %ErrorChain(&error), "Release of the API server not known"),
        }
    }
    future::pending().await
}

async fn from_source(
    source: &SourceSettings,
    node_name: &str,
    sender: Sender<Input>,
    link: ApiServerLink,
    client_link: ClientLink,
) -> Result<Infallible, SourceError> {
    match source {
        SourceSettings::Manifests(directory) => {
            link.names.read_from_directory(directory.clone());
            // There is no API server to send Kubernetes Events to.
            drop(link);
            manifests::run(directory.clone(), sender).await?;
        }
        SourceSettings::Socket(path) => {
            drop(link);
            objects::run(path.clone(), node_name, sender, client_link).await?;
        }
        SourceSettings::Cluster(client) => {
            let observer = link.requests;
            let config = KubeConfig { observer: Some(observer.clone()), ..kube_config(client) };
            let connection = kube::connect(&config).await.map_err(KubeSourceError::from)?;
            let Connection { client, server, peer, .. } = connection;
            let pacer = Pacer::new(config.pace).observed_by(observer);
            link.names.read_from_cluster(client.clone(), pacer.clone());
            let publishing =
                node_events::publish(client.clone(), pacer.clone(), node_name, link.recorded);
            let releases = follow_release(client.clone(), pacer.clone(), link.release);
            let service_proxy_name = config.service_proxy_name.as_deref();
            let content_type = config.content_type;
            let scope =
                Scope { node_name, service_proxy_name, server: Some(&server), content_type };
            let engine = sender.clone();
            let watching =
                kube::watch_all(client, pacer, config.timing, scope, sender, link.watches);
            let watching = match (peer, link.addresses) {
                (Some(host), Some(known)) => {
                    api_addresses::before(watching, host, known, engine).left_future()
                }
                _ => watching.right_future(),
            };
            // The watches go on even if there is nothing to publish any more.
            let publishing = publishing.then(|()| future::pending());
            tokio::select! {
                result = watching => result?,
                never = publishing => match never {},
                never = releases => match never {},
            }
        }
    }
    Err(SourceError::Ended)
}
