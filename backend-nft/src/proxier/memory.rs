//! What the kernel holds, as we remember it between syncs.
//!
//! Little is kept: the Service ports as they were resolved (shared with whoever resolved them), the
//! slots of their endpoints, and counts of what several of them need. Everything else is a function
//! of these ([`crate::layout`]).

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use proxy_core::{
    model::{PerFamily, ServicePortId},
    state::{NodeState, PoolKind, ResolvedServicePort},
};

use crate::{
    layout::{fixed::FixedSet, service_port::PoolSlots, shared::SharedChain, slots::Slots},
    ruleset::{ChainName, Key},
};

/// What the kernel holds.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) ports: HashMap<ServicePortId, Programmed>,
    pub(crate) node: NodeState,
    pub(crate) tables: PerFamily<TableMemory>,
}

/// What the kernel holds in one table.
#[derive(Debug, Default)]
pub(crate) struct TableMemory {
    /// How many Service ports need an element that several may.
    pub(crate) common: HashMap<(FixedSet, Key), u32>,
    pub(crate) shared_chains: BTreeSet<SharedChain>,
    /// Chains that are empty and that nothing leads to any more, since when.
    pub(crate) stale_chains: HashMap<ChainName, Instant>,
}

/// A Service port as it was programmed.
#[derive(Clone, Debug)]
pub(crate) struct Programmed {
    pub(crate) port: Arc<ResolvedServicePort>,
    pub(crate) slots: PoolSlots,
}

impl Programmed {
    /// `port` with its endpoints in slots, each where it was in `before` if possible.
    pub(crate) fn following(
        port: Arc<ResolvedServicePort>,
        mut before: impl FnMut(PoolKind) -> Vec<SocketAddr>,
    ) -> Self {
        let mut slots = |kind| Slots::assign(before(kind).into_iter(), port.pool(kind));
        let slots = PoolSlots { cluster: slots(PoolKind::Cluster), local: slots(PoolKind::Local) };
        Self { port, slots }
    }

    /// The addresses in the slots of a pool.
    pub(crate) fn addresses(&self, kind: PoolKind) -> impl Iterator<Item = SocketAddr> + '_ {
        self.slots.of(kind).addresses(self.port.pool(kind))
    }

    /// The address in a slot of a pool, `None` behind the last one.
    pub(crate) fn address(&self, kind: PoolKind, slot: usize) -> Option<SocketAddr> {
        self.slots.of(kind).address(self.port.pool(kind), slot)
    }
}
