//! The objects of one table.

use std::collections::BTreeMap;

use switchyard_core::model::HashMap;
use switchyard_kernel::nftables::{ChainName, Element, Key, SetName};

use crate::layout::{
    ChainRules, Context,
    affinity::RememberedPool,
    lb_chains::LbChain,
    service_port::{PortObjects, PortSet, SlotRange},
    slots::{Allocation, Allocations},
    table::{self, TableSet},
};

/// Objects of a table, as they were synced or are wanted: all, or those that are compared.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) chains: BTreeMap<ChainName, ChainRules>,
    pub(super) sets: BTreeMap<SetName, PortSet>,
    pub(super) elements: BTreeMap<TableSet, HashMap<Key, Element>>,
    pub(super) slots: Vec<(SlotRange, Allocation)>,
    pub(super) pools: Vec<RememberedPool>,
}

impl Objects {
    pub(super) fn add_chains(&mut self, chains: impl IntoIterator<Item = ChainRules>) {
        self.chains.extend(chains.into_iter().map(|chain| (chain.name.clone(), chain)));
    }

    pub(super) fn add_set(&mut self, set: PortSet) {
        self.sets.insert(set.definition.name.clone(), set);
    }

    pub(super) fn add_element(&mut self, set: TableSet, element: Element) {
        self.elements.entry(set).or_default().insert(element.key, element);
    }

    pub(super) fn add_elements(&mut self, all: impl IntoIterator<Item = (TableSet, Element)>) {
        all.into_iter().for_each(|(set, element)| self.add_element(set, element));
    }

    /// Adds the chains and elements that depend on the node's settings.
    pub(super) fn add_table<'a>(
        &mut self,
        context: &Context<'_>,
        lb_chains: impl IntoIterator<Item = &'a LbChain>,
    ) {
        self.add_chains(table::chains(context));
        self.add_chains(lb_chains.into_iter().map(|chain| chain.rules(context)));
        self.add_elements(table::elements(context));
    }

    /// Adds the objects of a Service port, but for those that others may need, too.
    pub(super) fn add_port(&mut self, objects: PortObjects, allocations: &Allocations) {
        self.add_chains(objects.chains);
        objects.sets.into_iter().for_each(|set| self.add_set(set));
        self.add_elements(objects.elements);
        let slots = objects.slots.into_iter();
        self.slots.extend(slots.map(|slots| (slots, allocations.get(slots.pool).clone())));
        self.pools.extend(objects.pools);
    }
}
