//! The changes of one sync, collected by kind, and put into an order that the kernel accepts.

use std::{collections::BTreeMap, sync::Arc};

use switchyard_core::model::{HashMap, HashSet};
use switchyard_kernel::nftables::{
    BaseChain, ChainName, Element, ElementDump, Family, Key, OperationKind, SetDef, SetName, Table,
    Transaction, TransportError,
};

use super::sweeper::Sweep;
use crate::layout::{ChainRules, names::table_comment, table::TableSet};

/// The change of the table itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TableChange {
    /// The table exists and stays.
    #[default]
    Keep,
    /// The table is added.
    Add,
    /// The table exists and stays, and was dormant.
    Wake,
    /// The table is deleted with everything in it, and made anew.
    Replace,
}

impl TableChange {
    /// Whether packets that are on their way may be in chains of the table.
    fn keeps_chains(self) -> bool {
        matches!(self, Self::Keep | Self::Wake)
    }
}

/// The changes to the table of one family.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) table: TableChange,
    /// Base chains that this backend does not have, at least not at their present hooks.
    pub(crate) delete_base_chains: Vec<ChainName>,
    pub(crate) add_base_chains: Vec<BaseChain>,
    pub(crate) add_chains: Vec<ChainName>,
    /// Chains that exist and lose their rules.
    pub(crate) flush_chains: Vec<ChainName>,
    pub(crate) delete_sets: Vec<SetName>,
    pub(crate) add_sets: Vec<Arc<SetDef>>,
    /// Rules of chains that are new or flushed.
    pub(crate) rules: Vec<ChainRules>,
    pub(crate) delete_elements: BTreeMap<TableSet, Vec<Key>>,
    pub(crate) add_elements: BTreeMap<TableSet, Vec<Element>>,
    /// Elements that are added, and deleted at the end.
    pub(crate) passing: BTreeMap<TableSet, Vec<Key>>,
    /// Elements of sets of single Service ports.
    pub(crate) delete_port_elements: Vec<(Arc<SetDef>, Vec<Key>)>,
    pub(crate) add_port_elements: Vec<(Arc<SetDef>, Vec<Element>)>,
    /// Clients that kube-proxy remembered.
    pub(crate) restore: Vec<(Arc<SetDef>, Vec<ElementDump>)>,
    /// Maps of clients of pools that change. Clients are removed after the commit, and by another
    /// thread.
    pub(crate) sweeps: Vec<Sweep>,
}

impl Changes {
    pub(crate) fn add_element(&mut self, set: TableSet, element: Element) {
        self.add_elements.entry(set).or_default().push(element);
    }

    pub(crate) fn delete_element(&mut self, set: TableSet, key: Key) {
        self.delete_elements.entry(set).or_default().push(key);
    }

    /// Forgets the changes of elements of the table's sets that the kernel refuses because they are
    /// made already.
    pub(crate) fn forget_refused(
        &mut self,
        family: Family,
        transaction: &Transaction,
        error: &TransportError,
    ) {
        for refusal in error.refusals().filter(|refusal| refusal.is_made()) {
            let operation = transaction.operations().get(refusal.operation);
            let (Some(operation), Some(key)) = (operation, refusal.element.as_deref()) else {
                continue;
            };
            let is = |of: &TableSet, set: &SetDef| of.definition(family).name == set.name;
            match &operation.kind {
                OperationKind::AddElements(set, _) => {
                    let added = self.add_elements.iter_mut().filter(|(of, _)| is(of, set));
                    added.for_each(|(_, elements)| elements.retain(|element| element.key != *key));
                }
                OperationKind::DeleteElements(set, _) => {
                    let deleted = self.delete_elements.iter_mut().filter(|(of, _)| is(of, set));
                    deleted.for_each(|(_, keys)| keys.retain(|deleted| deleted != key));
                }
                _ => {}
            }
        }
    }

    /// Changes elements of a set of a single Service port.
    pub(crate) fn change_port_set(
        &mut self,
        set: &Arc<SetDef>,
        deleted: Vec<Key>,
        added: Vec<Element>,
    ) {
        if !deleted.is_empty() {
            self.delete_port_elements.push((set.clone(), deleted));
        }
        if !added.is_empty() {
            self.add_port_elements.push((set.clone(), added));
        }
    }

    /// Adds a chain that does not exist.
    pub(crate) fn new_chain(&mut self, chain: ChainRules) {
        self.add_chains.push(chain.name.clone());
        self.rules.push(chain);
    }

    /// Replaces the rules of a chain that exists.
    pub(crate) fn rewrite_chain(&mut self, chain: ChainRules) {
        self.flush_chains.push(chain.name.clone());
        self.rules.push(chain);
    }

    /// Divides the changes into preparation, main part and tidying up, to be committed one after
    /// the other.
    ///
    /// A packet that is on its way through the chains while a commit takes effect follows the rules
    /// from before the commit, but finds the elements from after it. So chains are added before
    /// elements lead to them, and lose their rules after; and the slots behind the last endpoint of
    /// a pool go last, as do the former places of frontends that move to a set that is looked up
    /// earlier, and the hairpin connections of endpoints that left.
    pub(crate) fn split(mut self) -> [Self; 3] {
        let (mut first, mut last) = (Self::default(), Self::default());
        last.delete_elements = self.take_surplus();
        last.delete_elements.extend(self.take_moved_frontends());
        for (set, keys) in std::mem::take(&mut self.passing) {
            last.delete_elements.entry(set).or_default().extend(keys);
        }
        // A new table has no traffic yet. Sets cannot be made anew while rules use them.
        if self.table.keeps_chains() && !self.replaces_sets() {
            let added: HashSet<&SetName> = self.add_sets.iter().map(|set| &set.name).collect();
            let new: HashSet<&ChainName> = self.add_chains.iter().collect();
            first.rules = self.rules.extract_if(.., |chain| new.contains(&chain.name)).collect();
            first.add_chains = std::mem::take(&mut self.add_chains);
            first.add_port_elements = self
                .add_port_elements
                .extract_if(.., |(set, _)| added.contains(&set.name))
                .collect();
            first.add_sets = std::mem::take(&mut self.add_sets);
            let kept: HashSet<&ChainName> = self.rules.iter().map(|chain| &chain.name).collect();
            last.flush_chains =
                self.flush_chains.extract_if(.., |chain| !kept.contains(chain)).collect();
            last.delete_sets = std::mem::take(&mut self.delete_sets);
        }
        [first, self, last]
    }

    /// Whether sets are deleted and made anew.
    pub(crate) fn replaces_sets(&self) -> bool {
        let added: HashSet<&SetName> = self.add_sets.iter().map(|set| &set.name).collect();
        self.delete_sets.iter().any(|set| added.contains(set))
    }

    /// Whether rules of chains that stay are replaced.
    pub(crate) fn replaces_rules(&self) -> bool {
        let new: HashSet<&ChainName> = self.add_chains.iter().collect();
        self.table.keeps_chains() && self.rules.iter().any(|chain| !new.contains(&chain.name))
    }

    /// The number of changes of elements in sets of the table.
    pub(crate) fn elements(&self) -> usize {
        self.add_elements.values().map(Vec::len).sum::<usize>()
            + self.delete_elements.values().map(Vec::len).sum::<usize>()
    }

    /// Takes additions that do no harm before the main part: those to sets of single Service ports,
    /// but for source ranges.
    pub(crate) fn take_members(&mut self, main: &mut Self) {
        let members = main.add_port_elements.extract_if(.., |(set, _)| !set.interval);
        self.add_port_elements.extend(members);
    }

    /// Removes and returns the deletions of slots that get no other endpoint, and of hairpin
    /// connections. An element that is only replaced is deleted before it is added again.
    fn take_surplus(&mut self) -> BTreeMap<TableSet, Vec<Key>> {
        let is_late = |set: TableSet| set.has_slots() || set == TableSet::HairpinConnections;
        let mut surplus = BTreeMap::new();
        for (&set, deleted) in self.delete_elements.iter_mut().filter(|(set, _)| is_late(**set)) {
            let added = self.add_elements.get(&set).map_or(&[][..], Vec::as_slice);
            let replaced: HashSet<Key> = added.iter().map(|element| element.key).collect();
            surplus.insert(set, deleted.extract_if(.., |key| !replaced.contains(key)).collect());
        }
        surplus
    }

    /// Removes and returns the deletions of frontends that are added to a set that is looked up
    /// earlier.
    fn take_moved_frontends(&mut self) -> BTreeMap<TableSet, Vec<Key>> {
        let added = self.add_elements.iter().filter(|(set, _)| set.leads_to_pools());
        let added: HashMap<Key, TableSet> = added
            .flat_map(|(set, elements)| elements.iter().map(|element| (element.key, *set)))
            .collect();
        let mut moved = BTreeMap::new();
        for (&set, deleted) in self.delete_elements.iter_mut().filter(|(s, _)| s.leads_to_pools()) {
            let is_moved =
                |key: &mut Key| added.get(key).is_some_and(|to| set.is_looked_up_after(*to));
            moved.insert(set, deleted.extract_if(.., is_moved).collect());
        }
        moved
    }

    /// Sorts elements by their keys: what is sent is always the same then.
    pub(crate) fn sort_elements(&mut self) {
        let deleted = self.delete_elements.values_mut().chain(self.passing.values_mut());
        deleted.for_each(|keys| keys.sort_unstable());
        for elements in self.add_elements.values_mut() {
            elements.sort_unstable_by_key(|element| element.key);
        }
    }

    /// Returns how many objects are added, and how many are removed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let added = self.add_base_chains.len()
            + self.add_chains.len()
            + self.add_sets.len()
            + self.rules.iter().map(|chain| chain.rules.len()).sum::<usize>()
            + self.add_elements.values().map(Vec::len).sum::<usize>()
            + self.add_port_elements.iter().map(|(_, elements)| elements.len()).sum::<usize>()
            + self.restore.iter().map(|(_, clients)| clients.len()).sum::<usize>();
        let removed = self.delete_base_chains.len()
            + self.flush_chains.len()
            + self.delete_sets.len()
            + self.delete_elements.values().map(Vec::len).sum::<usize>()
            + self.delete_port_elements.iter().map(|(_, keys)| keys.len()).sum::<usize>();
        (added, removed)
    }

    /// Appends all changes to a transaction. Objects are added before other objects refer to them,
    /// and deleted after: chains are added before elements and rules lead to them, rules are
    /// deleted before the sets that they use.
    pub(crate) fn append_to(self, table: &Table, transaction: &mut Transaction) {
        match self.table {
            TableChange::Keep | TableChange::Wake => {}
            TableChange::Add => {
                transaction.add_table_with_comment(table, table_comment(table));
            }
            TableChange::Replace => {
                transaction.delete_table(table);
                transaction.add_table_with_comment(table, table_comment(table));
            }
        }
        for chain in self.delete_base_chains {
            transaction.flush_chain(table, chain.clone());
            transaction.delete_chain(table, chain);
        }
        for chain in self.add_base_chains {
            transaction.add_base_chain(table, chain);
        }
        for chain in self.add_chains {
            transaction.add_chain(table, chain);
        }
        for (set, keys) in self.delete_elements {
            transaction.delete_elements(table, set.definition(table.family), keys);
        }
        for (set, keys) in self.delete_port_elements {
            transaction.delete_elements(table, &set, keys);
        }
        for chain in self.flush_chains {
            transaction.flush_chain(table, chain);
        }
        for set in self.delete_sets {
            transaction.delete_set(table, set);
        }
        for set in self.add_sets {
            if set.size.is_some() {
                // The kernel makes a new set large enough for all of its elements at once. The size
                // is changed afterwards, where the kernel does so.
                let unlimited = SetDef { size: None, ..SetDef::clone(&set) };
                transaction.add_set(table, unlimited.into());
            }
            transaction.add_set(table, set);
        }
        for chain in self.rules {
            for rule in chain.rules {
                transaction.add_rule(table, chain.name.clone(), rule);
            }
        }
        for (set, elements) in self.add_elements {
            transaction.add_elements(table, set.definition(table.family), elements);
        }
        for (set, elements) in self.add_port_elements {
            transaction.add_elements(table, &set, elements);
        }
        for (map, clients) in self.restore {
            transaction.restore_elements(table, &map, clients);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_that_is_replaced_is_not_deleted_after_it_is_added() {
        for set in [TableSet::HairpinConnections, TableSet::ServiceIps] {
            let key = Key::new().port(80);
            let mut changes = Changes::default();
            changes.delete_elements.insert(set, vec![key, Key::new().port(81)]);
            changes.add_elements.insert(set, vec![Element::new(key)]);
            let [_, switch, last] = changes.split();
            assert!(switch.delete_elements[&set].contains(&key), "{set:?}");
            let late = last.delete_elements.get(&set).is_some_and(|keys| keys.contains(&key));
            assert!(!late, "{set:?}");
        }
    }
}
