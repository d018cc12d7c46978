//! The local socket: a line of JSON with a request, and lines with the answer.
//!
//! A client can only read. Few connections are answered at a time, each for a limited time, and a
//! snapshot is read from the engine in small parts, so that a client that hangs, or asks much,
//! keeps no sync waiting.

use std::{io, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, Known, Question, explain},
    model::ServiceName,
    runner::{Input, Query},
    track::Tracker,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::Sender, oneshot},
    task,
    time::{sleep, timeout},
};

use super::{
    feed::{self, Feeds},
    flows::FlowReader,
    history::{History, is_changed},
    snapshot::{Line, VERSION},
    top::{Programmed, Top, TopSources},
};
use crate::{
    comparison::service::{self, Expected, TableReader},
    config::release,
    local_socket::send,
};

/// The longest wait for the engine, which a sync may keep busy.
pub const WAIT: Duration = Duration::from_secs(10);
/// The longest wait for a request.
const CLIENT: Duration = Duration::from_secs(5);
/// The longest request, in bytes.
const LONGEST: u64 = 4096;
/// The most connections that are answered at a time.
const MOST: usize = 4;
/// The Services of a snapshot that are read at a time.
const PART: usize = 16;
/// The pause after a failure to accept, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// The answer to a question.
    Explain(String),
    /// The last changes.
    Changes {
        /// The age of the oldest ones.
        seconds: u64,
        /// The Service, as `NAMESPACE/NAME`; `None` for all.
        service: Option<String>,
    },
    /// Everything that is known.
    Snapshot,
    /// The Services with their traffic, and the node.
    Top,
    /// The state as it is programmed, and its changes until the client goes.
    Watch,
}

/// Why a request is not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    /// The client is slow, or gone.
    #[error("the client failed")]
    Client(#[from] io::Error),
    /// The engine is busy.
    #[error("the proxy was busy for {WAIT:?}")]
    Busy,
    /// The engine has ended.
    #[error("the engine has ended")]
    Ended,
}

/// The parts of the program that answers come from.
#[derive(Clone)]
pub struct Sources {
    /// The engine.
    pub engine: Sender<Input>,
    /// Its last syncs.
    pub history: Arc<History>,
    /// The feeds of its syncs.
    pub feeds: Arc<Feeds>,
    /// The kernel's flows; `None` if they are not counted.
    pub flows: Option<Arc<FlowReader>>,
    /// The kernel's tables; `None` if they are not read.
    pub tables: Option<Arc<TableReader>>,
    /// The sources of [`Top`]; `None` if that is not asked for.
    pub top: Option<Arc<TopSources>>,
}

/// Answers requests for ever.
pub async fn serve(listener: UnixListener, sources: Sources) {
    let slots = Arc::new(Semaphore::new(MOST));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let sources = sources.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &sources, slot).await {
                        tracing::debug!(err = %ErrorChain(&error), "Request at the local socket failed");
                    }
                });
            }
            Err(error) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to accept at the local socket");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(
    stream: UnixStream,
    sources: &Sources,
    slot: OwnedSemaphorePermit,
) -> Result<(), ServerError> {
    let Sources { engine, history, feeds, .. } = sources;
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    let mut reading = BufReader::new(reading.take(LONGEST));
    let read = timeout(CLIENT, reading.read_line(&mut line)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let refused = match serde_json::from_str(&line) {
        Ok(Request::Snapshot) => return snapshot(&mut writing, engine, history).await,
        Ok(Request::Watch) => {
            let feeds = Arc::clone(feeds);
            match ask(engine, move |known| feeds.open(known)).await {
                Ok(Some(feed)) => {
                    // Feeds are limited by themselves.
                    drop(slot);
                    reading.get_mut().set_limit(u64::MAX);
                    return Ok(feed::serve(feed, reading, &mut writing).await?);
                }
                Ok(None) => "there are too many feeds".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Ok(Request::Changes { seconds, service }) => {
            let changes = history.changes(Duration::from_secs(seconds), service.as_deref());
            let whole = json!({"status": 0, "text": changes.to_string(), "answer": changes.syncs});
            return Ok(send(&mut writing, &whole).await?);
        }
        Ok(Request::Top) => match top(sources).await {
            Ok(Some(answer)) => return Ok(send(&mut writing, &json!({"answer": answer})).await?),
            Ok(None) => "nothing is counted".to_owned(),
            Err(error) => error.to_string(),
        },
        Ok(Request::Explain(text)) => match text.parse() {
            Ok(question) => match answer(question, sources).await {
                Ok(answer) => {
                    let (status, text) = (answer.verdict.exit_status(), answer.to_string());
                    let whole = json!({"status": status, "text": text, "answer": answer});
                    return Ok(send(&mut writing, &whole).await?);
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        },
        Err(error) => format!("not a request: {error}"),
    };
    Ok(send(&mut writing, &json!({"error": refused})).await?)
}

/// Returns the answer to `switchyard top`; `None` if nothing is counted.
async fn top(sources: &Sources) -> Result<Option<Top>, ServerError> {
    let counting = sources.flows.clone().zip(sources.top.clone());
    let Some((flows, top)) = counting else { return Ok(None) };
    let programmed = ask(&sources.engine, Programmed::of).await?;
    let history = Arc::clone(&sources.history);
    let answer = move || Top::new(programmed, &top, &history, &flows);
    task::spawn_blocking(answer).await.map(Some).map_err(|_| ServerError::Ended)
}

/// Answers a question, with what the kernel has.
async fn answer(question: Question, sources: &Sources) -> Result<Explanation, ServerError> {
    let Sources { engine, history, .. } = sources;
    let (mut answer, is_unsynced) = ask(engine, move |known| explained(&question, known)).await?;
    answer.last_change = history.last_change(answer.service.as_deref());
    if is_unsynced {
        let failed = history.failure();
        answer.set_unsynced(failed.as_ref().map(|(at, why)| (&**at, &**why)));
    } else if let Some(tables) = &sources.tables {
        compare(&mut answer, tables, engine).await?;
    }
    if let Some(flows) = sources.flows.clone() {
        let count = move || {
            flows.count(&mut answer);
            answer
        };
        answer = task::spawn_blocking(count).await.map_err(|_| ServerError::Ended)?;
    }
    Ok(answer)
}

/// Answers a question, and returns whether the kernel lacks a change of the Service.
fn explained(question: &Question, known: &Tracker) -> (Explanation, bool) {
    let answer = explain(question, known);
    let is_unsynced = known.transition().before().is_some()
        && service_of(&answer).is_some_and(|name| !is_synced(&name, known));
    (answer, is_unsynced)
}

/// Whether the kernel has all changes of a Service.
fn is_synced(name: &ServiceName, known: &Tracker) -> bool {
    let transition = known.transition();
    transition.before().is_some()
        && !transition.ports().any(|port| port.id.name.service == *name && is_changed(&port))
}

fn service_of(answer: &Explanation) -> Option<ServiceName> {
    let (namespace, name) = answer.service.as_deref()?.split_once('/')?;
    Some(ServiceName::new(namespace, name))
}

/// Reads what the kernel does with the Service's packets, unless the Service changes meanwhile.
async fn compare(
    answer: &mut Explanation,
    tables: &Arc<TableReader>,
    engine: &Sender<Input>,
) -> Result<(), ServerError> {
    let Some(name) = service_of(answer) else { return Ok(()) };
    let expected = || {
        let name = name.clone();
        ask(engine, move |known| {
            is_synced(&name, known).then(|| Expected::new(&name, known)).flatten()
        })
    };
    let Some(before) = expected().await? else { return Ok(()) };
    let tables = Arc::clone(tables);
    let comparison = move || (tables.compare(&before), before);
    let compared = task::spawn_blocking(comparison).await.map_err(|_| ServerError::Ended)?;
    match compared {
        (Some(Ok(report)), before) => {
            if report.is_equal() || expected().await?.as_ref() == Some(&before) {
                service::show(&report, answer);
            }
        }
        (Some(Err(error)), _) => {
            tracing::debug!(err = %ErrorChain(error.as_ref()), "Failed to read the tables");
        }
        (None, _) => {}
    }
    Ok(())
}

/// Sends all that is known, a few Services at a time.
async fn snapshot(
    to: &mut (impl AsyncWriteExt + Unpin),
    engine: &Sender<Input>,
    history: &History,
) -> Result<(), ServerError> {
    let names = |known: &Tracker| known.names().cloned().collect::<Vec<ServiceName>>();
    let (node, mut names) = ask(engine, move |known| (Known::node(known), names(known))).await?;
    names.sort_unstable();
    let (program, taken) = (release::OURS.to_owned(), Timestamp::now().to_string());
    send(to, &Line::Snapshot { version: VERSION, program, taken }).await?;
    send(to, &Line::Node(Box::new(node))).await?;
    let mut count = 0;
    for part in names.chunks(PART) {
        let part = part.to_vec();
        let read = move |known: &Tracker| {
            part.iter().filter_map(|name| Known::service(known, name)).collect::<Vec<_>>()
        };
        for service in ask(engine, read).await? {
            send(to, &Line::Service(Box::new(service))).await?;
            count += 1;
        }
    }
    for sync in history.syncs() {
        send(to, &Line::Sync(Box::new(sync))).await?;
    }
    Ok(send(to, &Line::End { services: count }).await?)
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
