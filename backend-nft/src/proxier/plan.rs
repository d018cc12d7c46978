//! The plan of a sync: the changes that lead from what the tables hold to what they should hold.
//!
//! Their contents are either trusted or read ([`Have`]). Of trusted tables only what depends on a
//! change is compared, so that the cost of a sync is that of its changes; tables that were read are
//! compared whole.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use switchyard_core::{
    model::{HashMap, HashSet, PerFamily},
    state::{PoolKind, ResolvedServicePort, State},
    transition::{Before, PortChange, Transition},
};
use switchyard_kernel::nftables::{ChainBase, ChainName, Element, Family, Key, SetName, TableDump};

use super::{
    changes::{Changes, TableChange},
    clients,
    known::{Known, KnownChain, KnownClients, KnownSet, KnownSlots},
    last_synced::{LastSynced, SyncedTable, Update},
    now,
    objects::Objects,
};
use crate::layout::{
    ChainRules, Context, NftConfig,
    affinity::RememberedPool,
    lb_chains::LbChain,
    names,
    service_port::{self, Contents, CountedElement, PortSet, SlotRange},
    slots::{Allocation, Allocations},
    source_ranges,
    table::{self, TableSet},
};

/// The most chains that load-balance and that nothing needs. The kernel looks at every chain of
/// every table in each commit of anybody.
const MOST_UNUSED_CHAINS: usize = if cfg!(test) { 1 } else { 64 };

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
            synced.add_table(&context, table.lb_chains.keys());
            self.want.add_table(&self.context, table.lb_chains.keys());
            self.need_lb_chains(table::lb_chains(&context), -1);
            self.need_lb_chains(table::lb_chains(&self.context), 1);
        }
        if change.health_checks_changed() {
            let (old, new) = (before.health_checks(), &self.after.health_checks);
            synced.add_elements(table::health_checks(&context, old.values()));
            self.want.add_elements(table::health_checks(&self.context, new.values()));
        }
        for port in self.ports(last, before, change) {
            let id = port.id;
            let old = port.before.map(|port| last.allocations(port));
            if let (Some(port), Some(allocations)) = (port.before, &old) {
                let objects = service_port::objects(port, &context, last.earlier(id));
                for element in &objects.counted {
                    *self.counts().entry(*element).or_default() -= 1;
                }
                self.need_lb_chains(objects.lb_chains.iter().copied(), -1);
                synced.add_port(objects, allocations);
            }
            let earlier = last.earlier_after(port);
            if earlier.is_some() || last.earlier.contains_key(id) {
                self.update.earlier.push((id.clone(), earlier));
            }
            match port.after {
                Some(port) => self.want_port(port, earlier, |_, kind| {
                    old.as_ref().map(|old| old.get(kind).addresses().collect()).unwrap_or_default()
                }),
                None => self.update.allocations.push((id.clone(), None)),
            }
        }
        self.retire_lb_chains(&context, table, &mut synced);
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
        self.want.add_table(&self.context, []);
        self.need_lb_chains(table::lb_chains(&self.context), 1);
        let health_checks = self.after.health_checks.values();
        self.want.add_elements(table::health_checks(&self.context, health_checks));
        for set in TableSet::all().filter(|set| set.is_needed(&self.context)) {
            let definition = set.definition(family).clone();
            self.want.add_set(PortSet { definition, contents: Contents::None });
        }
        let ports = &self.after.service_ports;
        for (id, port) in ports.iter().filter(|(id, _)| Family::from(id.family) == family) {
            let earlier = clients.earlier(port, last);
            self.update.earlier.extend(earlier.map(|earlier| (id.clone(), Some(earlier))));
            self.want_port(port, earlier, |slots, kind| known.pool(slots, kind));
        }
        let (known, table, restore) = match dump {
            None => (known, TableChange::Add, Vec::new()),
            // What stays of a loopback guard alone goes with the table's own chains.
            Some(dump) if serves_nothing(dump) => (known, TableChange::Add, Vec::new()),
            Some(dump) if is_repairable(self.config, &self.want, dump) => {
                let table = if dump.dormant { TableChange::Wake } else { TableChange::Keep };
                (known, table, clients::of_upstream(&self.want.pools, dump))
            }
            Some(_) => (Known::default(), TableChange::Replace, Vec::new()),
        };
        Changes { table, restore, ..self.finish(known, None, is_swept) }
    }

    /// Notes that chains of the table, and those that they lead to, are needed once more or less.
    fn need_lb_chains(&mut self, needed: impl Iterator<Item = LbChain>, change: i64) {
        let table = self.update.tables.get_mut(self.context.family.into());
        for chain in needed.flat_map(|chain| chain.leads_to().chain([chain])) {
            *table.lb_chains.entry(chain).or_default() += change;
        }
    }

    /// Gives chains up that nothing needs any more, all at once when there are too many. Some are
    /// kept for the next Service port with as many slots: one that scales up often scales down.
    fn retire_lb_chains(
        &mut self,
        context: &Context<'_>,
        table: &SyncedTable,
        synced: &mut Objects,
    ) {
        let update = self.update.tables.get_mut(self.context.family.into());
        if update.lb_chains.is_empty() {
            return;
        }
        let change = |chain: &LbChain| update.lb_chains.get(chain).copied().unwrap_or_default();
        let unused = table.lb_chains.iter().filter(|(chain, count)| **count + change(chain) <= 0);
        let unused: Vec<LbChain> = unused.map(|(chain, _)| *chain).collect();
        if unused.len() > MOST_UNUSED_CHAINS {
            for chain in &unused {
                self.want.chains.remove(&chain.name());
            }
            synced.add_chains(unused.iter().map(|chain| chain.rules(context)));
            update.retired = unused;
        }
    }

    fn counts(&mut self) -> &mut HashMap<CountedElement, i32> {
        &mut self.update.tables.get_mut(self.context.family.into()).counts
    }

    /// Adds a Service port to what is wanted. `before` returns the endpoints as they were in the
    /// slots of a pool.
    fn want_port(
        &mut self,
        port: &ResolvedServicePort,
        earlier: Option<(Duration, Instant)>,
        mut before: impl FnMut(&[SlotRange], PoolKind) -> Vec<SocketAddr>,
    ) {
        let earlier = earlier.map(|(earlier, _)| earlier);
        let objects = service_port::objects(port, &self.context, earlier);
        let has_chains = service_port::has_chains(port);
        let allocations =
            Allocations::follow(port, has_chains, |kind| before(&objects.slots, kind));
        let table = self.update.tables.get_mut(self.context.family.into());
        for element in &objects.counted {
            *table.counts.entry(*element).or_default() += 1;
        }
        self.need_lb_chains(objects.lb_chains.iter().copied(), 1);
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
        for (element, &change) in &update.counts {
            let counts = synced.and_then(|table| table.counts.get(element));
            let (set, key) = element.set_and_key();
            let before = counts.copied().unwrap_or_default();
            if before > 0 {
                known.elements.push((set, Cow::Owned(Element::new(key))));
            }
            if before + change > 0 {
                want.add_element(set, Element::new(key));
            }
        }
        for (chain, &change) in &update.lb_chains {
            let is_known = synced.is_some_and(|table| table.lb_chains.contains_key(chain));
            if !is_known && change > 0 {
                want.add_chains([chain.rules(&context)]);
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

/// Whether no packet finds a Service in a table: it is empty, or guards loopback addresses alone.
fn serves_nothing(dump: &TableDump) -> bool {
    let is_guard = |name: &ChainName| name.as_str() == names::chain::LOOPBACK_GUARD;
    !dump.dormant && dump.sets.is_empty() && dump.chains.keys().all(is_guard)
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
    let (mut replaced, mut lost) = (HashSet::default(), HashSet::default());
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
        // An element of after may lead a frontend of another pool to these by rules of before.
        for (slot, endpoint) in wanted.passing().filter(|_| known.is_none()) {
            changes.add_element(slots.map, slots.element(slot as u32, endpoint));
            changes.passing.entry(slots.map).or_default().push(slots.key.slot(slot as u32));
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
