//! Sources, connected to the engine.

use std::convert::Infallible;

use futures::{FutureExt, future};
use proxy_core::{objects::Event, runner::Input};
use tokio::sync::mpsc::{self, Sender};

use crate::{
    config::settings::{ClientSettings, SourceSettings},
    events::{self, Recorded},
    metrics::RequestMetrics,
    node::discovery::{Discovery, DiscoveryError},
    source::{
        kube::{self, KubeConfig, KubeSourceError, Pacer, RequestPace, WatchHealth},
        manifests::{self, ManifestsError},
    },
};

/// Events that may wait for their way to the engine.
const QUEUE: usize = 1024;

/// Why there are no objects.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The manifests cannot be followed.
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    /// The API server cannot be watched.
    #[error(transparent)]
    Cluster(#[from] KubeSourceError),
    /// This node cannot be started on.
    #[error(transparent)]
    Node(#[from] DiscoveryError),
    /// The source ended though it was listened to.
    #[error("the source of objects ended unexpectedly")]
    Ended,
}

/// What else there is between us and an API server.
#[derive(Debug)]
pub struct Link {
    /// Told when the watches are heard from.
    pub watches: WatchHealth,
    /// Events to be sent there.
    pub recorded: Recorded,
    /// Where requests are counted.
    pub requests: RequestMetrics,
}

/// Sends what the source says, for ever, once the Node has been found out about.
pub async fn run(
    source: &SourceSettings,
    node_name: &str,
    discovery: Discovery,
    inputs: Sender<Input>,
    link: Link,
) -> FeedError {
    let (sender, events) = mpsc::channel(QUEUE);
    tokio::select! {
        result = from_source(source, node_name, sender, link) => match result {
            Ok(never) => match never {},
            Err(error) => error,
        },
        result = discovery.forward(events, inputs) => match result {
            Ok(()) => FeedError::Ended,
            Err(error) => error.into(),
        },
    }
}

/// Whether it can be found out how to reach the source. Nothing is asked of it.
pub async fn check(source: &SourceSettings) -> Result<(), FeedError> {
    if let SourceSettings::Cluster(client) = source {
        kube::client(&kube_config(client)).await.map_err(KubeSourceError::from)?;
    }
    Ok(())
}

fn kube_config(client: &ClientSettings) -> KubeConfig {
    KubeConfig {
        kubeconfig: client.kubeconfig.clone(),
        master: client.master.clone(),
        user_agent: client.user_agent.clone(),
        pace: RequestPace { qps: client.qps, burst: client.burst },
        ..KubeConfig::default()
    }
}

async fn from_source(
    source: &SourceSettings,
    node_name: &str,
    sender: Sender<Event>,
    link: Link,
) -> Result<Infallible, FeedError> {
    match source {
        SourceSettings::Manifests(directory) => {
            // Nobody is told of Events.
            drop(link);
            manifests::run(directory.clone(), sender).await?;
        }
        SourceSettings::Cluster(client) => {
            let config =
                KubeConfig { requests: Some(link.requests.clone()), ..kube_config(client) };
            let client = kube::client(&config).await.map_err(KubeSourceError::from)?;
            let pacer = Pacer::new(config.pace).counting(link.requests);
            let publishing =
                events::publish(client.clone(), pacer.clone(), node_name, link.recorded);
            let watching =
                kube::watch_all(client, pacer, config.timing, node_name, sender, link.watches);
            // The watches go on even if there is nothing to publish any more.
            let publishing = publishing.then(|()| future::pending());
            tokio::select! {
                result = watching => result?,
                never = publishing => match never {},
            }
        }
    }
    Err(FeedError::Ended)
}
