//! The Service ports with a listener that has panicked.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use switchyard_core::{model::ServicePortId, proxier::DegradedPort};
use tokio::sync::Notify;

/// The Service ports with a listener whose task has panicked. Clones are one set.
#[derive(Clone, Debug, Default)]
pub struct Panicked(Arc<(Mutex<BTreeSet<ServicePortId>>, Notify)>);

impl Panicked {
    pub fn add(&self, port: ServicePortId) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        self.0.1.notify_one();
    }

    /// Waits until a Service port is added. For one waiting task at a time.
    pub async fn added(&self) {
        self.0.1.notified().await;
    }

    /// Takes all Service ports, with what is to be reported of them.
    pub fn take(&self) -> impl Iterator<Item = DegradedPort> + use<> {
        let ports = mem::take(&mut *self.0.0.lock().unwrap_or_else(PoisonError::into_inner));
        let reason = "its listener panicked, and is served again";
        ports.into_iter().map(move |port| DegradedPort { port, reason: reason.to_owned() })
    }
}
