//! The quick repair of what other programs are known to have changed, from the kernel's
//! notifications of their commits alone. A comparison of everything takes far longer, and follows
//! only where they do not name all.

use std::mem;

use switchyard_core::{
    error::ErrorChain,
    model::{HashMap, HashSet, PerFamily},
    proxier::SyncReport,
    state::ResolvedServicePort,
    transition::{Before, Transition},
};
use switchyard_kernel::nftables::{
    Element, Family, Key, Transaction,
    netlink::{Touched, TouchedTable},
};

use super::{NftProxier, changes::Changes, drift, last_synced::LastSynced};
use crate::{
    layout::{
        Context, NftConfig,
        service_port::{self, PortObjects},
        source_ranges,
        table::{self, TableSet},
    },
    monitor::Noted,
};

/// Changes by other programs that are known before a comparison, and their repair.
#[derive(Default)]
pub(super) struct Mending {
    /// The objects that were changed since the last resync.
    pub(super) noted: Noted,
    /// The generation up to which a comparison has seen all changes.
    pub(super) compared_at: Option<u32>,
    /// The report of repairs that no comparison has followed yet.
    pub(super) mended: SyncReport,
}

impl Mending {
    /// Returns the report of a sync, with those of the repairs before it.
    pub(super) fn reported_with(&mut self, report: SyncReport) -> SyncReport {
        let mut mended = mem::take(&mut self.mended);
        mended.add(report);
        mended
    }
}

impl NftProxier {
    /// Repairs what other programs are known to have changed. Returns whether the tables hold again
    /// what was synced last: that was all, and the kernel took it.
    pub(super) fn mend(&mut self, config: &NftConfig, change: &Transition<'_>) -> bool {
        let mut touched = self.mending.noted.take();
        let last = self.last.as_ref().filter(|last| last.families == config.families);
        let (Some(last), Some(before)) = (last, change.before()) else { return false };
        if let Some(generation) = self.mending.compared_at {
            touched.forget_until(generation);
        }
        let (PerFamily { v4, v6 }, mut is_whole) = changes(config, &touched, last, before);
        for (family, mut chains) in [(Family::Ip, v4), (Family::Ip6, v6)] {
            let delete_elements = mem::take(&mut chains.delete_elements);
            let add_elements = mem::take(&mut chains.add_elements);
            is_whole &= self.repair(config, family, chains);
            let elements = Changes { delete_elements, add_elements, ..Changes::default() };
            is_whole &= self.repair(config, family, elements);
        }
        is_whole
    }

    /// Commits repairs, without those of elements that the kernel refuses: these have changed
    /// again, which is yet to be reported, or was by this program. Returns false if that fails.
    fn repair(&mut self, config: &NftConfig, family: Family, mut changes: Changes) -> bool {
        let Some(last) = &self.last else { return false };
        for _ in 0..2 {
            let mut transaction = Transaction::new();
            changes.clone().append_to(&config.table(family), &mut transaction);
            if transaction.is_empty() {
                return true;
            }
            match self.transport.commit(&transaction) {
                Ok(stats) => {
                    let mut report = SyncReport::default();
                    (report.added, report.removed) = changes.counts();
                    report.bytes = stats.bytes;
                    report.messages = stats.operations;
                    report.commit = stats.commit;
                    let mut found = PerFamily::default();
                    *found.get_mut(family.into()) = changes;
                    report.drift = drift::find(&found, &PerFamily::default(), last);
                    self.mending.mended.add(report);
                    return true;
                }
                Err(error) => {
                    tracing::debug!(err = %ErrorChain(&error), "Not repaired without a comparison");
                    changes.forget_refused(family, &transaction, &error);
                }
            }
        }
        false
    }
}

/// Returns the changes that undo the rules and the elements of tables' sets that were `touched`,
/// for what was synced last, and whether these are all. Families that are not programmed are
/// compared when they are again.
fn changes(
    config: &NftConfig,
    touched: &Touched,
    last: &LastSynced,
    before: Before<'_>,
) -> (PerFamily<Changes>, bool) {
    let (mut changes, mut are_all) = (PerFamily::default(), !touched.anything);
    for family in config.families() {
        let Some(touched) = touched.tables.get(&config.table(family)) else { continue };
        if touched.more {
            are_all = false;
            continue;
        }
        let context = &Context::new(config, family, before.node());
        let mend = Mend { last, before, context };
        let changes: &mut Changes = changes.get_mut(family.into());
        are_all &= mend.chains(touched, changes) == touched.chains.len();
        are_all &= mend.elements(touched, changes) == touched.elements.len();
    }
    (changes, are_all)
}

struct Mend<'a> {
    last: &'a LastSynced,
    before: Before<'a>,
    context: &'a Context<'a>,
}

impl Mend<'_> {
    fn ports(&self) -> impl Iterator<Item = &ResolvedServicePort> {
        let ports = self.before.ports().map(|port| &**port);
        ports.filter(|port| Family::from(port.id.family) == self.context.family)
    }

    fn objects(&self, port: &ResolvedServicePort) -> PortObjects {
        service_port::objects(port, self.context, self.last.earlier(&port.id))
    }

    /// Returns the number of chains that are written anew.
    fn chains(&self, touched: &TouchedTable, changes: &mut Changes) -> usize {
        if touched.chains.is_empty() {
            return 0;
        }
        let lb_chains = &self.last.tables.get(self.context.family.into()).lb_chains;
        let lb_chains = lb_chains.keys().map(|chain| chain.rules(self.context));
        let has_chains =
            |port: &_| service_port::has_chains(port) || source_ranges::all(port).is_some();
        let of_ports = self.ports().filter(|port| has_chains(port));
        let chains = table::chains(self.context).into_iter().chain(lb_chains);
        let chains = chains.chain(of_ports.flat_map(|port| self.objects(port).chains));
        let touched = chains.filter(|chain| touched.chains.contains_key(&chain.name));
        touched.for_each(|chain| changes.rewrite_chain(chain));
        changes.flush_chains.len()
    }

    /// Returns the number of sets that hold again what they should.
    fn elements(&self, touched: &TouchedTable, changes: &mut Changes) -> usize {
        let family = self.context.family;
        let touched = |set: TableSet| {
            let name = set.definition(family).name.clone();
            touched.elements.get(&name).map(|elements| (set, elements))
        };
        let touched: Vec<_> = TableSet::all().filter_map(touched).collect();
        if touched.is_empty() {
            return 0;
        }
        let sets = touched.len();
        let keys = touched.iter().flat_map(|(set, keys)| keys.keys().map(|key| (*set, *key)));
        let mut wanted = self.wanted(&keys.collect());
        for (set, elements) in touched {
            for (key, (_, now)) in elements {
                let wanted = wanted.remove(&(set, *key));
                if wanted == *now {
                    continue;
                }
                if now.is_some() {
                    changes.delete_element(set, *key);
                }
                wanted.into_iter().for_each(|wanted| changes.add_element(set, wanted));
            }
        }
        sets
    }

    /// The elements with these keys, as they were synced last.
    fn wanted(&self, keys: &HashSet<(TableSet, Key)>) -> HashMap<(TableSet, Key), Element> {
        let family = self.context.family;
        let counts = &self.last.tables.get(family.into()).counts;
        let counted = counts.keys().map(|element| element.set_and_key());
        let counted = counted.map(|(set, key)| (set, Element::new(key)));
        let of_node = table::elements(self.context);
        let health_checks = self.before.health_checks().values();
        let health_checks = table::health_checks(self.context, health_checks);
        let frontends: HashSet<_> =
            keys.iter().map(|(set, key)| set.frontend(family, *key)).collect();
        let is_concerned = |port: &&ResolvedServicePort| {
            port.frontends.iter().any(|it| frontends.contains(&service_port::frontend_key(it)))
        };
        let of_ports = self.ports().filter(is_concerned).flat_map(|port| {
            let PortObjects { elements, slots, .. } = self.objects(port);
            let allocations = self.last.allocations(port);
            let of_slots = slots.into_iter().flat_map(move |slots| {
                let endpoints: Vec<_> = allocations.get(slots.pool).addresses().collect();
                let endpoints = (0..).zip(endpoints);
                endpoints.map(move |(slot, endpoint)| (slots.map, slots.element(slot, endpoint)))
            });
            elements.into_iter().chain(of_slots)
        });
        let elements = counted.chain(of_node).chain(health_checks).chain(of_ports);
        let elements = elements.map(|(set, element)| ((set, element.key), element));
        elements.filter(|(key, _)| keys.contains(key)).collect()
    }
}
