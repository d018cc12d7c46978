//! The parts of the program that answers at the local socket come from.

use std::{io, sync::Arc, time::Duration};

use switchyard_core::{
    runner::{Input, Query},
    track::Tracker,
};
use tokio::{
    sync::{mpsc::Sender, oneshot},
    task,
    time::timeout,
};

use super::{feed::Feeds, flows::FlowReader, history::History, names::NameReader, top::TopSources};
use crate::{comparison::service::TableReader, other_tables::OtherTables, pace::Pace};

/// The longest wait for the engine, which a sync may keep busy.
pub const WAIT: Duration = Duration::from_secs(10);

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    /// The client is slow, or gone.
    #[error("the client failed")]
    Client(#[from] io::Error),
    #[error("the proxy was busy for {WAIT:?}")]
    Busy,
    #[error("the engine has ended")]
    Ended,
}

/// The parts of the program that answers come from.
#[derive(Clone)]
pub struct Sources {
    pub engine: Sender<Input>,
    pub history: Arc<History>,
    /// The feeds of its syncs.
    pub feeds: Arc<Feeds>,
    /// The names of endpoints.
    pub names: Arc<NameReader>,
    /// The kernel's flows; `None` if they are not counted.
    pub flows: Option<Arc<FlowReader>>,
    /// The kernel's tables; `None` if they are not read.
    pub tables: Option<Arc<TableReader>>,
    /// The pace of comparisons by the backend, in modes whose tables are not read.
    pub audits: Arc<Pace>,
    /// The tables of other programs; `None` if they are not read.
    pub others: Option<Arc<OtherTables>>,
    /// The sources of the answer to `switchyard top`; `None` if that is not asked for.
    pub top: Option<Arc<TopSources>>,
}

/// Runs work that takes time, or asks the kernel, on a thread that serves no other client.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ServerError> {
    task::spawn_blocking(work).await.map_err(|_| ServerError::Ended)
}

/// Reads the tracker on the engine's thread.
pub(super) async fn ask<T: Send + 'static>(
    engine: &Sender<Input>,
    read: impl FnOnce(&Tracker) -> T + Send + 'static,
) -> Result<T, ServerError> {
    let (answer, answered) = oneshot::channel();
    // The client may have gone.
    let query = Query::new(move |known| drop(answer.send(read(known))));
    let asking = async {
        engine.send(Input::Query(query)).await.map_err(|_| ServerError::Ended)?;
        answered.await.map_err(|_| ServerError::Ended)
    };
    timeout(WAIT, asking).await.map_err(|_| ServerError::Busy)?
}
