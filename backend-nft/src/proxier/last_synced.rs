//! The last synced objects, as far as it does not follow from the state.
//!
//! Core remembers the state that was synced. Four things are known to this backend alone: the slots
//! of endpoints where these do not follow from the pool, counts of elements and chains that several
//! Service ports need, chains that are not deleted yet, and maps of clients with an earlier
//! timeout.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use switchyard_core::{
    model::{HashMap, PerFamily, ServicePortId, shrink_table},
    state::ResolvedServicePort,
    transition::PortChange,
};
use switchyard_kernel::nftables::ChainName;

use super::now;
use crate::layout::{lb_chains::LbChain, service_port::CountedElement, slots::Allocations};

/// The contents of the kernel besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct LastSynced {
    /// The families that this is about.
    pub(crate) families: PerFamily<bool>,
    /// The allocations that depend on earlier pools; most follow from the pool.
    allocations: HashMap<ServicePortId, Allocations>,
    /// The earlier maps of clients of Service ports whose timeout was changed, and when these maps
    /// are of no more use.
    pub(crate) earlier: HashMap<ServicePortId, (Duration, Instant)>,
    pub(crate) tables: PerFamily<SyncedTable>,
}

/// The contents of the kernel in one table besides the state that was synced.
#[derive(Debug, Default)]
pub(crate) struct SyncedTable {
    /// The number of Service ports that need each element that several may need.
    pub(crate) counts: HashMap<CountedElement, i32>,
    /// The number of Service ports' frontends, and of rules of the table, that need each chain;
    /// zero of a chain that is kept for later ones.
    pub(crate) lb_chains: BTreeMap<LbChain, i64>,
    /// Empty chains without a jump to them, and since when they are unused.
    pub(crate) stale_chains: BTreeMap<ChainName, Instant>,
}

/// The memory of a sync that succeeds.
#[derive(Default)]
pub(crate) struct Update {
    /// Of the Service ports that were compared; `None` if they follow from the pool, or the port is
    /// gone.
    pub(crate) allocations: Vec<(ServicePortId, Option<Allocations>)>,
    pub(crate) earlier: Vec<(ServicePortId, Option<(Duration, Instant)>)>,
    pub(crate) tables: PerFamily<TableUpdate>,
}

#[derive(Default)]
pub(crate) struct TableUpdate {
    /// By how many the Service ports that need an element have become more (or fewer).
    pub(crate) counts: HashMap<CountedElement, i32>,
    /// By how many the needs of a chain have become more (or fewer).
    pub(crate) lb_chains: BTreeMap<LbChain, i64>,
    /// The chains that nothing needs, and that are not kept.
    pub(crate) retired: Vec<LbChain>,
    pub(crate) stale_chains: Vec<ChainName>,
    /// Chains with rules, which are not stale even if they were.
    pub(crate) used_chains: Vec<ChainName>,
}

impl LastSynced {
    /// The numbers of what is remembered, the last of which is that of needs of chains.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> [usize; 5] {
        let tables = [&self.tables.v4, &self.tables.v6];
        let sum = |of: fn(&SyncedTable) -> usize| tables.map(of).iter().sum();
        [
            self.allocations.len(),
            self.earlier.len(),
            sum(|table| table.counts.len()),
            sum(|table| table.stale_chains.len()),
            sum(|table| table.lb_chains.values().sum::<i64>() as usize),
        ]
    }

    /// The memory after a sync that has compared everything in these families.
    pub(crate) fn new(families: PerFamily<bool>, update: Update) -> Self {
        let mut last = Self { families, ..Self::default() };
        last.update(update);
        last
    }

    /// Updates the memory after the kernel has committed the changes.
    pub(crate) fn update(&mut self, update: Update) {
        fn set<V>(map: &mut HashMap<ServicePortId, V>, values: Vec<(ServicePortId, Option<V>)>) {
            for (id, value) in values {
                match value {
                    Some(value) => map.insert(id, value),
                    None => map.remove(&id),
                };
            }
        }
        set(&mut self.allocations, update.allocations);
        set(&mut self.earlier, update.earlier);
        let now = now();
        let PerFamily { v4, v6 } = update.tables;
        for (table, update) in [(&mut self.tables.v4, v4), (&mut self.tables.v6, v6)] {
            for (element, change) in update.counts {
                let count = table.counts.entry(element).or_default();
                *count += change;
                if *count <= 0 {
                    table.counts.remove(&element);
                }
            }
            shrink_table(&mut table.counts);
            for (chain, change) in update.lb_chains {
                *table.lb_chains.entry(chain).or_default() += change;
            }
            update.retired.iter().for_each(|chain| _ = table.lb_chains.remove(chain));
            for chain in update.stale_chains {
                table.stale_chains.entry(chain).or_insert(now);
            }
            if !table.stale_chains.is_empty() {
                update.used_chains.iter().for_each(|chain| _ = table.stale_chains.remove(chain));
            }
        }
    }

    /// The slots of the endpoints of a Service port that was synced.
    pub(crate) fn allocations(&self, port: &ResolvedServicePort) -> Allocations {
        self.allocations.get(&port.id).cloned().unwrap_or_else(|| Allocations::natural(port))
    }

    /// The timeout of the earlier maps of clients that a Service port still needs.
    pub(crate) fn earlier(&self, id: &ServicePortId) -> Option<Duration> {
        self.earlier.get(id).map(|(earlier, _)| *earlier)
    }

    /// The timeout of the earlier maps of clients that a Service port needs after a sync, and until
    /// when.
    pub(crate) fn earlier_after(&self, port: PortChange<'_>) -> Option<(Duration, Instant)> {
        let affinity =
            |port: Option<&Arc<ResolvedServicePort>>| port.and_then(|port| port.affinity);
        let (before, after) = (affinity(port.before)?, affinity(port.after)?);
        let now = now();
        if before == after {
            return self.earlier.get(port.id).copied().filter(|(_, until)| *until > now);
        }
        Some((before, now + before.min(after)))
    }

    /// The time when the next earlier maps are of no more use.
    pub(crate) fn earlier_until(&self) -> Option<Instant> {
        self.earlier.values().map(|(_, until)| *until).min()
    }

    /// The time since when a chain is unused.
    pub(crate) fn stale_since(&self) -> Option<Instant> {
        let PerFamily { v4, v6 } = &self.tables;
        [v4, v6].into_iter().flat_map(|table| table.stale_chains.values()).min().copied()
    }
}
