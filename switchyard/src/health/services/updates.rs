//! The Services whose health is to be served, as an engine syncs them.

use std::sync::Arc;

use switchyard_core::runner::{EngineEvent, Observer};
use tokio::sync::watch;

use super::HealthChecks;

/// Sends the Services whose health is to be served, after each sync, whether or not they changed.
#[derive(Debug, Default)]
pub struct HealthCheckUpdates(watch::Sender<Arc<HealthChecks>>);

impl HealthCheckUpdates {
    /// Returns a receiver, for [`ServiceHealthServers::run`](super::ServiceHealthServers::run).
    pub fn receiver(&self) -> watch::Receiver<Arc<HealthChecks>> {
        self.0.subscribe()
    }
}

impl Observer for HealthCheckUpdates {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let EngineEvent::Synced(outcome) = event else { return };
        let change = &outcome.change;
        self.0.send_modify(|wanted| {
            if change.health_checks_changed() || change.node_changed() || change.is_resync() {
                let state = change.after();
                *wanted = Arc::new(HealthChecks {
                    checks: state.health_checks.clone(),
                    addresses: state.node.health_check_addresses.clone(),
                });
            }
        });
    }
}
