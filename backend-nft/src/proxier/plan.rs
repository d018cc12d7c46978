//! The plan of a sync: the changes that lead from what the tables hold to what they should hold.
//!
//! Their contents are either trusted or read ([`Have`]). Of trusted tables only what depends on a
//! change is compared, so that the cost of a sync is that of its changes; tables that were read are
//! compared whole.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use switchyard_core::{
    model::PerFamily,
    state::{PoolKind, ResolvedServicePort, State},
    transition::{Before, PortChange, Transition},
};
use switchyard_kernel::nftables::{
    BaseChain, ChainBase, ChainDump, ChainName, Element, ElementData, Family, Key, SetDef, SetDump,
    SetName, TableDump, Value,
};

use super::{
    changes::{Changes, TableChange},
    clients,
    last_synced::{LastSynced, SyncedTable, Update},
    now,
};
use crate::layout::{
    ChainRules, Context, NftConfig,
    affinity::{self, Earlier, RememberedPool},
    lb_chains::{self, LbChain},
    names,
    service_port::{self, Contents, PortObjects, PortSet, SlotRange},
    slots::{Allocation, Allocations},
    source_ranges,
    table::{self, TableSet},
};

/// The contents of the tables before a sync.
#[derive(Clone, Copy)]
pub(crate) enum Have<'a> {
    /// The last synced objects, which the kernel is trusted to hold still.
    Synced { last: &'a LastSynced, before: Before<'a>, change: Transition<'a> },
    /// The objects read, whichever program put it there. `last` is what the kernel should hold, if
    /// that is known. `swept` are the families whose clients were swept since endpoints left.
    Read {
        dumps: &'a PerFamily<Option<TableDump>>,
        last: Option<&'a LastSynced>,
        swept: PerFamily<bool>,
    },
}

/// Plans the changes that make the tables hold `after`. Also returns what to remember if they
/// succeed.
pub(crate) fn plan<'a>(
    config: &'a NftConfig,
    after: &'a State,
    have: Have<'a>,
) -> (PerFamily<Changes>, Update) {
    let mut update = Update::default();
    let mut changes = PerFamily::default();
    for family in config.families() {
        let plan = Plan {
            config,
            context: Context::new(config, family, &after.node),
            after,
            want: Objects::default(),
            update: &mut update,
        };
        *changes.get_mut(family.into()) = match have {
            Have::Synced { last, before, change } => plan.since_sync(last, before, change),
            Have::Read { dumps, last, swept } => {
                // The family may have been left out.
                let last = last.filter(|last| *last.families.get(family.into()));
                let is_swept = last.is_some() || *swept.get(family.into());
                plan.against_dump(dumps.get(family.into()).as_ref(), last, is_swept)
            }
        };
    }
    (changes, update)
}

/// Objects of a table, as they were synced or are wanted: all, or those that are compared.
#[derive(Default)]
struct Objects {
    chains: BTreeMap<ChainName, ChainRules>,
    sets: BTreeMap<SetName, PortSet>,
    elements: BTreeMap<TableSet, HashMap<Key, Element>>,
    slots: Vec<(SlotRange, Allocation)>,
    pools: Vec<RememberedPool>,
}

impl Objects {
    fn add_chains(&mut self, chains: impl IntoIterator<Item = ChainRules>) {
        self.chains.extend(chains.into_iter().map(|chain| (chain.name.clone(), chain)));
    }

    fn add_set(&mut self, set: PortSet) {
        self.sets.insert(set.definition.name.clone(), set);
    }

    fn add_element(&mut self, set: TableSet, element: Element) {
        self.elements.entry(set).or_default().insert(element.key, element);
    }

    /// Adds the chains and elements that depend on the node's settings.
    fn add_table(&mut self, context: &Context<'_>, lb_chains: &BTreeSet<LbChain>) {
        self.add_chains(table::chains(context));
        self.add_chains(lb_chains.iter().map(|chain| chain.rules(context)));
        for (set, element) in table::elements(context) {
            self.add_element(set, element);
        }
    }

    /// Adds the objects of a Service port, but for those that others may need, too.
    fn add_port(&mut self, objects: PortObjects, allocations: &Allocations) {
        self.add_chains(objects.chains);
        objects.sets.into_iter().for_each(|set| self.add_set(set));
        for (set, element) in objects.elements {
            self.add_element(set, element);
        }
        let slots = objects.slots.into_iter();
        self.slots.extend(slots.map(|slots| (slots, allocations.get(slots.pool).clone())));
        self.pools.extend(objects.pools);
    }
}

/// The plan for one table, while it is made.
struct Plan<'a> {
    config: &'a NftConfig,
    context: Context<'a>,
    after: &'a State,
    want: Objects,
    update: &'a mut Update,
}

impl<'a> Plan<'a> {
    fn since_sync(
        mut self,
        last: &'a LastSynced,
        before: Before<'a>,
        change: Transition<'a>,
    ) -> Changes {
        let family = self.context.family;
        let table = last.tables.get(family.into());
        let context = Context::new(self.config, family, before.node());
        let mut synced = Objects::default();
        if change.node_changed() {
            synced.add_table(&context, &table.lb_chains);
            self.want.add_table(&self.context, &table.lb_chains);
            self.want_lb_chains(table::lb_chains(&self.context), &table.lb_chains);
        }
        for port in self.ports(last, before, change) {
            let id = port.id;
            let old = port.before.map(|port| last.allocations(port));
            if let (Some(port), Some(allocations)) = (port.before, &old) {
                let objects = service_port::objects(port, &context, last.earlier(id));
                for element in &objects.counted {
                    *self.counts().entry(*element).or_default() -= 1;
                }
                synced.add_port(objects, allocations);
            }
            let earlier = last.earlier_after(port);
            if earlier.is_some() || last.earlier.contains_key(id) {
                self.update.earlier.push((id.clone(), earlier));
            }
            match port.after {
                Some(port) => self.want_port(port, &table.lb_chains, earlier, |_, kind| {
                    old.as_ref().map(|old| old.get(kind).addresses().collect()).unwrap_or_default()
                }),
                None => self.update.allocations.push((id.clone(), None)),
            }
        }
        self.finish(Known::synced(synced), Some(table), true)
    }

    /// The Service ports to compare: those that have changed, and those whose chains or maps of
    /// clients change without that.
    fn ports(
        &self,
        last: &'a LastSynced,
        before: Before<'a>,
        change: Transition<'a>,
    ) -> impl Iterator<Item = PortChange<'a>> + use<'a> {
        let (family, after, now) = (self.context.family, self.after, now());
        // Chains of Service ports depend on the node's settings.
        let node_changed = change.node_changed();
        let with_chains = node_changed.then(|| before.ports()).into_iter().flatten();
        let with_chains = with_chains.filter(|port| service_port::has_chains(port));
        let with_chains = with_chains.map(move |port| PortChange {
            id: &port.id,
            before: Some(port),
            after: after.service_ports.get(&port.id),
        });
        // Maps of clients that are of no more use go. With the node's settings, all Service ports
        // that have some are compared.
        let over =
            last.earlier.iter().filter(move |(_, (_, until))| !node_changed && *until <= now);
        let over = over.map(move |(id, _)| {
            let port = before.port(id);
            PortChange { id, before: port, after: port }
        });
        let unchanged = with_chains.chain(over).filter(move |port| !change.has_port(port.id));
        change.ports().chain(unchanged).filter(move |port| Family::from(port.id.family) == family)
    }

    fn against_dump(
        mut self,
        dump: Option<&'a TableDump>,
        last: Option<&LastSynced>,
        is_swept: bool,
    ) -> Changes {
        let family = self.context.family;
        let clients = KnownClients::from_dump(dump);
        let known = dump.map(Known::read).unwrap_or_default();
        self.want.add_table(&self.context, &BTreeSet::new());
        self.want_lb_chains(table::lb_chains(&self.context), &BTreeSet::new());
        for set in TableSet::all() {
            let definition = set.definition(family).clone();
            self.want.add_set(PortSet { definition, contents: Contents::None });
        }
        let ports = &self.after.service_ports;
        for (id, port) in ports.iter().filter(|(id, _)| Family::from(id.family) == family) {
            let earlier = clients.earlier(port, last);
            self.update.earlier.extend(earlier.map(|earlier| (id.clone(), Some(earlier))));
            self.want_port(port, &BTreeSet::new(), earlier, |slots, kind| known.pool(slots, kind));
        }
        let (known, table, restore) = match dump {
            None => (known, TableChange::Add, Vec::new()),
            Some(dump) if is_repairable(self.config, &self.want, dump) => {
                (known, TableChange::Keep, clients::of_upstream(&self.want.pools, dump))
            }
            Some(_) => (Known::default(), TableChange::Replace, Vec::new()),
        };
        Changes { table, restore, ..self.finish(known, None, is_swept) }
    }

    /// Adds chains of the table that are not among the `known` ones.
    fn want_lb_chains(&mut self, needed: impl Iterator<Item = LbChain>, known: &BTreeSet<LbChain>) {
        let table = self.update.tables.get_mut(self.context.family.into());
        for chain in needed.flat_map(|chain| chain.leads_to().chain([chain])) {
            if !known.contains(&chain) && table.lb_chains.insert(chain) {
                self.want.add_chains([chain.rules(&self.context)]);
            }
        }
    }

    fn counts(&mut self) -> &mut HashMap<(TableSet, Key), i64> {
        &mut self.update.tables.get_mut(self.context.family.into()).counts
    }

    /// Adds a Service port to what is wanted. `before` returns the endpoints as they were in the
    /// slots of a pool.
    fn want_port(
        &mut self,
        port: &ResolvedServicePort,
        lb_chains: &BTreeSet<LbChain>,
        earlier: Option<(Earlier, Instant)>,
        mut before: impl FnMut(&[SlotRange], PoolKind) -> Vec<SocketAddr>,
    ) {
        let earlier = earlier.map(|(earlier, _)| earlier);
        let objects = service_port::objects(port, &self.context, earlier);
        let allocations = Allocations::follow(port, |kind| before(&objects.slots, kind));
        let table = self.update.tables.get_mut(self.context.family.into());
        for element in &objects.counted {
            *table.counts.entry(*element).or_default() += 1;
        }
        self.want_lb_chains(objects.lb_chains.iter().copied(), lb_chains);
        self.want.add_port(objects, &allocations);
        let kept = allocations.is_historic().then_some(allocations);
        self.update.allocations.push((port.id.clone(), kept));
    }

    /// Compares what is known with what is wanted. `synced` is what was synced last, if that is
    /// trusted. Unless clients are swept, endpoints may have left pools whose clients are still
    /// there.
    fn finish(self, mut known: Known<'_>, synced: Option<&SyncedTable>, is_swept: bool) -> Changes {
        let Self { config, context, mut want, update, .. } = self;
        let update = update.tables.get_mut(context.family.into());
        // Elements that several Service ports need are added with the first and deleted with the
        // last.
        for (&(set, key), &change) in &update.counts {
            let counts = synced.and_then(|table| table.counts.get(&(set, key)));
            let before = counts.copied().unwrap_or_default();
            if before > 0 {
                known.elements.push((set, Cow::Owned(Element::new(key))));
            }
            if before + change > 0 {
                want.add_element(set, Element::new(key));
            }
        }
        let mut changes = Changes::default();
        let is_there =
            |pool: &RememberedPool| pool.maps().any(|map| known.sets.contains_key(&map.name));
        let there: Vec<bool> = want.pools.iter().map(is_there).collect();
        let (replaced, lost) = compare_sets(&mut changes, known.sets, want.sets);
        for (pool, is_there) in want.pools.iter().zip(there) {
            let has_lost = !is_swept || lost.contains(&pool.members.name);
            // Also of new pools: a map of that name may just be swept.
            changes.sweeps.extend(clients::sweeps(pool, is_there && has_lost));
        }
        update.used_chains.extend(want.chains.keys().cloned());
        let stale = compare_chains(
            config,
            &mut changes,
            context.family,
            known.chains,
            want.chains,
            &replaced,
        );
        update.stale_chains.extend(stale);
        compare_elements(&mut changes, known.elements, want.elements);
        compare_slots(&mut changes, known.slots, &want.slots);
        changes
    }
}

/// The contents of a table, as far as it is compared.
#[derive(Default)]
struct Known<'a> {
    chains: BTreeMap<ChainName, KnownChain<'a>>,
    sets: BTreeMap<SetName, KnownSet<'a>>,
    elements: Vec<(TableSet, Cow<'a, Element>)>,
    /// The slots of each map, by the key without the slot.
    slots: HashMap<(TableSet, Key), KnownSlots>,
}

enum KnownChain<'a> {
    Synced(ChainRules),
    Read(&'a ChainDump),
}

enum KnownSet<'a> {
    Synced(PortSet),
    Read(&'a SetDump),
}

enum KnownSlots {
    Synced(Allocation),
    Read(BTreeMap<u32, SocketAddr>),
}

impl<'a> Known<'a> {
    fn synced(objects: Objects) -> Self {
        let chains = objects.chains.into_iter();
        let sets = objects.sets.into_iter();
        let elements = objects.elements.into_iter();
        let slots = objects.slots.into_iter();
        Self {
            chains: chains.map(|(name, chain)| (name, KnownChain::Synced(chain))).collect(),
            sets: sets.map(|(name, set)| (name, KnownSet::Synced(set))).collect(),
            elements: elements
                .flat_map(|(set, elements)| {
                    elements.into_values().map(move |element| (set, Cow::Owned(element)))
                })
                .collect(),
            slots: slots
                .map(|(slots, known)| ((slots.map, slots.key), KnownSlots::Synced(known)))
                .collect(),
        }
    }

    fn read(dump: &'a TableDump) -> Self {
        let chains = dump.chains.iter();
        let sets = dump.sets.iter();
        let mut known = Self {
            chains: chains.map(|(name, chain)| (name.clone(), KnownChain::Read(chain))).collect(),
            sets: sets.map(|(name, set)| (name.clone(), KnownSet::Read(set))).collect(),
            ..Self::default()
        };
        for set in TableSet::all() {
            let definition = set.definition(dump.table.family);
            let elements = dump.sets.get(&definition.name).and_then(|set| set.elements.as_ref());
            for element in elements.into_iter().flatten().map(|known| &known.element) {
                match set.has_slots().then(|| slot(element, dump.table.family)).flatten() {
                    Some((key, slot, address)) => known.add_slot((set, key), slot, address),
                    None => known.elements.push((set, Cow::Borrowed(element))),
                }
            }
        }
        known
    }

    fn add_slot(&mut self, of: (TableSet, Key), slot: u32, address: SocketAddr) {
        let slots = self.slots.entry(of).or_insert_with(|| KnownSlots::Read(BTreeMap::new()));
        if let KnownSlots::Read(slots) = slots {
            slots.insert(slot, address);
        }
    }

    /// Returns the endpoints in the slots of a pool, from the first of its maps that has some.
    fn pool(&self, slots: &[SlotRange], kind: PoolKind) -> Vec<SocketAddr> {
        let mut known = slots.iter().filter(|slots| slots.pool == kind);
        match known.find_map(|slots| self.slots.get(&(slots.map, slots.key))) {
            Some(KnownSlots::Read(slots)) => slots.values().copied().collect(),
            Some(KnownSlots::Synced(_)) | None => Vec::new(),
        }
    }
}

impl KnownChain<'_> {
    /// Whether this is the base chain `base`, or a regular chain.
    fn is_at(&self, base: Option<&BaseChain>) -> bool {
        match (self, base) {
            (Self::Synced(_), _) => true,
            (Self::Read(known), None) => known.base == ChainBase::Regular,
            (Self::Read(ChainDump { base: ChainBase::Base(known), .. }), Some(base)) => {
                known == base
            }
            (Self::Read(_), Some(_)) => false,
        }
    }

    fn has_rules_of(&self, wanted: &ChainRules, family: Family) -> bool {
        match self {
            Self::Synced(known) => known == wanted,
            Self::Read(known) => {
                known.rules.len() == wanted.rules.len()
                    && known
                        .rules
                        .iter()
                        .zip(&wanted.rules)
                        .all(|(known, rule)| known.fingerprint == Some(rule.fingerprint(family)))
            }
        }
    }
}

impl KnownSet<'_> {
    fn has_shape_of(&self, wanted: &SetDef) -> bool {
        match self {
            // The name has all that the shape depends on.
            Self::Synced(_) => true,
            Self::Read(known) => known.definition.as_ref().is_ok_and(|set| set.same_shape(wanted)),
        }
    }

    /// The differences from the wanted elements.
    fn difference(&self, wanted: &Contents) -> (Vec<Key>, Vec<Element>) {
        let known: HashSet<Key> = match (self, wanted) {
            (_, Contents::None) => return Default::default(),
            (Self::Synced(known), _) if known.contents == *wanted => return Default::default(),
            (Self::Synced(known), _) => {
                known.contents.elements().into_iter().map(|element| element.key).collect()
            }
            (Self::Read(known), _) => {
                known.elements.iter().flatten().map(|known| known.element.key).collect()
            }
        };
        let mut left = known;
        let come = wanted.elements();
        let come = come.into_iter().filter(|element| !left.remove(&element.key)).collect();
        let mut gone: Vec<Key> = left.into_iter().collect();
        gone.sort_unstable();
        (gone, come)
    }
}

impl KnownSlots {
    fn address(&self, slot: usize) -> Option<SocketAddr> {
        match self {
            Self::Synced(known) => known.address(slot),
            Self::Read(known) => known.get(&u32::try_from(slot).ok()?).copied(),
        }
    }

    /// The slots from this one on.
    fn from(&self, first: usize) -> Vec<u32> {
        match self {
            Self::Synced(known) => (first as u32..known.len() as u32).collect(),
            Self::Read(known) => known.range(first as u32..).map(|(slot, _)| *slot).collect(),
        }
    }
}

/// Whether every object with a known name has the expected kind and shape: if not, making the table
/// anew is quicker, and as atomic. Base chains and sets that remember clients are replaced one by
/// one: older kube-proxies had some base chains at other hooks, and clients are worth keeping.
fn is_repairable(config: &NftConfig, want: &Objects, dump: &TableDump) -> bool {
    let chains_fit = dump.chains.iter().all(|(name, chain)| {
        let is_regular = chain.base == ChainBase::Regular;
        !want.chains.contains_key(name) || is_regular == table::base_chain(config, name).is_none()
    });
    let sets_fit = TableSet::all().all(|set| {
        let definition = set.definition(dump.table.family);
        let known = dump.sets.get(&definition.name);
        known.is_none_or(|known| KnownSet::Read(known).has_shape_of(definition))
    });
    chains_fit && sets_fit
}

/// Returns the sets that are made anew, whose rules must be made anew, too, and those that lose
/// elements.
fn compare_sets(
    changes: &mut Changes,
    mut known: BTreeMap<SetName, KnownSet<'_>>,
    wanted: BTreeMap<SetName, PortSet>,
) -> (HashSet<SetName>, HashSet<SetName>) {
    let (mut replaced, mut lost) = (HashSet::new(), HashSet::new());
    for (name, PortSet { definition, contents }) in wanted {
        if let Some(known) = known.remove(&name) {
            let (gone, come) = known.difference(&contents);
            let is_new = definition.interval && source_ranges::share_boundary(&gone, &come);
            if !is_new && known.has_shape_of(&definition) {
                if !gone.is_empty() {
                    lost.insert(name);
                }
                changes.change_port_set(&definition, gone, come);
                continue;
            }
            changes.delete_sets.push(name.clone());
            replaced.insert(name);
        }
        changes.change_port_set(&definition, Vec::new(), contents.elements());
        changes.add_sets.push(definition);
    }
    changes.delete_sets.extend(known.into_keys());
    (replaced, lost)
}

/// Returns the chains that nothing leads to any more.
fn compare_chains(
    config: &NftConfig,
    changes: &mut Changes,
    family: Family,
    mut known: BTreeMap<ChainName, KnownChain<'_>>,
    wanted: BTreeMap<ChainName, ChainRules>,
    replaced: &HashSet<SetName>,
) -> Vec<ChainName> {
    for (name, chain) in wanted {
        let base = table::base_chain(config, &name);
        match known.remove(&name) {
            Some(known) if known.is_at(base.as_ref()) => {
                if !known.has_rules_of(&chain, family) || chain.uses(replaced) {
                    changes.rewrite_chain(chain);
                }
                continue;
            }
            // It exists at another hook.
            Some(_) => changes.delete_base_chains.push(name),
            None => {}
        }
        match base {
            Some(base) => {
                changes.add_base_chains.push(base);
                changes.rules.push(chain);
            }
            // A stale chain of that name may still exist; making the chain again does no harm.
            None => changes.new_chain(chain),
        }
    }
    let mut stale = Vec::new();
    for (name, known) in known {
        let has_rules = match &known {
            KnownChain::Read(known) => !known.rules.is_empty(),
            KnownChain::Synced(_) => true,
        };
        if !known.is_at(None) {
            changes.delete_base_chains.push(name);
            continue;
        }
        if has_rules {
            changes.flush_chains.push(name.clone());
        }
        stale.push(name);
    }
    stale
}

fn compare_elements(
    changes: &mut Changes,
    known: Vec<(TableSet, Cow<'_, Element>)>,
    mut wanted: BTreeMap<TableSet, HashMap<Key, Element>>,
) {
    for (set, known) in known {
        let wanted = wanted.get_mut(&set);
        match wanted.filter(|wanted| wanted.get(&known.key) == Some(&*known)) {
            Some(wanted) => _ = wanted.remove(&known.key),
            None => changes.delete_element(set, known.key),
        }
    }
    for (set, elements) in wanted {
        elements.into_values().for_each(|element| changes.add_element(set, element));
    }
}

/// Compares slot by slot, so that the cost of a large pool is that of its changes.
fn compare_slots(
    changes: &mut Changes,
    mut known: HashMap<(TableSet, Key), KnownSlots>,
    wanted: &[(SlotRange, Allocation)],
) {
    for (slots, wanted) in wanted {
        let known = known.remove(&(slots.map, slots.key));
        for slot in 0..wanted.len() {
            let was = known.as_ref().and_then(|known| known.address(slot));
            let is = wanted.address(slot);
            if was == is {
                continue;
            }
            if was.is_some() {
                changes.delete_element(slots.map, slots.key.slot(slot as u32));
            }
            if let Some(is) = is {
                changes.add_element(slots.map, slots.element(slot as u32, is));
            }
        }
        for slot in known.iter().flat_map(|known| known.from(wanted.len())) {
            changes.delete_element(slots.map, slots.key.slot(slot));
        }
    }
    for ((map, key), known) in known {
        for slot in known.from(0) {
            changes.delete_element(map, key.slot(slot));
        }
    }
}

/// The handles and the timeouts of the kernel's maps of clients, by the part of their names that
/// identifies the Service port.
#[derive(Default)]
struct KnownClients<'a>(HashMap<&'a str, Vec<(u64, Earlier)>>);

impl<'a> KnownClients<'a> {
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

    /// The earlier maps of a Service port, and until when they are needed. Of several, those are
    /// meant that remembered clients last: the newest, whose handle is the highest.
    fn earlier(
        &self,
        port: &ResolvedServicePort,
        last: Option<&LastSynced>,
    ) -> Option<(Earlier, Instant)> {
        let wanted = port.affinity?;
        if self.0.is_empty() {
            return None;
        }
        let known = last.and_then(|last| last.earlier.get(&port.id));
        let found = self.0.get(names::service_port_base(&port.id.name).as_str())?;
        let mut found = found.iter().filter(|(_, found)| found.named != Some(wanted));
        let is_known = |found: &Earlier| known.is_some_and(|(known, _)| known == found);
        let now = now();
        let unknown = found.clone().filter(|(_, found)| !is_known(found));
        match unknown.max_by_key(|(handle, _)| *handle) {
            Some(&(_, last)) => Some((last, now + last.outlasts(wanted))),
            None => found.find_map(|_| known.copied().filter(|(_, until)| *until > now)),
        }
    }
}

/// The key without the slot, the slot, and the endpoint of an element of a map of slots; `None` for
/// an element that this backend does not write.
fn slot(element: &Element, family: Family) -> Option<(Key, u32, SocketAddr)> {
    let ElementData::Value(value) = &element.data else { return None };
    let (key, slot) = element.key.as_slice().split_last_chunk::<4>()?;
    let address = endpoint_address(value, family)?;
    let written = element.comment.is_none() && *value == lb_chains::endpoint_value(address);
    written.then_some((Key::from_bytes(key)?, u32::from_ne_bytes(*slot), address))
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
