//! A sync of everything: reads what the kernel holds, whichever program put it there, and changes
//! what differs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use switchyard_core::{
    model::{PerFamily, ServicePortId},
    state::{PoolKind, ResolvedServicePort, State},
};
use switchyard_nft_ruleset::{
    BaseChain, ChainBase, ChainName, Element, ElementData, Family, Key, SetData, SetDef, SetName,
    Table, TableDump, Value,
};

use super::{
    changes::{Changes, TableChange, difference},
    clients,
    memory::{LastSynced, PlacedPort, SyncedTable},
    ranges::RangeChange,
};
use crate::layout::{
    ChainRules, Context, NftConfig,
    affinity::{self, Earlier, RememberedPool},
    lb_chains::LbChain,
    names,
    service_port::{self, Entries, PoolSlots, SlotRange},
    source_ranges,
    table::{self, TableSet},
};

/// Everything a table should hold.
struct Desired {
    base_chains: Vec<BaseChain>,
    /// All chains, base chains included.
    chains: BTreeMap<ChainName, ChainRules>,
    sets: BTreeMap<SetName, Arc<SetDef>>,
    pools: Vec<RememberedPool>,
    elements: BTreeMap<TableSet, HashMap<Key, Element>>,
    /// The elements of sets of source ranges.
    ranges: BTreeMap<SetName, Vec<Element>>,
    memory: SyncedTable,
    slots: Vec<(ServicePortId, PoolSlots)>,
    earlier: Vec<(ServicePortId, (Earlier, Instant))>,
}

/// Returns the changes that make the kernel hold `state`, given the dumps of what the kernel holds now,
/// and the memory for after the commit. `known` is the memory of what the kernel should hold now, if there
/// is one.
pub(crate) fn plan(
    config: &NftConfig,
    state: &State,
    dumps: &PerFamily<Option<TableDump>>,
    known: Option<&LastSynced>,
) -> (PerFamily<Changes>, LastSynced) {
    let mut memory = LastSynced::default();
    memory.families = config.families;
    let mut changes = PerFamily::default();
    for family in config.families() {
        let dump = dumps.get(family.into()).as_ref();
        let context = Context::new(config, family, &state.node);
        // The family may have been left out.
        let known = known.filter(|known| *known.families.get(family.into()));
        let mut desired = Desired::new(state, &context, dump, known);
        *changes.get_mut(family.into()) =
            compare(&config.table(family), &mut desired, dump, known.is_none());
        memory.earlier.extend(desired.earlier);
        for (id, slots) in desired.slots {
            memory.set_slots(id, slots);
        }
        *memory.tables.get_mut(family.into()) = desired.memory;
    }
    (changes, memory)
}

impl Desired {
    fn new(
        state: &State,
        context: &Context<'_>,
        dump: Option<&TableDump>,
        known: Option<&LastSynced>,
    ) -> Self {
        let kernel = KernelSlots::from_dump(dump);
        let kernel_clients = KernelClients::from_dump(dump);
        let mut desired = Self {
            base_chains: table::base_chains().collect(),
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            pools: Vec::new(),
            elements: BTreeMap::new(),
            ranges: BTreeMap::new(),
            memory: SyncedTable::default(),
            slots: Vec::new(),
            earlier: Vec::new(),
        };
        desired.add_chains(table::chains(context));
        for set in TableSet::all() {
            desired.add_set(set.definition(context.family).clone());
        }
        for (set, element) in table::elements(context) {
            desired.add_element(set, element);
        }
        let mut shared: BTreeSet<LbChain> = BTreeSet::new();
        let ports =
            state.service_ports.iter().filter(|(id, _)| Family::from(id.family) == context.family);
        for (id, port) in ports {
            let entries = Entries::new(port);
            let placed = PlacedPort::place(port, |kind| kernel.pool(&entries.runs, kind));
            for run in &entries.runs {
                for (slot, address) in placed.addresses(run.pool).enumerate() {
                    desired.add_element(run.map, run.element(slot, address));
                }
            }
            for (set, element) in entries.elements {
                desired.add_element(set, element);
            }
            for (set, key) in entries.common {
                *desired.memory.common.entry((set, key)).or_default() += 1;
                desired.add_element(set, Element::new(key));
            }
            shared.extend(entries.chains);
            let earlier = kernel_clients.earlier(port, known);
            let own = service_port::objects(port, context, earlier.map(|(earlier, _)| earlier));
            desired.earlier.extend(earlier.map(|earlier| (id.clone(), earlier)));
            desired.add_chains(own.chains);
            for pool in own.pools {
                desired.add_set(pool.members.clone());
                pool.maps().for_each(|map| desired.add_set(map.clone()));
                desired.pools.push(pool);
            }
            if let Some(ranges) = source_ranges::in_set(port) {
                let set = source_ranges::set(&port.id.name, context.family);
                desired.ranges.insert(set.name.clone(), Element::intervals(&ranges[..]));
                desired.add_set(set);
            }
            desired.slots.push((id.clone(), placed.into_slots()));
        }
        desired.add_chains(shared.iter().map(|chain| chain.rules(context)).collect());
        desired.memory.lb_chains = shared;
        desired
    }

    fn add_chains(&mut self, chains: Vec<ChainRules>) {
        self.chains.extend(chains.into_iter().map(|chain| (chain.name.clone(), chain)));
    }

    fn add_set(&mut self, set: Arc<SetDef>) {
        self.sets.insert(set.name.clone(), set);
    }

    fn add_element(&mut self, set: TableSet, element: Element) {
        self.elements.entry(set).or_default().insert(element.key, element);
    }
}

/// Compares a table with what it should hold. If it is not known what the kernel held, endpoints may have
/// left pools whose clients are still there.
fn compare(
    table: &Table,
    desired: &mut Desired,
    dump: Option<&TableDump>,
    is_unknown: bool,
) -> Changes {
    let mut changes = Changes::default();
    let empty = TableDump {
        table: table.clone(),
        generation: None,
        chains: BTreeMap::new(),
        sets: BTreeMap::new(),
    };
    let dump = match dump {
        Some(dump) if is_repairable(desired, dump) => dump,
        Some(_) => {
            changes.table = TableChange::Replace;
            &empty
        }
        None => {
            changes.table = TableChange::Add;
            &empty
        }
    };
    let replaced = compare_sets(&mut changes, desired, dump);
    compare_chains(&mut changes, table.family, desired, dump, &replaced);
    compare_elements(&mut changes, desired, dump);
    // The sets are rare, and their names costly to make.
    let has_upstream = clients::has_upstream(dump);
    for pool in &desired.pools {
        let has_lost = compare_members(&mut changes, pool, dump);
        let is_there = pool.maps().any(|map| dump.sets.contains_key(&map.name));
        changes.sweeps.extend(clients::sweeps(pool, is_there && (has_lost || is_unknown)));
        if has_upstream && !dump.sets.contains_key(&pool.clients.name) {
            changes.restore.push((pool.clients.clone(), clients::of_upstream(pool, dump)));
        }
    }
    changes
}

/// Whether every object with a known name has the expected kind and shape: if not, making the table
/// anew is quicker, and as atomic. Base chains and sets that remember clients are replaced one by one:
/// older kube-proxies had some base chains at other hooks, and clients are worth keeping.
fn is_repairable(desired: &Desired, dump: &TableDump) -> bool {
    let bases: HashSet<_> = desired.base_chains.iter().map(|chain| &chain.name).collect();
    let chains_fit = dump.chains.iter().all(|(name, chain)| {
        let is_regular = chain.base == ChainBase::Regular;
        !desired.chains.contains_key(name) || is_regular != bases.contains(name)
    });
    let sets_fit = TableSet::all().all(|set| {
        let definition = set.definition(dump.table.family);
        match dump.sets.get(&definition.name).map(|set| &set.definition) {
            Some(Ok(known)) => known.same_shape(definition),
            Some(Err(_)) => false,
            None => true,
        }
    });
    chains_fit && sets_fit
}

/// Returns the sets that are made anew: every rule that uses such a set must be made anew, too.
fn compare_sets(
    changes: &mut Changes,
    desired: &mut Desired,
    dump: &TableDump,
) -> HashSet<SetName> {
    let mut replaced = HashSet::new();
    for (name, set) in &desired.sets {
        let mut ranges = desired.ranges.remove(name);
        match dump.sets.get(name) {
            Some(known) if known.definition.as_ref().is_ok_and(|known| known.same_shape(set)) => {
                let Some(wanted) = ranges.take() else { continue };
                let known = known.elements.iter().flatten().map(|known| known.element.key);
                let change = RangeChange::between(known, wanted.clone());
                if !change.needs_new_set() {
                    changes.change_own(set, change.delete, change.add);
                    continue;
                }
                replaced.insert(name.clone());
                changes.delete_sets.push(name.clone());
                ranges = Some(wanted);
            }
            Some(_) => {
                replaced.insert(name.clone());
                changes.delete_sets.push(name.clone());
            }
            None => {}
        }
        changes.add_sets.push(set.clone());
        if let Some(ranges) = ranges {
            changes.change_own(set, Vec::new(), ranges);
        }
    }
    changes
        .delete_sets
        .extend(dump.sets.keys().filter(|name| !desired.sets.contains_key(*name)).cloned());
    replaced
}

fn compare_chains(
    changes: &mut Changes,
    family: Family,
    desired: &mut Desired,
    dump: &TableDump,
    replaced: &HashSet<SetName>,
) {
    let bases: HashSet<ChainName> =
        desired.base_chains.iter().map(|chain| chain.name.clone()).collect();
    // Base chains that exist at another hook.
    let mut moved: HashSet<&ChainName> = HashSet::new();
    for base in &desired.base_chains {
        match dump.chains.get(&base.name).map(|chain| &chain.base) {
            Some(ChainBase::Base(known)) if known == base => continue,
            Some(_) => {
                changes.delete_base_chains.push(base.name.clone());
                moved.insert(&base.name);
            }
            None => {}
        }
        changes.add_base_chains.push(base.clone());
    }
    for (name, chain) in &desired.chains {
        match dump.chains.get(name).filter(|_| !moved.contains(name)) {
            Some(known) => {
                let fits =
                    known.rules.len() == chain.rules.len()
                        && known.rules.iter().zip(&chain.rules).all(|(known, rule)| {
                            known.fingerprint == Some(rule.fingerprint(family))
                        });
                if !fits || chain.uses(replaced) {
                    changes.rewrite_chain(chain.clone());
                }
            }
            None if bases.contains(name) => changes.rules.push(chain.clone()),
            None => changes.new_chain(chain.clone()),
        }
    }
    let now = Instant::now();
    for (name, known) in &dump.chains {
        if desired.chains.contains_key(name) {
            continue;
        }
        match &known.base {
            ChainBase::Regular => {
                if !known.rules.is_empty() {
                    changes.flush_chains.push(name.clone());
                }
                desired.memory.stale_chains.insert(name.clone(), now);
            }
            ChainBase::Base(_) | ChainBase::Foreign(_) => {
                changes.delete_base_chains.push(name.clone());
            }
        }
    }
}

fn compare_elements(changes: &mut Changes, desired: &mut Desired, dump: &TableDump) {
    for set in TableSet::all() {
        let mut wanted = desired.elements.remove(&set).unwrap_or_default();
        let name = &set.definition(dump.table.family).name;
        let known = dump.sets.get(name).and_then(|set| set.elements.as_ref());
        for known in known.into_iter().flatten() {
            let key = known.element.key;
            match wanted.get(&key) {
                Some(same) if *same == known.element => {
                    wanted.remove(&key);
                }
                Some(_) | None => changes.delete_element(set, key),
            }
        }
        for element in wanted.into_values() {
            changes.add_element(set, element);
        }
    }
}

/// Compares the set of a pool's endpoints. Returns whether endpoints left.
fn compare_members(changes: &mut Changes, pool: &RememberedPool, dump: &TableDump) -> bool {
    let set = &pool.members;
    let known = dump.sets.get(&set.name).filter(|known| {
        known.definition.as_ref().is_ok_and(|definition| definition.same_shape(set))
    });
    let known = known.and_then(|known| known.elements.as_ref()).into_iter().flatten();
    let (gone, come) = difference(known.map(|known| known.element.key), pool.elements());
    let has_lost = !gone.is_empty();
    changes.change_own(set, gone, come);
    has_lost
}

/// The handles and the timeouts of the kernel's maps of clients, by the part of their names that identifies
/// the Service port.
#[derive(Default)]
struct KernelClients<'a>(HashMap<&'a str, Vec<(u64, Earlier)>>);

impl<'a> KernelClients<'a> {
    fn from_dump(dump: Option<&'a TableDump>) -> Self {
        let mut clients = Self::default();
        for (name, set) in dump.into_iter().flat_map(|dump| &dump.sets) {
            if let Some((named, base)) = affinity::split_clients_map(name.as_str())
                && let Ok(SetDef { timeout: Some(timeout), .. }) = set.definition
            {
                let map = (set.handle, Earlier { named, timeout });
                clients.0.entry(base).or_default().push(map);
            }
        }
        clients
    }

    /// The earlier maps of a Service port, and until when they are needed. Of several, those are meant
    /// that remembered clients last: the newest, whose handle is the highest.
    fn earlier(
        &self,
        port: &ResolvedServicePort,
        known: Option<&LastSynced>,
    ) -> Option<(Earlier, Instant)> {
        let wanted = port.affinity?;
        if self.0.is_empty() {
            return None;
        }
        let known = known.and_then(|known| known.earlier.get(&port.id));
        let found = self.0.get(names::service_port_base(&port.id.name).as_str())?;
        let mut found = found.iter().filter(|(_, found)| found.named != Some(wanted));
        let is_known = |found: &Earlier| known.is_some_and(|(known, _)| known == found);
        let now = Instant::now();
        let unknown = found.clone().filter(|(_, found)| !is_known(found));
        match unknown.max_by_key(|(handle, _)| *handle) {
            Some(&(_, last)) => Some((last, now + last.outlasts(wanted))),
            None => found.find_map(|_| known.copied().filter(|(_, until)| *until > now)),
        }
    }
}

/// The endpoints as the kernel has them in slots.
#[derive(Default)]
struct KernelSlots(HashMap<(TableSet, Key), BTreeMap<u32, SocketAddr>>);

impl KernelSlots {
    fn from_dump(dump: Option<&TableDump>) -> Self {
        let mut slots = Self::default();
        let Some(dump) = dump else { return slots };
        for set in TableSet::all() {
            let definition = set.definition(dump.table.family);
            if !matches!(definition.data, SetData::Value(_)) {
                continue;
            }
            let elements = dump.sets.get(&definition.name).and_then(|set| set.elements.as_ref());
            for known in elements.into_iter().flatten() {
                if let ElementData::Value(value) = &known.element.data
                    && let Some((key, slot)) = split_slot(&known.element.key)
                    && let Some(address) = endpoint_address(value, dump.table.family)
                {
                    slots.0.entry((set, key)).or_default().insert(slot, address);
                }
            }
        }
        slots
    }

    /// Returns the slots of a pool, from the first of its runs that the kernel has.
    fn pool(&self, runs: &[SlotRange], kind: PoolKind) -> Vec<SocketAddr> {
        runs.iter()
            .filter(|run| run.pool == kind)
            .find_map(|run| self.0.get(&(run.map, run.key)))
            .map(|slots| slots.values().copied().collect())
            .unwrap_or_default()
    }
}

/// Splits a key into all fields but the last, and the slot number in the last one.
fn split_slot(key: &Key) -> Option<(Key, u32)> {
    let (rest, slot) = key.as_slice().split_last_chunk::<4>()?;
    Some((Key::from_bytes(rest)?, u32::from_ne_bytes(*slot)))
}

fn endpoint_address(value: &Value, family: Family) -> Option<SocketAddr> {
    let bytes = value.as_slice();
    let (ip, port): (IpAddr, &[u8]) = match family {
        Family::Ip => {
            let (ip, port) = bytes.split_first_chunk::<4>()?;
            ((*ip).into(), port)
        }
        Family::Ip6 => {
            let (ip, port) = bytes.split_first_chunk::<16>()?;
            ((*ip).into(), port)
        }
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port.first_chunk::<2>()?)))
}
