//! Sources, connected to the engine.

use std::convert::Infallible;

use proxy_core::{objects::Event, runner::Input};
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::{
    config::settings::SourceSettings,
    source::manifests::{self, ManifestsError},
};

/// Events that may wait for their way to the engine.
const QUEUE: usize = 1024;

/// Why there are no objects.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The manifests cannot be followed.
    #[error(transparent)]
    Manifests(#[from] ManifestsError),
    /// There is no source for clusters.
    #[error("API servers cannot be watched yet; use --manifests DIR")]
    NoCluster,
    /// The source ended though it was listened to.
    #[error("the source of objects ended unexpectedly")]
    Ended,
}

/// Sends what the source says, for ever.
pub async fn run(source: &SourceSettings, inputs: Sender<Input>) -> FeedError {
    let (sender, events) = mpsc::channel(QUEUE);
    tokio::select! {
        result = from_source(source, sender) => match result {
            Ok(never) => match never {},
            Err(error) => error,
        },
        () = forward(events, inputs) => FeedError::Ended,
    }
}

async fn from_source(
    source: &SourceSettings,
    sender: Sender<Event>,
) -> Result<Infallible, FeedError> {
    match source {
        SourceSettings::Manifests(directory) => {
            manifests::run(directory.clone(), sender).await?;
        }
        SourceSettings::Cluster(_) => return Err(FeedError::NoCluster),
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
