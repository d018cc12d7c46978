//! The memory between syncs: what the kernel holds that is not in the resolved state.
//!
//! Core remembers what was synced. Three things are known to this backend alone: the slots of
//! endpoints where the slots differ from the order of the pool, counts of elements that several
//! Service ports need, and chains that are not deleted yet. Everything else is a function of the
//! state ([`crate::layout`]).

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    time::Instant,
};

use switchyard_core::{
    model::{PerFamily, ServicePortId},
    state::{PoolKind, ResolvedServicePort},
};

use crate::{
    layout::{fixed::FixedSet, service_port::PoolSlots, shared::SharedChain, slots::Slots},
    ruleset::{ChainName, Key},
};

/// What the kernel holds besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    slots: HashMap<ServicePortId, PoolSlots>,
    pub(crate) tables: PerFamily<TableMemory>,
}

impl Memory {
    /// Sets the slots of the endpoints of a Service port.
    pub(crate) fn set_slots(&mut self, id: ServicePortId, slots: PoolSlots) {
        // Most pools are in their own order, and need no memory.
        if slots == PoolSlots::default() {
            self.slots.remove(&id);
        } else {
            self.slots.insert(id, slots);
        }
    }

    /// Returns a Service port that was synced, with the slots of its endpoints.
    pub(crate) fn placed<'a>(&'a self, port: &'a ResolvedServicePort) -> PlacedPort<'a> {
        let slots = match self.slots.get(&port.id) {
            Some(slots) => Cow::Borrowed(slots),
            None => Cow::Owned(PoolSlots::default()),
        };
        PlacedPort { port, slots }
    }
}

/// What the kernel holds in one table besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct TableMemory {
    /// How many Service ports need each element that several may need.
    pub(crate) common: HashMap<(FixedSet, Key), u32>,
    pub(crate) shared_chains: BTreeSet<SharedChain>,
    /// Empty chains without a jump to them, and since when they are unused.
    pub(crate) stale_chains: HashMap<ChainName, Instant>,
}

/// A Service port with its endpoints in slots.
#[derive(Clone, Debug)]
pub(crate) struct PlacedPort<'a> {
    pub(crate) port: &'a ResolvedServicePort,
    slots: Cow<'a, PoolSlots>,
}

impl<'a> PlacedPort<'a> {
    /// Puts the endpoints of `port` into slots: each endpoint into its slot of `before` if possible.
    pub(crate) fn place(
        port: &'a ResolvedServicePort,
        mut before: impl FnMut(PoolKind) -> Vec<SocketAddr>,
    ) -> Self {
        let mut slots = |kind| Slots::assign(before(kind).into_iter(), port.pool(kind));
        let slots = PoolSlots { cluster: slots(PoolKind::Cluster), local: slots(PoolKind::Local) };
        Self { port, slots: Cow::Owned(slots) }
    }

    /// Returns the slots alone.
    pub(crate) fn into_slots(self) -> PoolSlots {
        self.slots.into_owned()
    }

    /// The addresses in the slots of a pool.
    pub(crate) fn addresses(&self, kind: PoolKind) -> impl Iterator<Item = SocketAddr> + '_ {
        self.slots.get(kind).addresses(self.port.pool(kind))
    }

    /// Returns the address in a slot of a pool, or `None` behind the last slot.
    pub(crate) fn address(&self, kind: PoolKind, slot: usize) -> Option<SocketAddr> {
        self.slots.get(kind).address(self.port.pool(kind), slot)
    }
}
