//! Node ports on `[::1]`, which no kernel routes: sockets, which follow what the engine syncs
//! without holding it up.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    future::pending,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use switchyard_core::{
    error::ErrorChain,
    model::ServicePortId,
    proxier::DegradedPort,
    runner::{EngineEvent, Observer},
    state::ResolvedServicePort,
};
use switchyard_userspace::LoopbackNodePorts;
use tokio::{
    sync::{Notify, watch},
    time,
};

use crate::localhost::Node;

/// The time after which a socket is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);

/// Service ports with node ports that syncs have changed, as they are now, until they are taken:
/// one entry for each, however long that takes.
#[derive(Default)]
pub(crate) struct SyncedNodePorts {
    changed: Mutex<HashMap<ServicePortId, Option<Arc<ResolvedServicePort>>>>,
    arrived: Notify,
}

impl SyncedNodePorts {
    async fn next(&self) -> Vec<(ServicePortId, Option<Arc<ResolvedServicePort>>)> {
        self.arrived.notified().await;
        mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
            .into_iter()
            .collect()
    }
}

impl Observer for SyncedNodePorts {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let EngineEvent::Synced(outcome) = event else { return };
        let concerns = |port: &&Arc<ResolvedServicePort>| LoopbackNodePorts::concerns(port);
        let changed = outcome.change.ports().filter_map(|port| {
            let after = port.after.filter(concerns);
            (after.is_some() || port.before.is_some_and(|before| concerns(&before)))
                .then(|| (port.id.clone(), after.cloned()))
        });
        let mut waiting = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(changed);
        if !waiting.is_empty() {
            self.arrived.notify_one();
        }
    }
}

/// Serves node ports on `[::1]` whenever the configuration of the node asks for it. `report`
/// receives the number of open sockets, and the number of failures to open one since the last
/// report.
pub(crate) async fn serve(
    changes: Arc<SyncedNodePorts>,
    descriptors: usize,
    mut node: watch::Receiver<Node>,
    mut report: impl FnMut(usize, u64) + Send,
) -> Infallible {
    let mut sockets = LoopbackNodePorts::new(descriptors);
    let mut switch = Switch::Off;
    let mut reported = Reported::default();
    let mut retry = time::interval(RETRY);
    loop {
        let is_on = node.borrow_and_update().asked.serves_ipv6_localhost();
        let now = match is_on {
            false => {
                sockets.switch_off();
                Switch::Off
            }
            true => match sockets.switch_on() {
                Ok(()) => Switch::On,
                Err(error) => Switch::Failed(ErrorChain(&error).to_string()),
            },
        };
        switch.change(now);
        reported.report(&sockets, &mut report);
        tokio::select! {
            ports = changes.next() => sockets.change(ports),
            changed = node.changed() => if changed.is_err() {
                pending().await
            },
            _ = retry.tick() => sockets.retry(),
        }
    }
}

/// Whether there are sockets.
#[derive(Debug, PartialEq, Eq)]
enum Switch {
    Off,
    On,
    /// They should be there, but for this reason.
    Failed(String),
}

impl Switch {
    /// Logs a change, and returns whether there is one. A failure comes back in each turn.
    fn change(&mut self, now: Self) -> bool {
        let changes = *self != now;
        if changes {
            match &now {
                Self::Off => tracing::info!("Node ports are no longer served on [::1]"),
                Self::On => tracing::info!("Node ports are served on [::1], by sockets"),
                Self::Failed(why) => {
                    tracing::error!(err = why, "Node ports are not served on [::1]");
                }
            }
            *self = now;
        }
        changes
    }
}

/// The last report.
#[derive(Default)]
struct Reported {
    /// Service ports whose sockets cannot be opened.
    failed: HashSet<ServicePortId>,
    failures: u64,
}

impl Reported {
    fn report(&mut self, sockets: &LoopbackNodePorts, report: &mut impl FnMut(usize, u64)) {
        let failures = sockets.failures();
        report(sockets.open(), failures.saturating_sub(self.failures));
        self.failures = failures;
        let mut failed = HashSet::new();
        for DegradedPort { port, reason } in sockets.failed() {
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

#[cfg(test)]
mod tests {
    use super::Switch;

    #[test]
    fn the_sockets_are_logged_when_something_changes() {
        let mut switch = Switch::Off;
        let failed = |why: &str| Switch::Failed(why.to_owned());
        for (now, changes) in [
            (Switch::Off, false),
            (failed("no threads"), true),
            (failed("no threads"), false),
            (failed("no files"), true),
            (Switch::On, true),
            (Switch::On, false),
            (Switch::Off, true),
        ] {
            assert_eq!(switch.change(now), changes, "{switch:?}");
        }
    }
}
