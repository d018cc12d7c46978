//! The backend, open: a forwarder, and the intake that leads traffic to it.

use async_trait::async_trait;
use switchyard_core::{
    model::IpFamily,
    proxier::{Abilities, Mode, Monitor, Proxier, ProxierError, SyncReport},
    state::{LocalPods, NodeState},
    transition::Transition,
};
use switchyard_forwarder::{ABILITIES, Forwarder, LocalClients};

use crate::intake::Intake;

/// userspace mode, open.
pub(crate) struct UserspaceProxier {
    forwarder: Forwarder,
    intake: Box<dyn Intake>,
}

impl UserspaceProxier {
    pub(crate) fn new(forwarder: Forwarder, intake: Box<dyn Intake>) -> Self {
        Self { forwarder, intake }
    }
}

#[async_trait]
impl Proxier for UserspaceProxier {
    fn mode(&self) -> Mode {
        Mode::USERSPACE
    }

    fn abilities(&self) -> Abilities {
        self.intake.abilities(ABILITIES)
    }

    /// First the forwarder knows the endpoints, then traffic reaches it, and last of all it forgets
    /// Service ports.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        if change.node_changed() || change.before().is_none() {
            self.forwarder.set_local_clients(local_clients(&change.after().node));
        }
        for port in change.ports().filter_map(|change| change.after) {
            self.forwarder.serve(port);
        }
        let report = self.intake.sync(change, &self.forwarder).await?;
        let gone = change.ports().filter(|change| change.after.is_none());
        gone.for_each(|change| self.forwarder.remove(change.id));
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.intake.clean_up().await
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.intake.monitor()
    }
}

/// The pods of this node, as far as their addresses show them: a socket does not know the interface that
/// a connection came in through.
fn local_clients(node: &NodeState) -> LocalClients {
    let network = |family| match node.local_pods.get(family) {
        Some(LocalPods::Source(net)) => Some(*net),
        _ => None,
    };
    LocalClients { networks: IpFamily::ALL.into_iter().filter_map(network).collect() }
}
