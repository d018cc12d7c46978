//! Sources, connected to the engine.

use std::convert::Infallible;

use proxy_core::{objects::Event, runner::Input};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::{
    config::settings::SourceSettings,
    source::{
        kube::{self, KubeConfig, KubeSourceError},
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

/// Sends what the source says, for ever.
pub async fn run(source: &SourceSettings, node_name: &str, inputs: Sender<Input>) -> FeedError {
    let (sender, events) = mpsc::channel(QUEUE);
    tokio::select! {
        result = from_source(source, node_name, sender) => match result {
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
) -> Result<Infallible, FeedError> {
    match source {
        SourceSettings::Manifests(directory) => {
            manifests::run(directory.clone(), sender).await?;
        }
        SourceSettings::Cluster(client) => {
            let config = KubeConfig {
                kubeconfig: client.kubeconfig.clone(),
                master: client.master.clone(),
                ..KubeConfig::default()
            };
            kube::run(config, node_name, sender).await?;
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
