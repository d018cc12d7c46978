//! Sources, connected to the engine.

use std::convert::Infallible;

use futures::{FutureExt, future};
use proxy_core::{objects::Event, runner::Input};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::{
    config::settings::SourceSettings,
    events::{self, Recorded},
    metrics::RequestMetrics,
    source::{
        kube::{self, KubeConfig, KubeSourceError, WatchHealth},
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

/// Sends what the source says, for ever.
pub async fn run(
    source: &SourceSettings,
    node_name: &str,
    inputs: Sender<Input>,
    link: Link,
) -> FeedError {
    let (sender, events) = mpsc::channel(QUEUE);
    tokio::select! {
        result = from_source(source, node_name, sender, link) => match result {
            Ok(never) => match never {},
            Err(error) => error,
        },
        () = forward(events, inputs) => FeedError::Ended,
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
            let config = KubeConfig {
                kubeconfig: client.kubeconfig.clone(),
                master: client.master.clone(),
                requests: Some(link.requests),
                ..KubeConfig::default()
            };
            let client = kube::client(&config).await.map_err(KubeSourceError::from)?;
            let publishing = events::publish(client.clone(), node_name, link.recorded);
            let watching = kube::watch_all(client, config.timing, node_name, sender, link.watches);
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

/// Ends when nobody listens any more.
async fn forward(mut events: Receiver<Event>, inputs: Sender<Input>) {
    while let Some(event) = events.recv().await {
        if inputs.send(Input::Event(event)).await.is_err() {
            return;
        }
    }
}
