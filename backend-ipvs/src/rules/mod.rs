//! The rules beneath: another backend does all but deliver.
//!
//! The nftables or the iptables backend is shown a state in which IPVS delivers what goes to a
//! pool. So it decides, as for itself, whom to masquerade, what to drop or refuse, and where
//! clients of the node are led elsewhere.

mod derive;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use switchyard_core::{
    model::{PerFamily, ServiceName, ServicePortId},
    proxier::{Drift, Mode, Monitor, Proxier, ProxierError, SyncReport},
    state::ResolvedServicePort,
    transition::{DerivedState, Transition},
};

use self::derive::{derive, here};
use crate::layout::addresses;

/// The backend beneath, and what it should hold.
pub(crate) struct Rules {
    proxier: Box<dyn Proxier>,
    derived: DerivedState,
    leaving: Leaving,
}

/// The endpoints that left Service ports while virtual servers may still have them.
pub(crate) type Leaving = BTreeMap<ServicePortId, BTreeSet<SocketAddr>>;

/// The inputs of the rules besides a transition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery<'a> {
    /// The families of which IPVS delivers everything.
    pub(crate) families: PerFamily<bool>,
    /// The addresses of `kube-ipvs0`. Of the other families, IPVS delivers the Service ports that
    /// have all their addresses there, and the rules translate what goes to the rest.
    pub(crate) bound: &'a BTreeSet<IpAddr>,
    /// Those of them to which packets may not come yet.
    pub(crate) late: &'a BTreeSet<IpAddr>,
    /// The addresses that are not on `kube-ipvs0` although Services have them.
    pub(crate) elsewhere: &'a BTreeSet<IpAddr>,
    /// Those of them at which nothing is served, nor refused.
    pub(crate) never_bound: &'a BTreeSet<IpAddr>,
}

impl Delivery<'_> {
    fn delivers(&self, port: &ResolvedServicePort) -> bool {
        let mut own = addresses::of_port(port, self.elsewhere).peekable();
        *self.families.get(port.id.family)
            || (own.peek().is_some()
                && own.all(|ip| self.bound.contains(&ip) && !self.late.contains(&ip)))
    }
}

impl Rules {
    pub(crate) fn new(proxier: Box<dyn Proxier>) -> Self {
        Self { proxier, derived: DerivedState::default(), leaving: Leaving::new() }
    }

    /// The mode whose rules these are.
    pub(crate) fn mode(&self) -> Mode {
        self.proxier.profile().mode
    }

    /// Has the rules know further endpoints that left.
    pub(crate) fn expect(&mut self, leaving: Leaving) {
        for (id, gone) in leaving.into_iter().filter(|(_, gone)| !gone.is_empty()) {
            self.leaving.entry(id).or_default().extend(gone);
        }
    }

    /// Makes the rules of the Service ports that have changed what they should be; of all if
    /// `is_full`. Endpoints that left are still known, until [`Rules::settle`] has succeeded.
    pub(crate) async fn sync(
        &mut self,
        change: &Transition<'_>,
        is_full: bool,
        delivery: Delivery<'_>,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        self.derived.follow_node(change);
        self.derived.follow_health_checks(change);
        let kept = change.ports().filter_map(|port| port.before.zip(port.after));
        self.expect(kept.map(|(before, after)| (after.id.clone(), gone(before, after))).collect());
        if is_full {
            self.set_all(change, delivery);
        } else {
            change.ports().for_each(|port| self.set(port.id, port.after, delivery));
        }
        self.commit(report).await
    }

    /// Makes the rules what they should be once IPVS delivers: those of all Service ports when it
    /// delivers something else than before, and those of which endpoints have left.
    pub(crate) async fn settle(
        &mut self,
        change: &Transition<'_>,
        is_full: bool,
        delivery: Delivery<'_>,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        if is_full {
            self.set_all(change, delivery);
        }
        let leaving = mem::take(&mut self.leaving);
        for id in leaving.keys() {
            self.set(id, change.after().service_ports.get(id), delivery);
        }
        let committed = self.commit(report).await;
        if committed.is_err() {
            self.leaving = leaving;
        }
        committed
    }

    /// Has the rules translate for these Service ports, until [`Rules::resume`].
    pub(crate) async fn translate(
        &mut self,
        ports: &[&Arc<ResolvedServicePort>],
        delivery: Delivery<'_>,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        ports.iter().for_each(|port| self.set_as(port, false, delivery));
        self.commit(report).await
    }

    /// Has IPVS deliver for these Service ports again.
    pub(crate) async fn resume(
        &mut self,
        ports: &[&Arc<ResolvedServicePort>],
        delivery: Delivery<'_>,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        ports.iter().for_each(|port| self.set(&port.id, Some(port), delivery));
        self.commit(report).await
    }

    fn set_all(&mut self, change: &Transition<'_>, delivery: Delivery<'_>) {
        let after = &change.after().service_ports;
        let known = self.derived.state().service_ports.keys();
        let gone: Vec<ServicePortId> =
            known.filter(|id| !after.contains_key(*id)).cloned().collect();
        gone.iter().for_each(|id| self.set(id, None, delivery));
        after.values().for_each(|port| self.set(&port.id, Some(port), delivery));
    }

    fn set(
        &mut self,
        id: &ServicePortId,
        port: Option<&Arc<ResolvedServicePort>>,
        delivery: Delivery<'_>,
    ) {
        match port {
            Some(port) => self.set_as(port, delivery.delivers(port), delivery),
            None => self.derived.set_port(id, None),
        }
    }

    fn set_as(&mut self, port: &ResolvedServicePort, is_delivered: bool, delivery: Delivery<'_>) {
        let leaving = self.leaving.get(&port.id).into_iter().flatten().copied();
        let mut derived = derive(port, leaving, is_delivered, delivery.elsewhere);
        if !self.proxier.profile().capabilities.has_affinity() {
            derived.affinity = None;
        }
        derived.frontends.retain(|f| addresses::is_served(f.at, delivery.never_bound));
        self.derived.set_port(&port.id, Some(Arc::new(derived)));
    }

    /// Whether the rules of a Service port are known to be what they should be.
    pub(crate) fn holds(&self, id: &ServicePortId) -> bool {
        let transition = self.derived.transition();
        transition.before().is_some() && !transition.has_port(id)
    }

    async fn commit(&mut self, report: &mut SyncReport) -> Result<(), ProxierError> {
        if self.derived.is_due() {
            match self.proxier.sync(&self.derived.transition()).await {
                Ok(done) => {
                    self.derived.mark_synced(done.requeue_after);
                    report.add(done);
                }
                Err(error) => {
                    self.derived.request_resync();
                    return Err(error);
                }
            }
        }
        let requeue_after = self.derived.requeue_after();
        report.requeue_after = report.requeue_after.into_iter().chain(requeue_after).min();
        Ok(())
    }

    /// Compares the rules of a Service with what was synced.
    pub(crate) fn compare(&mut self, service: &ServiceName) -> Result<Option<Drift>, ProxierError> {
        self.proxier.compare(self.derived.state(), service)
    }

    pub(crate) async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.derived.request_resync();
        self.proxier.clean_up().await
    }

    pub(crate) fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.proxier.monitor()
    }
}

/// The endpoints on the node that have left a Service port, also for the flows that they have.
fn gone(before: &ResolvedServicePort, after: &ResolvedServicePort) -> BTreeSet<SocketAddr> {
    let pools = [&before.cluster, &before.local, &before.draining];
    let known = pools.into_iter().flat_map(|pool| here(pool)).map(|endpoint| endpoint.address);
    known.filter(|address| !after.serves(*address)).collect()
}
