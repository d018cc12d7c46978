//! Syncs that failed, and the Service ports, or the families, of which the kernel refuses objects.

use std::{collections::BTreeSet, iter, mem};

use switchyard_core::{
    error::ErrorChain,
    model::{HashMap, HashSet, IpFamily, PerFamily},
    proxier::{DegradedPort, ProxierError, RefusedParts},
    state::ResolvedServicePort,
    transition::Transition,
};
use switchyard_kernel::nftables::{
    ChainName, Key, OperationKind, Refusal, SetName, Transaction, TransportError,
};

use super::NftProxier;
use crate::layout::{Context, NftConfig, lb_chains::LbChain, service_port, table::TableSet};

/// A transaction that failed, or a table that could not be read.
pub(super) struct Refused {
    pub(super) error: TransportError,
    pub(super) transaction: Box<Transaction>,
    /// A transaction of the same sync that failed before.
    pub(super) known: Option<Box<Refused>>,
    /// The family whose table cannot be read or woken, if that concerns this family alone.
    pub(super) unusable: Option<IpFamily>,
}

impl Refused {
    /// The error with the parts that are the cause; none if everything is.
    pub(super) fn named(self, config: &NftConfig, change: &Transition<'_>) -> ProxierError {
        let refused = match self.unusable {
            Some(family) => {
                let mut parts = RefusedParts::default();
                let reason = format!("cannot use the table: {}", ErrorChain(&self.error));
                *parts.families.get_mut(family) = Some(reason);
                parts
            }
            None => {
                let all = iter::successors(Some(&self), |refused| refused.known.as_deref());
                let all = all.map(|refused| (&*refused.transaction, &refused.error));
                parts(config, change, all)
            }
        };
        self.unnamed().of_parts(refused)
    }

    /// The error with the families of the tables that refuse something, unless these are all.
    pub(super) fn of_tables(self, config: &NftConfig) -> ProxierError {
        let mut parts = RefusedParts::default();
        for refusal in self.error.refusals() {
            if let Some(operation) = self.transaction.operations().get(refusal.operation) {
                let family = IpFamily::from(operation.table.family);
                parts.families.get_mut(family).get_or_insert_with(|| reason(refusal));
            }
        }
        if config.families().all(|family| parts.families.get(family.into()).is_some()) {
            parts = RefusedParts::default();
        }
        self.unnamed().of_parts(parts)
    }

    pub(super) fn unnamed(self) -> ProxierError {
        NftProxier::error("cannot program the tables", self.error)
    }
}

impl From<TransportError> for Refused {
    fn from(error: TransportError) -> Self {
        Self { error, transaction: Box::default(), known: None, unusable: None }
    }
}

/// Whether the kernel refuses single elements, and may take others.
pub(super) fn concerns_elements(error: &TransportError) -> bool {
    let mut refusals = error.refusals().peekable();
    refusals.peek().is_some()
        && !error.contradicts_kernel()
        && refusals.all(|refusal| refusal.element.is_some() && !refusal.concerns_table())
}

/// The objects of a family that the kernel refuses.
#[derive(Default)]
struct RefusedObjects {
    reasons: HashMap<Object, String>,
    /// The keys of the elements, to find those of a Service port by their beginning.
    keys: HashMap<SetName, BTreeSet<Key>>,
}

/// An object that the kernel refuses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Object {
    Chain(ChainName),
    Set(SetName),
    Element(SetName, Key),
}

/// Returns the parts without which the kernel may take transactions: the Service ports that need
/// an object that it refuses, or else the object's family. Nothing if that would be all families,
/// since then something else is wrong; and nothing without memory (`ENOMEM`), which the node lacks,
/// whatever the object: the kernel then reports the commit as a whole.
///
/// Any number of objects may be refused at once: the time is that of planning all Service ports.
fn parts<'a>(
    config: &NftConfig,
    change: &Transition<'_>,
    refused: impl Iterator<Item = (&'a Transaction, &'a TransportError)>,
) -> RefusedParts {
    let mut objects: PerFamily<RefusedObjects> = PerFamily::default();
    let mut parts = RefusedParts::default();
    let refusals =
        refused.flat_map(|(transaction, error)| error.refusals().map(move |r| (transaction, r)));
    for (transaction, refusal) in refusals {
        let Some(operation) = transaction.operations().get(refusal.operation) else {
            return RefusedParts::default();
        };
        let family = IpFamily::from(operation.table.family);
        let reason = reason(refusal);
        if refusal.concerns_table() {
            parts.families.get_mut(family).get_or_insert(reason);
            continue;
        }
        let object = object(&operation.kind, refusal);
        let refused = objects.get_mut(family);
        if let Object::Element(set, key) = &object {
            refused.keys.entry(set.clone()).or_default().insert(*key);
        }
        refused.reasons.insert(object, reason);
    }
    for family in config.families() {
        let refused = mem::take(objects.get_mut(family.into()));
        if refused.reasons.is_empty() || parts.families.get(family.into()).is_some() {
            continue;
        }
        let context = Context::new(config, family, &change.after().node);
        let mut unowned: HashSet<&Object> = refused.reasons.keys().collect();
        let ports = change.after().service_ports.iter();
        for (id, port) in ports.filter(|(id, _)| id.family == family.into()) {
            let needed = needed(port, &context, &refused);
            if let Some(reason) = needed.first().and_then(|object| refused.reasons.get(object)) {
                parts.ports.push(DegradedPort { port: id.clone(), reason: reason.clone() });
            }
            needed.iter().for_each(|object| _ = unowned.remove(object));
        }
        if let Some(unowned) = unowned.into_iter().next() {
            *parts.families.get_mut(family.into()) = refused.reasons.get(unowned).cloned();
        }
    }
    if config.families().all(|family| parts.families.get(family.into()).is_some()) {
        return RefusedParts::default();
    }
    parts
}

/// The reason for which parts are left out.
fn reason(refusal: &Refusal) -> String {
    format!("cannot {}: {}", refusal.subject, refusal.reason)
}

fn object(kind: &OperationKind, refusal: &Refusal) -> Object {
    match kind {
        OperationKind::AddElements(set, _)
        | OperationKind::RestoreElements(set, _)
        | OperationKind::DeleteElements(set, _) => match refusal.element.as_deref() {
            Some(key) => Object::Element(set.name.clone(), *key),
            None => Object::Set(set.name.clone()),
        },
        OperationKind::AddSet(set) => Object::Set(set.name.clone()),
        OperationKind::DeleteSet(set) => Object::Set(set.clone()),
        OperationKind::AddChain(chain)
        | OperationKind::FlushChain(chain)
        | OperationKind::DeleteChain(chain)
        | OperationKind::AddRule(chain, _) => Object::Chain(chain.clone()),
        OperationKind::AddBaseChain(chain) => Object::Chain(chain.name.clone()),
        OperationKind::AddTable { .. } | OperationKind::WakeTable | OperationKind::DeleteTable => {
            Object::Chain("".into())
        }
    }
}

/// The refused objects that a Service port needs.
fn needed(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    refused: &RefusedObjects,
) -> Vec<Object> {
    let port = service_port::objects(port, context, None);
    let name = |set: TableSet| set.definition(context.family).name.clone();
    let elements = port.elements.iter().map(|(set, element)| (*set, element.key));
    let elements = elements.chain(port.counted.iter().map(|element| element.set_and_key()));
    let elements = elements.map(|(set, key)| Object::Element(name(set), key));
    let chains = port.chains.iter().map(|chain| chain.name.clone());
    let chains = chains.chain(port.lb_chains.iter().map(LbChain::name)).map(Object::Chain);
    let port_sets = || port.sets.iter().map(|set| set.definition.name.clone());
    let sets = port_sets().map(Object::Set);
    let objects = elements.chain(chains).chain(sets);
    let mut found: Vec<Object> =
        objects.filter(|object| refused.reasons.contains_key(object)).collect();
    // Elements of the port's sets are recognised by their set, and slots by their beginning.
    let starts = port_sets().map(|set| (set, Key::new()));
    for (set, start) in starts.chain(port.slots.iter().map(|slots| (name(slots.map), slots.key))) {
        let keys = refused.keys.get(&set).into_iter().flat_map(|keys| keys.range(start..));
        let keys = keys.take_while(|key| key.as_slice().starts_with(start.as_slice()));
        found.extend(keys.map(|key| Object::Element(set.clone(), *key)));
    }
    found
}
