//! The local socket: a line of JSON with a request, and lines with the answer.
//!
//! A client can only read. Few connections are answered at a time, each for a limited time, and a
//! snapshot is read from the engine in small parts, so that a client that hangs, or asks much,
//! keeps no sync waiting.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, Known, Question, explain},
    model::{Protocol, ServiceName},
    runner::{Audit, Input, Query},
    track::Tracker,
};
use switchyard_kernel::nftables::gates::NewFlow;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc::Sender, oneshot},
    task,
    time::{self, sleep, timeout, timeout_at},
};

use super::{
    feed::{self, Feeds},
    flows::FlowReader,
    history::{History, is_changed},
    kernel,
    names::NameReader,
    service_flows::LEAST,
    service_of,
    snapshot::{Line, VERSION},
    top::{Programmed, Top, TopSources},
};
use crate::{
    comparison::service::{self, Expected, TableReader},
    config::release,
    local_socket::{send, send_all},
    other_tables::{self, OtherTables},
    pace::Pace,
};

/// The longest wait for the engine, which a sync may keep busy.
pub const WAIT: Duration = Duration::from_secs(10);
/// The longest wait for a request.
const CLIENT: Duration = Duration::from_secs(5);
/// The longest wait for comparisons with the kernel's tables, and the most of them.
const COMPARISON: Duration = Duration::from_secs(3);
const COMPARISONS: usize = 3;
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
    /// The node and the Services of a snapshot.
    Services,
    /// The Services with their traffic, and the node.
    Top,
    /// The status of the proxy, as its page `/status` has it.
    Status,
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
    /// The sources of [`Top`]; `None` if that is not asked for.
    pub top: Option<Arc<TopSources>>,
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
            let whole = json!({"status": 0, "text": changes.to_string(), "answer": changes.syncs});
            return Ok(send(&mut writing, &whole).await?);
        }
        Ok(Request::Status) => match &sources.top {
            Some(top) => {
                let answer = json!({"answer": top.status.now(top.mode.as_str())});
                return Ok(send(&mut writing, &answer).await?);
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
        serde_json::to_vec(&Answer { answer })
    };
    let line = task::spawn_blocking(answer).await.map_err(|_| ServerError::Ended)?;
    let mut line = line.map_err(io::Error::from)?;
    line.push(b'\n');
    let line: Arc<[u8]> = line.into();
    *last = Some((Instant::now(), Arc::clone(&line)));
    Ok(Some(line))
}

/// The answer as a line has it.
#[derive(Serialize)]
struct Answer {
    answer: Top,
}

/// Answers a question, with what the kernel has.
async fn answer(question: Question, sources: &Sources) -> Result<Explanation, ServerError> {
    let Sources { engine, history, .. } = sources;
    let client = match &question {
        Question::Address { client, .. } => *client,
        Question::Service { .. } => None,
    };
    let Explained { mut answer, is_unsynced, is_synced, expected, addresses } =
        ask(engine, move |known| explained(&question, known)).await?;
    answer.last_change = history.last_change(answer.service.as_deref());
    history.show_ages(&mut answer, Timestamp::now());
    if is_unsynced {
        let failed = history.failure();
        answer.set_unsynced(failed.as_ref().map(|(at, why)| (&**at, &**why)));
    }
    let service = service_of(&answer).filter(|_| !answer.endpoints.is_empty());
    let comparing = async {
        match (expected, sources.tables.clone()) {
            (Some(expected), Some(tables)) => {
                compare(&mut answer, expected, tables, engine, history).await;
            }
            (_, None) if is_synced => audit(&mut answer, &sources.audits, engine).await,
            _ => {}
        }
    };
    let naming = async { sources.names.of(service.as_ref()?).await };
    let ((), names) = tokio::join!(comparing, naming);
    if let Some(names) = names {
        answer.set_names(&names.endpoints);
        answer.service_seconds = names.service_seconds;
    }
    if let Some(others) = sources.others.clone().filter(|_| answer.leads_somewhere()) {
        let flow = |(destination, protocol): (SocketAddr, Protocol)| NewFlow {
            source: client,
            destination,
            protocol: protocol.number(),
            is_translated: true,
        };
        let flows: Vec<NewFlow> = answer.used_endpoints().into_iter().map(flow).collect();
        let read = task::spawn_blocking(move || (others.closed(&flows), other_tables::unread()));
        let (closed, unread) = read.await.map_err(|_| ServerError::Ended)?;
        if let Some((closed, undecided)) = closed {
            answer.set_other_tables(closed, &addresses);
            answer.undecided_chains = undecided;
        }
        answer.unread_tables = unread;
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

/// An answer from what is known, and what is needed to add what the kernel has.
struct Explained {
    answer: Explanation,
    /// Whether the kernel lacks a change of the Service.
    is_unsynced: bool,
    /// Whether the kernel has all changes of the Service and of the node.
    is_synced: bool,
    /// The Service in the kernel; `None` if that lacks changes, or the answer is about no Service.
    expected: Option<Expected>,
    /// The addresses of the node.
    addresses: Vec<IpAddr>,
}

/// Answers a question on the engine's thread.
fn explained(question: &Question, known: &Tracker) -> Explained {
    let answer = explain(question, known);
    let addresses = Known::node(known).addresses;
    let Some(name) = service_of(&answer) else {
        return Explained {
            answer,
            is_unsynced: false,
            is_synced: false,
            expected: None,
            addresses,
        };
    };
    let transition = known.transition();
    let is_synced =
        !transition.ports().any(|port| port.id.name.service == name && is_changed(&port));
    let is_unsynced = transition.before().is_some() && !is_synced;
    let is_synced = transition.before().is_some() && is_synced && !transition.node_changed();
    let expected = if is_synced { Expected::new(&name, known) } else { None };
    Explained { answer, is_unsynced, is_synced, expected, addresses }
}

/// Has the backend compare what the kernel holds of the Service with what was programmed. Nothing
/// is added to the answer if the backend does not compare, or that takes long.
async fn audit(answer: &mut Explanation, pace: &Arc<Pace>, engine: &Sender<Input>) {
    let Some(name) = service_of(answer) else { return };
    let (pace, engine) = (Arc::clone(pace), engine.clone());
    let comparing = task::spawn_blocking(move || {
        pace.run(|| {
            let (result, compared) = oneshot::channel();
            // The client may have gone.
            let audit = Audit::new(name, move |found| drop(result.send(found)));
            engine.blocking_send(Input::Audit(audit)).ok()?;
            compared.blocking_recv().ok()
        })
    });
    match timeout(WAIT, comparing).await {
        Ok(Ok(Some(Some(Ok(Some(drift)))))) => answer.set_drift(&drift),
        Ok(Ok(Some(Some(Err(error))))) => {
            tracing::debug!(err = %ErrorChain(&error), "Failed to read what is programmed");
        }
        _ => {}
    }
}

/// Reads what the kernel does with the Service's packets. Nothing is added to the answer if that
/// takes long, or if a difference may come from a change that is not synced, or may be repaired.
async fn compare(
    answer: &mut Explanation,
    expected: Expected,
    tables: Arc<TableReader>,
    engine: &Sender<Input>,
    history: &History,
) {
    let Some(name) = service_of(answer) else { return };
    let (expected, end) = (Arc::new(expected), time::Instant::now() + COMPARISON);
    for _ in 0..COMPARISONS {
        let begun = Timestamp::now();
        let (tables, meant) = (Arc::clone(&tables), Arc::clone(&expected));
        let comparison = task::spawn_blocking(move || tables.compare(&meant));
        let Ok(Ok(compared)) = timeout_at(end, comparison).await else { return };
        let report = match compared {
            Some(Ok(report)) if report.classes > 0 => report,
            Some(Err(error)) => {
                tracing::debug!(err = %ErrorChain(error.as_ref()), "Failed to read the tables");
                return;
            }
            _ => return,
        };
        if report.is_equal() {
            return service::show(&report, answer);
        }
        let (name, meant) = (name.clone(), Arc::clone(&expected));
        let is_settled = move |known: &Tracker| {
            let transition = known.transition();
            !transition.node_changed()
                && !transition.ports().any(|port| is_changed(&port))
                && Expected::new(&name, known).as_ref() == Some(&*meant)
        };
        if !ask(engine, is_settled).await.unwrap_or(false) {
            return;
        }
        // Another program did it, and a sync that has ended since may have repaired it.
        if !history.has_synced_since(begun) {
            return service::show(&report, answer);
        }
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
            part.iter().filter_map(|name| Known::service(known, name)).collect::<Vec<_>>()
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
        let lines = match timeout(TABLES, task::spawn_blocking(read)).await {
            Ok(lines) => lines.map_err(|_| ServerError::Ended)?,
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
