//! The local socket: a line of JSON with a request, and lines with the answer.
//!
//! A client can only read. Few connections are answered at a time, each for a limited time, and a
//! snapshot is read from the engine in small parts, so that a client that hangs, or asks much,
//! keeps no sync waiting.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use switchyard_core::{error::ErrorChain, explain::Known, model::ServiceName, track::Tracker};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use super::{
    answer::answer,
    feed, kernel,
    service_flows::LEAST,
    snapshot::{Line, VERSION},
    sources::{ServerError, Sources, ask, run_blocking},
    top::{Programmed, Top},
};
use crate::{
    config::release,
    local_socket::{json_line, send, send_all},
};

/// The longest wait for a request.
const CLIENT: Duration = Duration::from_secs(5);
/// The longest wait for the tables and metrics of a snapshot, which are left out then.
const TABLES: Duration = Duration::from_secs(10);
/// The longest request, in bytes.
const LONGEST: u64 = 4096;
/// The most connections at a time, of which some may send nothing.
const MOST_CONNECTIONS: usize = 64;
/// The most requests that are answered at a time.
const MOST: usize = 4;
/// The most snapshots at a time, beside these: one may take as long as its reader.
const MOST_SNAPSHOTS: usize = 2;
/// The Services of a snapshot that are read at a time.
const PART: usize = 16;
/// The pause after a failure to accept, such as for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// The answer to a question.
    Explain(String),
    Changes {
        /// The age of the oldest ones.
        seconds: u64,
        /// The Service, as `NAMESPACE/NAME`; `None` for all.
        service: Option<String>,
    },
    /// Everything that is known.
    Snapshot,
    /// The node and the Services of a snapshot.
    Services,
    /// The Services with their traffic, and the node.
    Top,
    /// The status of the proxy, as its page `/status` has it.
    Status,
    /// The state as it is programmed, and its changes until the client goes.
    Watch,
}

/// Answers requests for ever.
pub async fn serve(listener: UnixListener, sources: Sources) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let limits = Arc::new(Limits {
        answers: Semaphore::new(MOST),
        snapshots: Semaphore::new(MOST_SNAPSHOTS),
    });
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (sources, limits) = (sources.clone(), Arc::clone(&limits));
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &sources, place, &limits).await {
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

/// The work for all connections at a time.
struct Limits {
    answers: Semaphore,
    snapshots: Semaphore,
}

async fn converse(
    stream: UnixStream,
    sources: &Sources,
    place: OwnedSemaphorePermit,
    limits: &Limits,
) -> Result<(), ServerError> {
    let Sources { engine, history, feeds, .. } = sources;
    let (reading, mut writing) = stream.into_split();
    let mut line = String::new();
    let mut reading = BufReader::new(reading.take(LONGEST));
    let read = timeout(CLIENT, reading.read_line(&mut line)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // None is ever closed.
    let answering = limits.answers.acquire().await.map_err(|_| ServerError::Ended)?;
    let refused = match serde_json::from_str(&line) {
        Ok(request @ (Request::Snapshot | Request::Services)) => {
            match limits.snapshots.try_acquire() {
                Ok(_permit) => {
                    drop(answering);
                    let is_whole = matches!(request, Request::Snapshot);
                    return snapshot(&mut writing, sources, is_whole).await;
                }
                Err(_) => "there are too many snapshots".to_owned(),
            }
        }
        Ok(Request::Watch) => {
            let feeds = Arc::clone(feeds);
            match ask(engine, move |known| feeds.open(known)).await {
                Ok(Some(feed)) => {
                    // Feeds are limited by themselves.
                    drop((place, answering));
                    reading.get_mut().set_limit(u64::MAX);
                    return Ok(feed::serve(feed, reading, &mut writing).await?);
                }
                Ok(None) => "there are too many feeds".to_owned(),
                Err(error) => error.to_string(),
            }
        }
        Ok(Request::Changes { seconds, service }) => {
            let changes = history.changes(Duration::from_secs(seconds), service.as_deref());
            let text = changes.to_string();
            let answer = Answer { status: Some(0), text: Some(text), answer: changes.syncs };
            return Ok(send(&mut writing, &answer).await?);
        }
        Ok(Request::Status) => match &sources.top {
            Some(top) => {
                let top = Arc::clone(top);
                let status = run_blocking(move || top.status.now(top.mode.as_str())).await?;
                return Ok(send(&mut writing, &Answer::of(status)).await?);
            }
            None => "there is no status".to_owned(),
        },
        Ok(Request::Top) => match top(sources).await {
            Ok(Some(line)) => return Ok(send_all(&mut writing, &line).await?),
            Ok(None) => "nothing is counted".to_owned(),
            Err(error) => error.to_string(),
        },
        Ok(Request::Explain(text)) => match text.parse() {
            Ok(question) => match answer(question, sources).await {
                Ok(answer) => {
                    let line = move || {
                        let (status, text) = (answer.verdict.exit_status(), answer.to_string());
                        json_line(&Answer { status: Some(status), text: Some(text), answer })
                    };
                    return Ok(send_all(&mut writing, &run_blocking(line).await??).await?);
                }
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        },
        Err(error) => format!("not a request: {error}"),
    };
    Ok(send(&mut writing, &json!({"error": refused})).await?)
}

/// Returns the line with the answer to `switchyard top`, which all get who ask within a moment;
/// `None` if nothing is counted.
async fn top(sources: &Sources) -> Result<Option<Arc<[u8]>>, ServerError> {
    let counting = sources.flows.clone().zip(sources.top.clone());
    let Some((flows, top)) = counting else { return Ok(None) };
    let shared = Arc::clone(&top);
    let mut last = shared.last.lock().await;
    if let Some((at, line)) = &*last
        && at.elapsed() < LEAST
    {
        return Ok(Some(Arc::clone(line)));
    }
    let programmed = ask(&sources.engine, Programmed::of).await?;
    let history = Arc::clone(&sources.history);
    let answer = move || {
        let answer = Top::new(programmed, &top, &history, &flows);
        json_line(&Answer::of(answer))
    };
    let line: Arc<[u8]> = run_blocking(answer).await??.into();
    *last = Some((Instant::now(), Arc::clone(&line)));
    Ok(Some(line))
}

/// The answer as a line has it.
#[derive(Serialize)]
struct Answer<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    answer: T,
}

impl<T> Answer<T> {
    /// An answer without text.
    fn of(answer: T) -> Self {
        Self { status: None, text: None, answer }
    }
}

/// Sends the Services, a few at a time, and all else that is known if it is the `whole` snapshot.
async fn snapshot(
    to: &mut (impl AsyncWriteExt + Unpin),
    sources: &Sources,
    is_whole: bool,
) -> Result<(), ServerError> {
    let Sources { engine, .. } = sources;
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
            let whole = |name| Known::service(known, name, &|_| true);
            part.iter().filter_map(whole).collect::<Vec<_>>()
        };
        for service in ask(engine, read).await? {
            send(to, &Line::service(service)).await?;
            count += 1;
        }
    }
    let is_settled = ask(engine, |known: &Tracker| known.transition().is_empty()).await?;
    if is_whole {
        send_rest(to, sources).await?;
    }
    Ok(send(to, &Line::End { services: count, is_settled }).await?)
}

/// Sends what a snapshot has beside the Services.
async fn send_rest(
    to: &mut (impl AsyncWriteExt + Unpin),
    sources: &Sources,
) -> Result<(), ServerError> {
    for sync in sources.history.syncs() {
        send(to, &Line::Sync(Box::new(sync))).await?;
    }
    if let Some(top) = sources.top.clone() {
        let read = move || {
            let mut lines = kernel::read(&top.dumps, |most| top.backend.dump(most));
            lines.push(Line::Metrics(top.metrics.exposition(&top.status)));
            lines
        };
        let lines = match timeout(TABLES, run_blocking(read)).await {
            Ok(lines) => lines?,
            Err(_) => {
                let text = format!("# not read within {} s\n", TABLES.as_secs());
                vec![Line::Kernel { table: "tables and metrics".to_owned(), text }]
            }
        };
        for line in lines {
            send(to, &line).await?;
        }
    }
    Ok(())
}
