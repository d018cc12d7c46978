//! Sets and rules in an nft table for each family, for nodes without iptables.
//!
//! - [`layout`]: the sets.
//! - [`rules`]: the chains.
//! - [`detours`]: where clients on this node are led elsewhere.
//! - [`sources`]: the source ranges of load balancer IPs.
//! - [`plan`]: what a comparison changes.

mod detours;
#[cfg(test)]
mod kernel_tests;
mod layout;
mod plan;
mod rules;
mod sources;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};

use switchyard_core::model::{IpFamily, PerFamily};
use switchyard_netlink::{Error, Socket, nftables};
use switchyard_nft_ruleset::{
    Element, Elements, Key, OperationKind, Refusal, Table, Transaction, Transport, TransportError,
    TransportKind,
};

use self::{
    detours::{Detours, DrawChain},
    layout::table,
    plan::Plan,
    sources::{Frontend, Limited},
};
use super::{Compared, Done, FamilyEntry, RuleInputs};
use crate::sets::Set;

/// The number of attempts at a comparison that other programs' changes of the table thwart.
const ATTEMPTS: usize = 10;

/// Why sets or rules could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("the nft table {table} cannot be {action}")]
pub(crate) struct NftError {
    table: Table,
    action: &'static str,
    source: Box<TransportError>,
    /// The entries that the kernel refuses, if these are all that it refuses.
    entries: Vec<FamilyEntry>,
}

impl NftError {
    pub(super) fn refused_entries(&self) -> &[FamilyEntry] {
        &self.entries
    }
}

/// Sets and rules, in the network namespace in which they were opened.
pub(crate) struct NftFilter {
    transport: Box<dyn Transport>,
    memory: PerFamily<Memory>,
    /// Whether no chains and IP sets are left that were used before.
    pub(super) is_alone: bool,
}

/// What a table holds, as far as elements do not correspond to entries one to one.
#[derive(Debug, Default)]
struct Memory {
    detours: Detours,
    /// The chains that are known to exist with their rules.
    draw_chains: BTreeSet<DrawChain>,
    limited: BTreeMap<Frontend, Limited>,
}

impl fmt::Debug for NftFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NftFilter").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl NftFilter {
    /// Opens the connection to the kernel.
    pub(crate) fn open() -> Result<Self, TransportError> {
        Ok(Self::new(TransportKind::Netlink.open()?))
    }

    /// Changes tables by this transport.
    pub(crate) fn new(transport: Box<dyn Transport>) -> Self {
        Self { transport, memory: PerFamily::default(), is_alone: false }
    }

    /// Makes sets and rules hold what they should, but leaves entries that nobody wants. A table is compared
    /// and changed in one transaction.
    pub(crate) fn compare(
        &mut self,
        wanted: &HashSet<FamilyEntry>,
        inputs: &[RuleInputs<'_>],
    ) -> Result<Compared, NftError> {
        let mut compared = Compared::default();
        for inputs in inputs {
            let result = self.compare_table(wanted, inputs, &mut compared);
            self.transport.release();
            result?;
        }
        Ok(compared)
    }

    fn compare_table(
        &mut self,
        wanted: &HashSet<FamilyEntry>,
        inputs: &RuleInputs<'_>,
        compared: &mut Compared,
    ) -> Result<(), NftError> {
        let table = table(inputs.family);
        let mut attempts = 1..=ATTEMPTS;
        loop {
            attempts.next();
            let dump = self.transport.read(&table, Elements::Include);
            let dump = dump.map_err(failed(&table, "read"))?;
            let memory = self.memory.get(inputs.family);
            let plan = Plan::new(wanted, inputs, dump.as_ref(), memory);
            let mut transaction = plan.transaction;
            if let Some(generation) = dump.as_ref().and_then(|dump| dump.generation) {
                transaction.expect_generation(generation);
            }
            match commit(&mut *self.transport, &transaction, &mut compared.done) {
                Err(error) if error.is_conflict() && !attempts.is_empty() => {}
                Err(error) => return Err(refused(&table, &transaction)(error)),
                Ok(()) => {
                    compared.missing.extend(plan.missing);
                    compared.stale.extend(plan.stale);
                    let altered = plan.altered.into_iter();
                    compared.chains.extend(altered.map(|name| (inputs.family, name)));
                    *self.memory.get_mut(inputs.family) = plan.memory;
                    return Ok(());
                }
            }
        }
    }

    /// Adds and deletes entries. Entries that are there already, or gone already, are no errors.
    pub(crate) fn commit(
        &mut self,
        done: &mut Done,
        add: &[FamilyEntry],
        delete: &[FamilyEntry],
    ) -> Result<(), NftError> {
        for family in IpFamily::ALL {
            let of_family = |entries: &[FamilyEntry]| -> Vec<FamilyEntry> {
                entries.iter().filter(|entry| entry.0 == family).copied().collect()
            };
            let (add, delete) = (of_family(add), of_family(delete));
            if !add.is_empty() || !delete.is_empty() {
                self.commit_table(done, family, &add, &delete)?;
            }
        }
        Ok(())
    }

    fn commit_table(
        &mut self,
        done: &mut Done,
        family: IpFamily,
        add: &[FamilyEntry],
        delete: &[FamilyEntry],
    ) -> Result<(), NftError> {
        let table = table(family);
        let mut changes = Changes::default();
        for (_, set, entry) in add.iter().filter(|entry| entry.1 != Set::LoadBalancerSources) {
            changes.of(*set).add.extend(layout::key(*set, entry));
        }
        for (_, set, entry) in delete.iter().filter(|entry| entry.1 != Set::LoadBalancerSources) {
            changes.of(*set).delete.extend(layout::key(*set, entry));
        }
        let limited = self.change_ranges(family, add, delete, &mut changes);
        let mut transaction = changes.transaction(family);
        let mut result = commit(&mut *self.transport, &transaction, done);
        if result.as_ref().is_err_and(TransportError::is_missing) {
            changes.keep_existing(&mut *self.transport, family).map_err(failed(&table, "read"))?;
            transaction = changes.transaction(family);
            result = commit(&mut *self.transport, &transaction, done);
        }
        result.map_err(refused(&table, &transaction))?;
        let memory = &mut self.memory.get_mut(family).limited;
        for (frontend, limited) in limited {
            match limited.held.is_empty() {
                true => memory.remove(&frontend),
                false => memory.insert(frontend, limited),
            };
        }
        Ok(())
    }

    /// Plans the change of source ranges, and returns how the ranges of frontends are afterwards.
    fn change_ranges(
        &self,
        family: IpFamily,
        add: &[FamilyEntry],
        delete: &[FamilyEntry],
        changes: &mut Changes,
    ) -> BTreeMap<Frontend, Limited> {
        let memory = &self.memory.get(family).limited;
        let mut limited: BTreeMap<Frontend, Limited> = BTreeMap::new();
        let ranges = |entries: &[FamilyEntry]| sources::collect(entries.iter().map(|(.., e)| e));
        let known = |frontend: &Frontend| memory.get(frontend).cloned().unwrap_or_default();
        for (frontend, nets) in ranges(add) {
            limited.entry(frontend).or_insert_with(|| known(&frontend)).entries.extend(nets);
        }
        for (frontend, nets) in ranges(delete) {
            let limited = limited.entry(frontend).or_insert_with(|| known(&frontend));
            limited.entries.retain(|net| !nets.contains(net));
        }
        for (frontend, limited) in &mut limited {
            let (delete, add) = limited.change();
            let change = changes.of(Set::LoadBalancerSources);
            change.delete.extend(delete.iter().filter_map(|net| sources::key(*frontend, *net)));
            change.add.extend(add.iter().filter_map(|net| sources::key(*frontend, *net)));
            limited.held = sources::merged(&limited.entries);
        }
        limited
    }

    /// Writes the detours anew. Source ranges need no rules of frontends.
    pub(crate) fn write_exceptions(
        &mut self,
        inputs: &RuleInputs<'_>,
        done: &mut Done,
    ) -> Result<(), NftError> {
        let table = table(inputs.family);
        let memory = self.memory.get_mut(inputs.family);
        let wanted = Detours::new(inputs);
        let mut transaction = Transaction::new();
        for chain in wanted.chains.difference(&memory.draw_chains) {
            transaction.add_chain(&table, chain.name());
            plan::write_rules(&mut transaction, &table, &chain.name(), chain.rules());
        }
        let held: HashMap<_, _> = memory.detours.elements.clone().into_iter().collect();
        plan::write_detours(&mut transaction, inputs.family, &held, &wanted);
        commit(&mut *self.transport, &transaction, done).map_err(failed(&table, "changed"))?;
        memory.draw_chains.extend(&wanted.chains);
        memory.detours = wanted;
        Ok(())
    }
}

/// Deletes the tables of both families, where they exist, and returns their number.
pub(crate) fn remove() -> Result<usize, NftError> {
    let of_netlink = |error: Error| failed(&table(IpFamily::V4), "read")(error.into());
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).map_err(of_netlink)?;
    // A kernel without nf_tables has no tables.
    if nftables::generation(&mut socket).map_err(of_netlink)?.is_none() {
        return Ok(0);
    }
    let transport = TransportKind::Netlink.open();
    let mut transport = transport.map_err(failed(&table(IpFamily::V4), "read"))?;
    let mut count = 0;
    for table in IpFamily::ALL.map(table) {
        let found = transport.read(&table, Elements::Omit).map_err(failed(&table, "read"))?;
        if found.is_some() {
            let mut transaction = Transaction::new();
            transaction.delete_table(&table);
            match transport.commit(&transaction) {
                Err(error) if !error.is_missing() => return Err(failed(&table, "deleted")(error)),
                _ => count += 1,
            }
        }
    }
    Ok(count)
}

fn failed(table: &Table, action: &'static str) -> impl Fn(TransportError) -> NftError {
    let table = table.clone();
    move |source| {
        let (table, source) = (table.clone(), Box::new(source));
        NftError { table, action, source, entries: Vec::new() }
    }
}

/// The error of a transaction that the kernel refuses, as a whole.
fn refused<'t>(
    table: &'t Table,
    transaction: &'t Transaction,
) -> impl Fn(TransportError) -> NftError + use<'t> {
    let family = table.family.into();
    let entry = move |refusal: &Refusal| {
        let operation = transaction.operations().get(refusal.operation)?;
        let OperationKind::AddElements(set, _) = &operation.kind else { return None };
        let (set, entry) = layout::entry(family, &set.name, refusal.element.as_deref()?)?;
        Some((family, set, entry))
    };
    move |error| {
        let entries = error.refusals().map(entry).collect::<Option<Vec<FamilyEntry>>>();
        NftError { entries: entries.unwrap_or_default(), ..failed(table, "changed")(error) }
    }
}

/// Commits a transaction, and adds it to what was done.
fn commit(
    transport: &mut dyn Transport,
    transaction: &Transaction,
    done: &mut Done,
) -> Result<(), TransportError> {
    if transaction.is_empty() {
        return Ok(());
    }
    let stats = transport.commit(transaction)?;
    for operation in transaction.operations() {
        match &operation.kind {
            OperationKind::DeleteTable
            | OperationKind::FlushChain(_)
            | OperationKind::DeleteChain(_)
            | OperationKind::DeleteSet(_) => done.removed += 1,
            OperationKind::DeleteElements(..) => done.removed += operation.elements(),
            OperationKind::AddElements(..) => done.added += operation.elements(),
            _ => done.added += 1,
        }
    }
    done.messages += stats.operations;
    done.bytes += stats.bytes;
    done.commit += stats.commit;
    Ok(())
}

/// Elements that come and go, by the name of the set.
#[derive(Debug, Default)]
struct Changes(BTreeMap<&'static str, Change>);

#[derive(Debug)]
struct Change {
    set: Set,
    add: Vec<Key>,
    delete: Vec<Key>,
}

impl Changes {
    fn of(&mut self, set: Set) -> &mut Change {
        let none = || Change { set, add: Vec::new(), delete: Vec::new() };
        self.0.entry(layout::name(set)).or_insert_with(none)
    }

    fn transaction(&self, family: IpFamily) -> Transaction {
        let table = table(family);
        let mut transaction = Transaction::new();
        for change in self.0.values() {
            let set = layout::definition(change.set, family);
            // The kernel refuses ranges that overlap others.
            transaction.delete_elements(&table, &set, change.delete.clone());
            let add = change.add.iter().copied().map(Element::new).collect();
            transaction.add_elements(&table, &set, add);
        }
        transaction
    }

    /// Deletes only what exists: the kernel refuses the rest.
    fn keep_existing(
        &mut self,
        transport: &mut dyn Transport,
        family: IpFamily,
    ) -> Result<(), TransportError> {
        for change in self.0.values_mut().filter(|change| !change.delete.is_empty()) {
            let set = layout::definition(change.set, family);
            let held = transport.read_elements(&table(family), &set)?.unwrap_or_default();
            let held: HashSet<Key> = held.iter().map(|held| held.element.key).collect();
            change.delete.retain(|key| held.contains(key));
        }
        Ok(())
    }
}
