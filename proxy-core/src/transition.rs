//! The step from the state that was synced last to the one that a backend should make true.
//!
//! Core remembers what was synced, so that no backend has to: of everything that has changed since
//! the last successful sync, the tracker keeps the value from then (`Unsynced`); everything else
//! is in both states. A [`Transition`] shows both sides without a second copy of either.

use std::{
    collections::{BTreeMap, HashMap, btree_map},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    model::{IpFamily, PerFamily, ServiceName, ServicePortId},
    state::{HealthCheck, NodeState, ResolvedServicePort, State},
};

/// The changes since the last successful sync, with the values from then.
#[derive(Debug)]
pub(crate) struct Unsynced {
    /// The Service ports that were added, changed or removed, as they were synced; `None` for ports
    /// that were not there.
    ports: BTreeMap<ServicePortId, Option<Arc<ResolvedServicePort>>>,
    /// The node's settings as they were synced, if they have changed.
    node: Option<NodeState>,
    /// The health checks as they were synced, if one has changed.
    health_checks: Option<HashMap<ServiceName, HealthCheck>>,
    resync: bool,
    /// Whether the resync is about nothing but what the backend's monitor has reported.
    repair: bool,
    checkup: bool,
    is_first: bool,
    /// The families that are not to be programmed now.
    left_out: PerFamily<bool>,
    /// The number of changes that were noted.
    changes: u64,
}

impl Default for Unsynced {
    /// Returns the value before the first sync.
    fn default() -> Self {
        Self {
            ports: BTreeMap::new(),
            node: None,
            health_checks: None,
            resync: true,
            repair: false,
            checkup: false,
            is_first: true,
            left_out: PerFamily::default(),
            changes: 0,
        }
    }
}

impl Unsynced {
    /// Notes that a Service port has changed, whose value was `before` until now.
    pub(crate) fn note_port(
        &mut self,
        id: ServicePortId,
        before: Option<Arc<ResolvedServicePort>>,
    ) {
        self.changes += 1;
        // Only the first of several values was synced.
        if let btree_map::Entry::Vacant(entry) = self.ports.entry(id) {
            entry.insert(before);
        }
    }

    /// Notes that the node's settings have changed, which were `before` until now.
    pub(crate) fn note_node(&mut self, before: NodeState) {
        self.changes += 1;
        self.node.get_or_insert(before);
    }

    /// Notes that a health check is about to change.
    pub(crate) fn note_health_checks(&mut self, before: &HashMap<ServiceName, HealthCheck>) {
        self.changes += 1;
        self.health_checks.get_or_insert_with(|| before.clone());
    }

    /// The number of changes since the last successful sync.
    #[cfg(feature = "runner")]
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Asks for a full resync at the next sync.
    pub(crate) fn request_resync(&mut self) {
        (self.resync, self.repair) = (true, false);
    }

    /// Asks for a repair of what the backend's monitor has reported.
    pub(crate) fn request_repair(&mut self) {
        self.repair |= !self.resync;
        self.resync = true;
    }

    /// Asks for a look at what no monitor watches.
    pub(crate) fn request_checkup(&mut self) {
        self.checkup = true;
    }

    /// Notes that a sync has succeeded.
    pub(crate) fn mark_synced(&mut self) {
        let left_out = self.left_out;
        *self = Self { resync: false, is_first: false, left_out, ..Self::default() };
    }

    pub(crate) fn is_programmed(&self, family: IpFamily) -> bool {
        !self.left_out.get(family)
    }

    /// Sets whether a family is to be programmed; returns whether that is a change. A family that
    /// was left out is compared.
    pub(crate) fn set_programmed(&mut self, family: IpFamily, is_programmed: bool) -> bool {
        let left_out = self.left_out.get_mut(family);
        if *left_out != is_programmed {
            return false;
        }
        *left_out = !is_programmed;
        if is_programmed {
            self.request_resync();
        }
        self.changes += 1;
        true
    }
}

/// The task of one sync: the state to make true, the state that was synced before, and what
/// differs between the two.
///
/// A sync that fails keeps its transition: the next one covers both.
#[derive(Clone, Copy, Debug)]
pub struct Transition<'a> {
    after: &'a State,
    unsynced: &'a Unsynced,
}

impl<'a> Transition<'a> {
    pub(crate) fn new(after: &'a State, unsynced: &'a Unsynced) -> Self {
        Self { after, unsynced }
    }

    /// The state that the kernel should hold after the sync.
    pub fn after(&self) -> &'a State {
        self.after
    }

    /// The state that was synced last; `None` if no sync has succeeded yet.
    ///
    /// The kernel holds that state, unless [`Transition::is_resync`] is set: then a sync has failed
    /// since and may have done a part, another program may have changed something, or the kernel
    /// has not been read for a while.
    pub fn before(&self) -> Option<Before<'a>> {
        (!self.unsynced.is_first).then_some(Before { transition: *self })
    }

    /// Whether the backend should read what the kernel holds, whichever program put it there, and
    /// change what differs from [`Transition::after`], instead of trusting [`Transition::before`].
    /// Set at the first sync, after a failure, on a period, and after changes by other programs.
    pub fn is_resync(&self) -> bool {
        self.unsynced.resync
    }

    /// Whether a resync is about nothing but what the backend's monitor has reported. A backend
    /// that knows all of that may repair it, and trust [`Transition::before`] otherwise.
    pub fn is_repair(&self) -> bool {
        self.unsynced.repair
    }

    /// Whether everything is to be compared, and not what other programs have changed alone.
    pub fn is_full(&self) -> bool {
        self.unsynced.resync && !self.unsynced.repair
    }

    /// Whether the backend should begin to compare what its monitor does not watch, in parts, by
    /// this sync and those that it asks for. Set on a period, by itself or beside changes.
    pub fn is_checkup(&self) -> bool {
        self.unsynced.checkup
    }

    /// The Service ports that were added, changed or removed, in order of their ids.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = PortChange<'a>> + use<'a> {
        let after = self.after;
        self.unsynced.ports.iter().map(|(id, before)| PortChange {
            id,
            before: before.as_ref(),
            after: after.service_ports.get(id),
        })
    }

    /// Whether a Service port is among [`Transition::ports`].
    pub fn has_port(&self, id: &ServicePortId) -> bool {
        self.unsynced.ports.contains_key(id)
    }

    /// Whether a family is to be programmed, which it is unless the kernel has refused everything
    /// of it ([`ProxierError::of_parts`](crate::proxier::ProxierError::of_parts)). What the kernel
    /// holds of another family stays, and is not what [`Transition::before`] has of the family.
    pub fn programs(&self, family: IpFamily) -> bool {
        self.unsynced.is_programmed(family)
    }

    /// Whether [`State::node`] has changed.
    pub fn node_changed(&self) -> bool {
        self.unsynced.node.is_some()
    }

    /// Whether [`State::health_checks`] has changed.
    pub fn health_checks_changed(&self) -> bool {
        self.unsynced.health_checks.is_some()
    }

    /// Whether there is nothing to sync: nothing has changed, and no resync is asked for. There may
    /// be something to look at.
    pub fn is_empty(&self) -> bool {
        let Unsynced { ports, node, health_checks, resync, .. } = self.unsynced;
        ports.is_empty() && node.is_none() && health_checks.is_none() && !resync
    }
}

/// A Service port that a sync adds, changes or removes.
#[derive(Clone, Copy, Debug)]
pub struct PortChange<'a> {
    /// The Service port's id.
    pub id: &'a ServicePortId,
    /// The Service port as it was synced last; `None` if it was not there.
    pub before: Option<&'a Arc<ResolvedServicePort>>,
    /// The Service port as it should be; `None` if it is gone.
    pub after: Option<&'a Arc<ResolvedServicePort>>,
}

/// The state that was synced last, seen through a [`Transition`].
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    transition: Transition<'a>,
}

impl<'a> Before<'a> {
    /// Returns a Service port, or `None` if it was not there.
    pub fn port(&self, id: &ServicePortId) -> Option<&'a Arc<ResolvedServicePort>> {
        let Transition { after, unsynced } = self.transition;
        match unsynced.ports.get(id) {
            Some(before) => before.as_ref(),
            None => after.service_ports.get(id),
        }
    }

    /// All Service ports, in any order.
    pub fn ports(&self) -> impl Iterator<Item = &'a Arc<ResolvedServicePort>> + use<'a> {
        let Transition { after, unsynced } = self.transition;
        let unchanged = after.service_ports.iter();
        let unchanged = unchanged.filter(|(id, _)| !unsynced.ports.contains_key(*id));
        unchanged.map(|(_, port)| port).chain(unsynced.ports.values().flatten())
    }

    /// The node's settings.
    pub fn node(&self) -> &'a NodeState {
        let Transition { after, unsynced } = self.transition;
        unsynced.node.as_ref().unwrap_or(&after.node)
    }

    /// The health checks.
    pub fn health_checks(&self) -> &'a HashMap<ServiceName, HealthCheck> {
        let Transition { after, unsynced } = self.transition;
        unsynced.health_checks.as_ref().unwrap_or(&after.health_checks)
    }
}

/// A state that a backend derives from the one that it is shown, for a backend beneath it; with
/// what has changed since it was synced last.
///
/// ```
/// use switchyard_core::{proxier::{Proxier, ProxierError}, transition::{DerivedState, Transition}};
///
/// /// Syncs everything but UDP ports by another backend.
/// async fn sync_without_udp(
///     derived: &mut DerivedState,
///     change: &Transition<'_>,
///     beneath: &mut impl Proxier,
/// ) -> Result<(), ProxierError> {
///     derived.follow_node(change);
///     for port in change.ports() {
///         let is_udp = port.id.name.protocol.as_str() == "UDP";
///         derived.set_port(port.id, port.after.filter(|_| !is_udp).cloned());
///     }
///     if derived.is_due() {
///         let report = beneath.sync(&derived.transition()).await?;
///         derived.mark_synced(report.requeue_after);
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, Default)]
pub struct DerivedState {
    state: State,
    unsynced: Unsynced,
    /// The time when the backend beneath asked to be synced again.
    due: Option<Instant>,
}

impl DerivedState {
    /// Adds, changes or (with `None`) removes a Service port. The same value again is no change.
    pub fn set_port(&mut self, id: &ServicePortId, port: Option<Arc<ResolvedServicePort>>) {
        if self.state.service_ports.get(id) == port.as_ref() {
            return;
        }
        let before = match port {
            Some(port) => self.state.service_ports.insert(id.clone(), port),
            None => self.state.service_ports.remove(id),
        };
        self.unsynced.note_port(id.clone(), before);
    }

    /// Takes the node's settings, and whether everything is to be compared, from a transition.
    pub fn follow_node(&mut self, change: &Transition<'_>) {
        if self.state.node != change.after().node {
            let before = mem::replace(&mut self.state.node, change.after().node.clone());
            self.unsynced.note_node(before);
        }
        if change.is_repair() {
            self.unsynced.request_repair();
        } else if change.is_resync() {
            self.unsynced.request_resync();
        }
        for family in IpFamily::ALL {
            self.unsynced.set_programmed(family, change.programs(family));
        }
    }

    /// Takes the health checks from a transition.
    pub fn follow_health_checks(&mut self, change: &Transition<'_>) {
        let after = &change.after().health_checks;
        if self.state.health_checks != *after {
            self.unsynced.note_health_checks(&self.state.health_checks);
            self.state.health_checks.clone_from(after);
        }
    }

    /// The state as it should be.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The step from what was synced last to the state.
    pub fn transition(&self) -> Transition<'_> {
        Transition::new(&self.state, &self.unsynced)
    }

    /// Whether there is something to sync: something has changed, or the backend beneath asked to
    /// be synced again by now.
    pub fn is_due(&self) -> bool {
        !self.transition().is_empty() || self.due.is_some_and(|due| due <= Instant::now())
    }

    /// Notes that a sync of the [transition](Self::transition) has succeeded, and after what time
    /// the backend beneath asked to be synced again.
    pub fn mark_synced(&mut self, requeue_after: Option<Duration>) {
        self.unsynced.mark_synced();
        self.due = requeue_after.and_then(|wait| Instant::now().checked_add(wait));
    }

    /// The time until the backend beneath is to be synced again, which each report of the backend
    /// above repeats.
    pub fn requeue_after(&self) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Asks for a full resync at the next sync, as after one that failed.
    pub fn request_resync(&mut self) {
        self.unsynced.request_resync();
    }
}
