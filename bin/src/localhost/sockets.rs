//! The sockets at `[::1]`, which follow what the engine syncs without holding it up.

use std::{collections::HashSet, convert::Infallible, future::pending, sync::Arc, time::Duration};

use switchyard_core::{
    error::Chain,
    model::ServicePortId,
    proxier::Skipped,
    runner::{Observer, SyncOutcome},
    state::ResolvedServicePort,
};
use switchyard_observability::metrics::Metrics;
use switchyard_userspace::LoopbackNodePorts;
use tokio::{
    sync::{mpsc, watch},
    time,
};

/// How soon a socket is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);

/// Service ports that have changed, as they are now.
type Changed = Vec<(ServicePortId, Option<Arc<ResolvedServicePort>>)>;

/// Sends the Service ports with node ports that each sync changes; nothing without a receiver.
pub struct SyncedNodePorts(Option<mpsc::UnboundedSender<Changed>>);

/// Receives what [`SyncedNodePorts`] sends.
pub struct NodePorts(mpsc::UnboundedReceiver<Changed>);

/// Returns the two ends of a channel of Service ports with node ports, in which nothing arrives if it is
/// not `used`.
pub fn channel(used: bool) -> (SyncedNodePorts, NodePorts) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (SyncedNodePorts(used.then_some(sender)), NodePorts(receiver))
}

impl Observer for SyncedNodePorts {
    fn synced(&self, outcome: &SyncOutcome<'_>) {
        let Some(sender) = &self.0 else { return };
        let concerns = |port: &&Arc<ResolvedServicePort>| LoopbackNodePorts::concerns(port);
        let changed = outcome.change.ports().filter_map(|port| {
            let after = port.after.filter(concerns);
            (after.is_some() || port.before.is_some_and(|before| concerns(&before)))
                .then(|| (port.id.clone(), after.cloned()))
        });
        let changed: Changed = changed.collect();
        if !changed.is_empty() {
            // The program ends by itself when its tasks have ended.
            let _ = sender.send(changed);
        }
    }
}

/// Serves node ports on `[::1]` whenever `is_on` is true.
pub async fn serve(
    NodePorts(mut changes): NodePorts,
    mut is_on: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
) -> Infallible {
    let mut sockets = LoopbackNodePorts::default();
    let mut reported = Reported::default();
    let mut retry = time::interval(RETRY);
    loop {
        if !*is_on.borrow_and_update() {
            sockets.switch_off();
        } else if let Err(error) = sockets.switch_on() {
            tracing::error!(err = %Chain(&error), "Node ports are not served on [::1]");
        }
        reported.report(&sockets, &metrics);
        tokio::select! {
            changed = changes.recv() => match changed {
                Some(ports) => sockets.change(ports),
                None => pending().await,
            },
            changed = is_on.changed() => if changed.is_err() {
                pending().await
            },
            _ = retry.tick() => sockets.retry(),
        }
    }
}

/// What was reported.
#[derive(Default)]
struct Reported {
    /// Service ports whose sockets cannot be opened.
    failed: HashSet<ServicePortId>,
    failures: u64,
}

impl Reported {
    fn report(&mut self, sockets: &LoopbackNodePorts, metrics: &Metrics) {
        let failures = sockets.failures();
        metrics.localhost_listeners(sockets.open(), failures.saturating_sub(self.failures));
        self.failures = failures;
        let mut failed = HashSet::new();
        for Skipped { port, reason } in sockets.failed() {
            // Once, until the socket is open.
            if !self.failed.contains(&port) {
                tracing::warn!(
                    service_port = port.to_string(),
                    reason,
                    "A node port is not served on [::1]"
                );
            }
            failed.insert(port);
        }
        self.failed = failed;
    }
}
