//! The transactions of a sync, one after the other.
//!
//! While the kernel commits, no other program can commit to any table of the network namespace. So
//! a sync of many elements is divided. After each transaction, every frontend is served as before
//! the sync or as after it: the elements of one are not divided. It is also cheaper: the kernel
//! keeps a page for each element to notify listeners until the commit ends
//! (`nf_tables_setelem_notify`).

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque, binary_heap::PeekMut},
    iter::Peekable,
    mem,
    time::Duration,
    vec,
};

use switchyard_core::{
    model::{HashSet, PerFamily},
    proxier::SyncReport,
    state::State,
};
use switchyard_kernel::nftables::{ChainName, Element, Family, Key, Table, Transaction};

use super::changes::{Changes, TableChange};
use crate::layout::{NftConfig, service_port, table::TableSet};

/// The most changes of elements that are not divided. Transactions of a sync that is divided begin
/// with half as many, and have from a quarter to twice as many: where the kernel validates many
/// verdicts in each commit, fewer would not make it shorter.
pub(super) const UNDIVIDED: usize = 4_000;
/// The time that a commit should take. Another program may wait for two, since the kernel's lock
/// is not always handed over.
const COMMIT_TIME: Duration = Duration::from_millis(20);

/// The number of ranks of changes, and of those that are urgent, which come first.
const RANKS: usize = 5;
const URGENT_RANKS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Only additions, to which no packet comes yet.
    Preparation,
    /// Elements of some frontends. Parts of this kind do not rely on each other.
    Elements,
    /// The main part of [`Changes::split`], or what is left of it.
    Main,
    /// Deletions of what no packet comes to any more.
    TidyingUp,
}

/// The transactions of a sync that are not made yet.
pub(super) struct Parts {
    preparation: Transaction,
    elements: Vec<(Table, Queues)>,
    main: Transaction,
    surplus: Vec<(Table, Queues)>,
    flushed: Vec<(Table, Vec<ChainName>)>,
    tidying_up: Transaction,
    undivided: usize,
    /// The number of elements in the next transaction.
    size: usize,
}

impl Parts {
    /// Divides the changes of both families. More changes of elements than `undivided` are divided
    /// further than by [`Changes::split`].
    pub(super) fn new(
        config: &NftConfig,
        changes: PerFamily<Changes>,
        state: &State,
        undivided: usize,
    ) -> (Self, SyncReport) {
        let mut parts = Self {
            preparation: Transaction::new(),
            elements: Vec::new(),
            main: Transaction::new(),
            surplus: Vec::new(),
            flushed: Vec::new(),
            tidying_up: Transaction::new(),
            undivided,
            size: (undivided / 2).max(1),
        };
        let mut report = SyncReport::default();
        let PerFamily { v4, v6 } = &changes;
        let divides = v4.elements() + v6.elements() > undivided;
        for (family, mut changes) in [(Family::Ip, changes.v4), (Family::Ip6, changes.v6)] {
            if !divides {
                changes.sort_elements();
            }
            let (added, removed) = changes.counts();
            report.added += added;
            report.removed += removed;
            let table = config.table(family);
            // A table that is made anew serves nothing in the meantime, and neither do sets.
            let is_divisible = divides && changes.table != TableChange::Replace;
            let is_divisible = is_divisible && !changes.replaces_sets();
            let [mut first, mut main, mut last] = changes.split();
            if is_divisible {
                let mut queues = Queues::of_main(&mut main, &last, family, state);
                if main.table == TableChange::Add {
                    first = mem::take(&mut main);
                    queues.take_urgent(&mut first);
                } else {
                    first.take_members(&mut main);
                }
                parts.elements.push((table.clone(), queues));
                parts.surplus.push((table.clone(), Queues::of_surplus(&mut last, family)));
                parts.flushed.push((table.clone(), mem::take(&mut last.flush_chains)));
            }
            first.append_to(&table, &mut parts.preparation);
            main.append_to(&table, &mut parts.main);
            last.append_to(&table, &mut parts.tidying_up);
        }
        (parts, report)
    }

    /// Returns the next transaction that is not empty.
    pub(super) fn next(&mut self) -> Option<(Part, Transaction)> {
        let whole = |transaction: &mut Transaction| {
            (!transaction.is_empty()).then(|| mem::take(transaction))
        };
        if let Some(first) = whole(&mut self.preparation) {
            return Some((Part::Preparation, first));
        }
        if let Some(some) = next_of(&mut self.elements, self.size) {
            return Some((Part::Elements, some));
        }
        if let Some(main) = whole(&mut self.main) {
            return Some((Part::Main, main));
        }
        let rest = next_of(&mut self.surplus, self.size)
            .or_else(|| self.next_flushed())
            .or_else(|| whole(&mut self.tidying_up))?;
        Some((Part::TidyingUp, rest))
    }

    fn next_flushed(&mut self) -> Option<Transaction> {
        let mut transaction = Transaction::new();
        for (table, chains) in &mut self.flushed {
            let left = self.size - transaction.operations().len();
            let some = chains.split_off(chains.len().saturating_sub(left));
            some.into_iter().for_each(|chain| transaction.flush_chain(table, chain));
        }
        (!transaction.is_empty()).then_some(transaction)
    }

    /// Notes how long a transaction took, for the size of the next ones.
    pub(super) fn committed(&mut self, part: Part, transaction: &Transaction, took: Duration) {
        let elements: usize = transaction.operations().iter().map(|o| o.elements()).sum();
        if part == Part::Elements && elements >= self.size {
            let fitting = elements as f64 * COMMIT_TIME.as_secs_f64() / took.as_secs_f64();
            let most = (2 * self.undivided).max(1);
            self.size = (fitting as usize).clamp((self.undivided / 4).max(1), most);
        }
    }
}

fn next_of(tables: &mut [(Table, Queues)], size: usize) -> Option<Transaction> {
    let mut transaction = Transaction::new();
    let mut left = size;
    // What is urgent in one family comes before what is not in the other.
    while let Some(rank) = tables.iter_mut().filter_map(|(_, queues)| queues.rank()).min()
        && left > 0
    {
        for (table, queues) in &mut *tables {
            if left > 0 && queues.rank() == Some(rank) {
                left = left.saturating_sub(queues.take(left, &mut transaction, table));
            }
        }
    }
    (!transaction.is_empty()).then_some(transaction)
}

/// The place of an element among others. Those of a frontend are together, and its slots come
/// before what leads to the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    frontend: Key,
    leads: bool,
    key: Key,
}

impl Place {
    fn new(set: TableSet, family: Family, key: Key) -> Self {
        Self { frontend: set.frontend(family, key), leads: !set.has_slots(), key }
    }

    /// Whether a transaction may end before this place and after another one; with a guard, all of
    /// a frontend comes at once.
    fn may_follow_in_another(&self, last: &Self, is_guarded: bool) -> bool {
        last.frontend != self.frontend || !last.leads && !is_guarded
    }
}

/// Changes of elements of one table, in order of their urgency.
struct Queues {
    family: Family,
    queues: VecDeque<Queue>,
    /// The frontends that get source ranges, which must come with their endpoints.
    guarded: HashSet<Key>,
}

impl Queues {
    /// Takes the changes of elements out of the main part.
    fn of_main(main: &mut Changes, last: &Changes, family: Family, state: &State) -> Self {
        let urgent = urgent(state, family);
        let mut added = mem::take(&mut main.add_elements);
        let mut deleted = mem::take(&mut main.delete_elements);
        // These belong to the rules.
        for kept in [TableSet::NodePortIps, TableSet::HealthCheckPorts] {
            main.add_elements.extend(added.remove_entry(&kept));
            main.delete_elements.extend(deleted.remove_entry(&kept));
        }
        let frontend = |set: TableSet, key: Key| set.frontend(family, key);
        // The slots behind the last one that is left, and the places of frontends in other sets,
        // are deleted at the end.
        let all_deleted = deleted.iter().chain(&last.delete_elements);
        let losing: HashSet<Key> = all_deleted
            .flat_map(|(set, keys)| keys.iter().map(|key| set.frontend(family, *key)))
            .collect();
        let guarded = added.get(&TableSet::FirewallIps).into_iter().flatten();
        let guarded = guarded.map(|element| frontend(TableSet::FirewallIps, element.key)).collect();
        // Connections of endpoints to themselves must be known before endpoints are reached.
        // Frontends that lose something come before those that only gain.
        let rank = |set: TableSet, key: Key| {
            let frontend = frontend(set, key);
            match set {
                TableSet::HairpinConnections if urgent.contains(&frontend) => 0,
                _ if urgent.contains(&frontend) => 1,
                TableSet::HairpinConnections => 2,
                _ if losing.contains(&frontend) => 3,
                _ => 4,
            }
        };
        let mut queues = [const { Vec::new() }; RANKS];
        for set in TableSet::all() {
            let added = added.remove(&set).unwrap_or_default();
            let deleted = deleted.remove(&set).unwrap_or_default();
            let added = by_rank(added, |element| rank(set, element.key));
            let deleted = by_rank(deleted, |key| rank(set, *key));
            for ((queue, added), deleted) in queues.iter_mut().zip(added).zip(deleted) {
                queue.extend(SetQueue::new(set, family, deleted, added));
            }
        }
        let queues = queues.into_iter().map(|sets| Queue::new(sets, family)).collect();
        Self { family, queues, guarded }
    }

    /// Takes the deletions of elements out of the part that tidies up.
    fn of_surplus(last: &mut Changes, family: Family) -> Self {
        let deleted = mem::take(&mut last.delete_elements).into_iter();
        let sets = deleted.filter_map(|(set, keys)| SetQueue::new(set, family, keys, Vec::new()));
        let queues = [Queue::new(sets.collect(), family)].into();
        Self { family, queues, guarded: HashSet::default() }
    }

    /// The rank of the next change; `None` if there is none.
    fn rank(&mut self) -> Option<usize> {
        while self.queues.front()?.first().is_none() {
            self.queues.pop_front();
        }
        RANKS.checked_sub(self.queues.len())
    }

    /// Moves what is urgent to other changes.
    fn take_urgent(&mut self, changes: &mut Changes) {
        for set in self.queues.drain(..URGENT_RANKS).flat_map(|queue| queue.sets) {
            changes.add_elements.entry(set.set).or_default().extend(set.added);
        }
    }

    /// Takes so many changes of one rank, and some more if they cannot be divided there; returns
    /// their number.
    fn take(&mut self, most: usize, transaction: &mut Transaction, table: &Table) -> usize {
        let mut changes = Changes::default();
        let (mut taken, mut last) = (0, None);
        while let Some(queue) = self.queues.front_mut()
            && let Some(place) = queue.first()
        {
            let is_guarded = self.guarded.contains(&place.frontend);
            let may_end = |last: Place| place.may_follow_in_another(&last, is_guarded);
            if taken >= most && last.is_none_or(may_end) {
                break;
            }
            taken += queue.take(place, self.family, &mut changes);
            last = Some(place);
        }
        changes.append_to(table, transaction);
        taken
    }
}

/// Changes of elements that have the same urgency.
struct Queue {
    sets: Vec<SetQueue>,
    /// The first place of each set that has one, and the set's index.
    firsts: BinaryHeap<Reverse<(Place, usize)>>,
}

impl Queue {
    fn new(mut sets: Vec<SetQueue>, family: Family) -> Self {
        let firsts = sets.iter_mut().enumerate();
        let firsts =
            firsts.filter_map(|(index, set)| Some(Reverse((set.first(family)?, index)))).collect();
        Self { sets, firsts }
    }

    fn first(&self) -> Option<Place> {
        self.firsts.peek().map(|Reverse((place, _))| *place)
    }

    /// Takes all changes at a place, which is the first; returns how many.
    fn take(&mut self, place: Place, family: Family, changes: &mut Changes) -> usize {
        let mut taken = 0;
        while let Some(mut first) = self.firsts.peek_mut()
            && first.0.0 == place
        {
            let queue = &mut self.sets[first.0.1];
            taken += queue.take(place, family, changes);
            match queue.first(family) {
                Some(next) => first.0.0 = next,
                None => _ = PeekMut::pop(first),
            }
        }
        taken
    }
}

/// Changes of a set, in order of their places.
struct SetQueue {
    set: TableSet,
    deleted: Peekable<vec::IntoIter<Key>>,
    added: Peekable<vec::IntoIter<Element>>,
}

impl SetQueue {
    fn new(
        set: TableSet,
        family: Family,
        mut deleted: Vec<Key>,
        mut added: Vec<Element>,
    ) -> Option<Self> {
        if deleted.is_empty() && added.is_empty() {
            return None;
        }
        if set.begins_with_frontend() {
            deleted.sort_unstable();
            added.sort_unstable_by_key(|element| element.key);
        } else {
            deleted.sort_unstable_by_key(|key| Place::new(set, family, *key));
            added.sort_unstable_by_key(|element| Place::new(set, family, element.key));
        }
        let (deleted, added) = (deleted.into_iter().peekable(), added.into_iter().peekable());
        Some(Self { set, deleted, added })
    }

    /// Takes the changes at a place; returns how many.
    fn take(&mut self, place: Place, family: Family, changes: &mut Changes) -> usize {
        let set = self.set;
        let is_here = |key: Key| Place::new(set, family, key) == place;
        let deleted = self.deleted.next_if(|key| is_here(*key));
        let added = self.added.next_if(|element| is_here(element.key));
        let taken = usize::from(deleted.is_some()) + usize::from(added.is_some());
        deleted.into_iter().for_each(|key| changes.delete_element(set, key));
        added.into_iter().for_each(|element| changes.add_element(set, element));
        taken
    }

    fn first(&mut self, family: Family) -> Option<Place> {
        let added = self.added.peek().map(|element| element.key);
        let keys = self.deleted.peek().copied().into_iter().chain(added);
        keys.map(|key| Place::new(self.set, family, key)).min()
    }
}

/// Divides items by their ranks, most of which are the last.
fn by_rank<T>(mut items: Vec<T>, rank: impl Fn(&T) -> usize) -> [Vec<T>; RANKS] {
    let mut ranked = [const { Vec::new() }; RANKS];
    for item in items.extract_if(.., |item| rank(item) < RANKS - 1) {
        ranked[rank(&item)].push(item);
    }
    ranked[RANKS - 1] = items;
    ranked
}

/// The frontends and endpoints of the Services that come first.
fn urgent(state: &State, family: Family) -> HashSet<Key> {
    let ports = state.urgent_ports().filter(|port| Family::from(port.id.family) == family);
    let keys = ports.flat_map(|port| {
        let frontends = port.frontends.iter().map(service_port::frontend_key);
        let endpoints = port.reachable().map(|endpoint| Key::new().address(endpoint.address.ip()));
        frontends.chain(endpoints)
    });
    keys.collect()
}
