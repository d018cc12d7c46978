//! The memory between syncs: what the kernel holds that is not in the resolved state.
//!
//! Core remembers what was synced. Four things are known to this backend alone: the slots of
//! endpoints where the slots do not follow from the pool, counts of elements that several
//! Service ports need, chains that are not deleted yet, and maps of clients with an earlier
//! timeout. Everything else is a function of the
//! state ([`crate::layout`]).

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::Instant,
};

use switchyard_core::{
    model::{PerFamily, ServicePortId},
    state::{PoolKind, ResolvedServicePort},
};
use switchyard_nft_ruleset::{ChainName, Key};

use crate::layout::{
    affinity::Earlier,
    lb_chains::LbChain,
    service_port::PoolSlots,
    slots::{RememberedSlots, Slots},
    table::TableSet,
};

/// What the kernel holds besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct LastSynced {
    /// The families that this is about.
    pub(crate) families: PerFamily<bool>,
    slots: HashMap<ServicePortId, PoolSlots>,
    /// The earlier maps of clients of Service ports whose timeout was changed, and when these maps are
    /// of no more use.
    pub(crate) earlier: HashMap<ServicePortId, (Earlier, Instant)>,
    pub(crate) tables: PerFamily<SyncedTable>,
}

impl LastSynced {
    /// Sets the slots of the endpoints of a Service port.
    pub(crate) fn set_slots(&mut self, id: ServicePortId, slots: PoolSlots) {
        // Most pools are in their natural order, and need no memory.
        if slots == PoolSlots::default() {
            self.slots.remove(&id);
        } else {
            self.slots.insert(id, slots);
        }
    }

    /// The earlier maps of clients that a Service port still needs.
    pub(crate) fn earlier(&self, id: &ServicePortId) -> Option<Earlier> {
        self.earlier.get(id).map(|(earlier, _)| *earlier)
    }

    /// When the next earlier maps are of no more use.
    pub(crate) fn earlier_until(&self) -> Option<Instant> {
        self.earlier.values().map(|(_, until)| *until).min()
    }

    /// Returns a Service port that was synced, with the slots of its endpoints.
    pub(crate) fn placed<'a>(&'a self, port: &'a ResolvedServicePort) -> PlacedPort<'a> {
        const NATURAL: &RememberedSlots = &None;
        let remembered = self.slots.get(&port.id);
        PlacedPort::new(port, |kind| {
            let slots = remembered.map_or(NATURAL, |slots| slots.get(kind));
            Slots::recall(slots, port.pool(kind), port.lb_algorithm)
        })
    }
}

/// What the kernel holds in one table besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct SyncedTable {
    /// How many Service ports need each element that several may need.
    pub(crate) common: HashMap<(TableSet, Key), u32>,
    pub(crate) lb_chains: BTreeSet<LbChain>,
    /// Empty chains without a jump to them, and since when they are unused.
    pub(crate) stale_chains: HashMap<ChainName, Instant>,
}

/// A Service port with its endpoints in slots.
#[derive(Clone, Debug)]
pub(crate) struct PlacedPort<'a> {
    pub(crate) port: &'a ResolvedServicePort,
    cluster: Slots<'a>,
    local: Slots<'a>,
}

impl<'a> PlacedPort<'a> {
    /// Puts the endpoints of `port` into slots: each endpoint into its slot of `before` if possible.
    pub(crate) fn place(
        port: &'a ResolvedServicePort,
        mut before: impl FnMut(PoolKind) -> Vec<SocketAddr>,
    ) -> Self {
        Self::new(port, |kind| {
            Slots::assign(before(kind).into_iter(), port.pool(kind), port.lb_algorithm)
        })
    }

    fn new(port: &'a ResolvedServicePort, mut slots: impl FnMut(PoolKind) -> Slots<'a>) -> Self {
        Self { port, cluster: slots(PoolKind::Cluster), local: slots(PoolKind::Local) }
    }

    /// Returns what has to be remembered of the slots.
    pub(crate) fn into_slots(self) -> PoolSlots {
        PoolSlots { cluster: self.cluster.into_remembered(), local: self.local.into_remembered() }
    }

    /// The number of slots of a pool.
    pub(crate) fn len(&self, kind: PoolKind) -> usize {
        self.slots(kind).len(self.port.pool(kind))
    }

    fn slots(&self, kind: PoolKind) -> &Slots<'a> {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// The addresses in the slots of a pool.
    pub(crate) fn addresses(&self, kind: PoolKind) -> impl Iterator<Item = SocketAddr> + '_ {
        self.slots(kind).addresses(self.port.pool(kind))
    }

    /// Returns the address in a slot of a pool, or `None` behind the last slot.
    pub(crate) fn address(&self, kind: PoolKind, slot: usize) -> Option<SocketAddr> {
        self.slots(kind).address(self.port.pool(kind), slot)
    }
}
