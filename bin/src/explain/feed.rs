//! The feed: what the kernel holds, and each change of it, as lines of JSON.
//!
//! ```text
//! engine's thread ──► queue of a reader, bounded ──► reader's task ──► socket
//! ```
//!
//! The engine's thread only adds references to queues, and never waits. The reader of a full queue
//! gets what is in it and the end.

use std::{
    io, mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use jiff::Timestamp;
use serde::Serialize;
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, ServicePortId},
    proxier::{Drift, ExternalChange, SyncReport},
    runner::{EngineEvent, Observer},
    state::ResolvedServicePort,
    track::{Problem, Tracker},
    transition::Transition,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    sync::{
        OwnedSemaphorePermit, Semaphore,
        mpsc::{self, UnboundedReceiver, UnboundedSender},
    },
};

use super::history::{in_milliseconds, is_changed};
use crate::{
    config::release,
    local_socket::{ProblemLine, send_all},
};

/// The version of the format.
const VERSION: u32 = 1;
/// The most feeds at a time.
const MOST: usize = 3;
/// The most that waits for a reader, in bytes, roughly.
const MOST_WAITING: usize = 64 << 20;
/// The most problems that a feed begins with.
const MOST_PROBLEMS: usize = 1024;
/// The bytes that are sent at a time while more wait.
const BLOCK: usize = 64 << 10;

/// A line of a feed, which `docs/feed.schema.json` describes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Line<'a> {
    /// The first line.
    Feed { version: u32, program: &'a str, node: &'a str },
    /// The Service port is programmed so.
    Set(&'a ResolvedServicePort),
    /// The Service port is gone.
    Delete(&'a ServicePortId),
    /// Everything was sent that is programmed.
    #[serde(rename_all = "camelCase")]
    Synced { service_ports: usize },
    /// A sync has ended.
    Sync(SyncLine<'a>),
    /// A value of an object cannot be used, or the kernel refuses it.
    Problem(ProblemLine<'a>),
    /// A Service port is served otherwise than configured, or the node is not as it should be.
    #[serde(rename_all = "camelCase")]
    Report { service_port: Option<&'a ServicePortId>, reason: &'a str },
    /// Another program has changed what was programmed.
    Drift { at: String, by: Option<&'a str> },
    /// The last line.
    End { reason: &'a str },
}

/// A sync, and what it did.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SyncLine<'a> {
    at: String,
    milliseconds: f64,
    /// The time since the oldest change arrived.
    latency_milliseconds: Option<f64>,
    error: Option<String>,
    /// Whether everything was compared with the kernel.
    full: bool,
    /// The number of Service ports that differ.
    changed: usize,
    /// Objects of the kernel.
    added: usize,
    removed: usize,
    repaired: usize,
    /// Some of what was repaired.
    repairs: &'a [String],
    /// Families that the kernel refuses, whose Service ports are not programmed.
    left_out: Vec<IpFamily>,
}

/// An item that waits for a reader. Values are shared with the state until they change.
#[derive(Clone)]
enum Item {
    Set(Arc<ResolvedServicePort>),
    Delete(ServicePortId),
    Line(Arc<[u8]>),
}

impl Item {
    /// Returns the bytes that the item may take once nothing else needs the value.
    fn size(&self) -> usize {
        let more = match self {
            Self::Set(port) => {
                let sources = port.frontends.iter().flat_map(|one| &one.allowed_sources);
                let sources: usize = sources.map(|sources| sources.len()).sum();
                let pools = [&port.cluster, &port.local, &port.draining].map(|pool| pool.len());
                port.frontends.len() + sources + pools.iter().sum::<usize>()
            }
            Self::Delete(_) => 1,
            Self::Line(line) => line.len() / 64,
        };
        256 + 64 * more
    }
}

/// A reader, on the engine's side.
struct Reader {
    queue: UnboundedSender<Item>,
    waiting: Arc<AtomicUsize>,
}

impl Reader {
    /// Whether the reader keeps up. The changes of one sync count once they are all queued: their
    /// values are the state's own, which the reader has had no time to take.
    fn keeps_up(&self) -> bool {
        self.waiting.load(Relaxed) <= MOST_WAITING
    }

    /// Returns whether the reader goes on.
    fn push(&self, item: &Item) -> bool {
        self.waiting.fetch_add(item.size(), Relaxed);
        self.queue.send(item.clone()).is_ok()
    }
}

/// The readers of an engine's feed.
pub struct Feeds {
    readers: Mutex<Vec<Reader>>,
    slots: Arc<Semaphore>,
}

impl Default for Feeds {
    fn default() -> Self {
        Self { readers: Mutex::default(), slots: Arc::new(Semaphore::new(MOST)) }
    }
}

/// A feed, on the reader's side.
pub(super) struct Feed {
    node: String,
    /// The Service ports that are programmed at the beginning.
    state: Vec<Arc<ResolvedServicePort>>,
    /// The problems that there are at the beginning.
    problems: Vec<Problem>,
    queue: UnboundedReceiver<Item>,
    waiting: Arc<AtomicUsize>,
    slot: OwnedSemaphorePermit,
}

impl Feeds {
    /// Opens a feed, on the engine's thread; `None` if there are too many.
    pub(super) fn open(&self, known: &Tracker) -> Option<Feed> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        let before = known.transition().before();
        let state = before.iter().flat_map(|before| before.ports()).cloned().collect();
        let (sender, queue) = mpsc::unbounded_channel();
        let waiting = Arc::<AtomicUsize>::default();
        let reader = Reader { queue: sender, waiting: Arc::clone(&waiting) };
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        // On a quiet node nothing is pushed, which would find out who is gone.
        readers.retain(|reader| !reader.queue.is_closed());
        readers.push(reader);
        drop(readers);
        let node = switchyard_core::explain::Known::node(known).name;
        let problems = known.problems().take(MOST_PROBLEMS).cloned().collect();
        Some(Feed { node, state, problems, queue, waiting, slot })
    }
}

impl Observer for Feeds {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.is_empty() {
            return;
        }
        readers.retain(Reader::keeps_up);
        let mut push = |item: Item| readers.retain(|reader| reader.push(&item));
        let push_line = |line: Line<'_>, push: &mut dyn FnMut(Item)| {
            // What is serialized has names for all keys.
            if let Ok(line) = encoded(&line) {
                push(Item::Line(line.into()));
            }
        };
        match event {
            EngineEvent::Synced(outcome) => {
                let mut changed = 0;
                for port in outcome.change.ports().filter(is_changed) {
                    changed += 1;
                    push(match port.after {
                        Some(after) => Item::Set(Arc::clone(after)),
                        None => Item::Delete(port.id.clone()),
                    });
                }
                let degraded =
                    outcome.degraded_by_backend.iter().map(|one| (Some(&one.port), &one.reason));
                let warnings = outcome.report.warnings.iter().map(|warning| (None, warning));
                for (service_port, reason) in degraded.chain(warnings) {
                    push_line(Line::Report { service_port, reason }, &mut push);
                }
                let line = SyncLine {
                    latency_milliseconds: outcome.latency.map(|time| time.as_secs_f64() * 1000.0),
                    ..sync_line(&outcome.change, changed, outcome.duration, outcome.report)
                };
                push_line(Line::Sync(line), &mut push);
            }
            EngineEvent::SyncFailed { error, change, duration } => {
                let (changed, report) =
                    (change.ports().filter(is_changed).count(), SyncReport::default());
                let line = SyncLine {
                    error: Some(ErrorChain(*error).to_string()),
                    ..sync_line(change, changed, *duration, &report)
                };
                push_line(Line::Sync(line), &mut push);
            }
            EngineEvent::Rejected(problem) => {
                push_line(Line::Problem((*problem).into()), &mut push);
            }
            EngineEvent::ExternallyChanged(ExternalChange::Changed { by }) => {
                push_line(
                    Line::Drift { at: in_milliseconds(Timestamp::now()), by: by.as_deref() },
                    &mut push,
                );
            }
            _ => {}
        }
    }
}

fn sync_line<'a>(
    change: &Transition<'_>,
    changed: usize,
    duration: std::time::Duration,
    report: &'a SyncReport,
) -> SyncLine<'a> {
    let Drift { objects, examples } = &report.drift;
    SyncLine {
        at: in_milliseconds(Timestamp::now()),
        milliseconds: duration.as_secs_f64() * 1000.0,
        latency_milliseconds: None,
        error: None,
        full: change.is_full(),
        changed,
        added: report.added,
        removed: report.removed,
        repaired: *objects,
        repairs: examples,
        left_out: IpFamily::ALL.into_iter().filter(|family| !change.programs(*family)).collect(),
    }
}

fn encoded(line: &Line<'_>) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends the feed until the client closes the connection or its sending side, or is too slow.
pub(super) async fn serve(
    Feed { node, state, problems, mut queue, waiting, slot: _slot }: Feed,
    mut from: impl AsyncRead + Unpin,
    to: &mut (impl AsyncWriteExt + Unpin),
) -> io::Result<()> {
    let mut block = encoded(&Line::Feed { version: VERSION, program: release::OURS, node: &node })?;
    let service_ports = state.len();
    for port in state {
        block.extend(encoded(&Line::Set(&port))?);
        if block.len() >= BLOCK {
            send_all(to, &mem::take(&mut block)).await?;
        }
    }
    for problem in &problems {
        block.extend(encoded(&Line::Problem(problem.into()))?);
    }
    block.extend(encoded(&Line::Synced { service_ports })?);
    let mut ended =
        std::pin::pin!(async { while from.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {} });
    loop {
        let item = match queue.try_recv() {
            Ok(item) => Some(item),
            Err(_) => {
                send_all(to, &mem::take(&mut block)).await?;
                tokio::select! {
                    () = &mut ended => return Ok(()),
                    item = queue.recv() => item,
                }
            }
        };
        let Some(item) = item else { break };
        waiting.fetch_sub(item.size(), Relaxed);
        match &item {
            Item::Set(port) => block.extend(encoded(&Line::Set(port))?),
            Item::Delete(id) => block.extend(encoded(&Line::Delete(id))?),
            Item::Line(line) => block.extend_from_slice(line),
        }
        if block.len() >= BLOCK {
            send_all(to, &mem::take(&mut block)).await?;
        }
    }
    block.extend(encoded(&Line::End { reason: "the reader is too slow; connect again" })?);
    send_all(to, &block).await
}

#[cfg(test)]
mod tests;
