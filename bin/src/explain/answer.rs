//! The answer to a question: what is known, how the kernel compares with it, and what others do.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, Known, Question, explain},
    model::Protocol,
    runner::{Audit, Input},
    track::Tracker,
};
use switchyard_kernel::nftables::gates::NewFlow;
use tokio::{
    sync::{mpsc::Sender, oneshot},
    task,
    time::{self, timeout, timeout_at},
};

use super::{
    history::{History, is_changed},
    service_of,
    sources::{ServerError, Sources, WAIT, ask, run_blocking},
};
use crate::{
    comparison::service::{self, Expected, TableReader},
    other_tables,
    pace::Pace,
};

/// The longest wait for comparisons with the kernel's tables, and the most of them.
const COMPARISON: Duration = Duration::from_secs(3);
const COMPARISONS: usize = 3;

/// Answers a question, with what the kernel has.
pub(super) async fn answer(
    question: Question,
    sources: &Sources,
) -> Result<Explanation, ServerError> {
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
    if let Some(others) = sources.others.clone().filter(|_| answer.leads_somewhere()) {
        let flow = |(destination, protocol): (SocketAddr, Protocol)| NewFlow {
            source: client,
            destination,
            protocol: protocol.number(),
            is_translated: true,
        };
        let flows: Vec<NewFlow> = answer.used_endpoints().into_iter().map(flow).collect();
        let (closed, unread) =
            run_blocking(move || (others.closed(&flows), other_tables::unread())).await?;
        if let Some((closed, undecided)) = closed {
            answer.set_other_tables(closed, &addresses);
            answer.undecided_chains = undecided;
        }
        answer.unread_tables = unread;
    }
    let flows = sources.flows.clone();
    let finish = move || {
        if let Some(names) = names {
            answer.set_names(&names.endpoints);
            answer.service_seconds = names.service_seconds;
        }
        if let Some(flows) = flows {
            flows.count(&mut answer);
        }
        answer
    };
    run_blocking(finish).await
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
    let transition = known.transition();
    // Nothing is programmed before the first sync.
    let name = service_of(&answer).filter(|_| transition.before().is_some());
    let is_unsynced = name.as_ref().is_some_and(|name| {
        transition.ports().any(|port| port.id.name.service == *name && is_changed(&port))
    });
    let is_synced = name.is_some() && !is_unsynced && !transition.node_changed();
    let expected = name.filter(|_| is_synced).and_then(|name| Expected::new(&name, known));
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
