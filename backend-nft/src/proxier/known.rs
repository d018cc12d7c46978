//! The contents of a table before a sync, as far as they are compared: those that were synced last,
//! or those that were read.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use switchyard_core::{
    model::{HashMap, HashSet},
    state::{PoolKind, ResolvedServicePort},
};
use switchyard_kernel::nftables::{
    BaseChain, ChainBase, ChainDump, ChainName, Element, ElementData, Family, Key, SetDef, SetDump,
    SetName, TableDump, Value,
};

use super::{last_synced::LastSynced, now, objects::Objects};
use crate::layout::{
    ChainRules, affinity, lb_chains, names,
    service_port::{Contents, PortSet, SlotRange},
    slots::Allocation,
    table::TableSet,
};

/// The contents of a table, as far as it is compared.
#[derive(Default)]
pub(super) struct Known<'a> {
    pub(super) chains: BTreeMap<ChainName, KnownChain<'a>>,
    pub(super) sets: BTreeMap<SetName, KnownSet<'a>>,
    pub(super) elements: Vec<(TableSet, Cow<'a, Element>)>,
    /// The slots of each map, by the key without the slot.
    pub(super) slots: HashMap<(TableSet, Key), KnownSlots>,
}

pub(super) enum KnownChain<'a> {
    Synced(ChainRules),
    Read(&'a ChainDump),
}

pub(super) enum KnownSet<'a> {
    Synced(PortSet),
    Read(&'a SetDump),
}

pub(super) enum KnownSlots {
    Synced(Allocation),
    Read(BTreeMap<u32, SocketAddr>),
}

impl<'a> Known<'a> {
    pub(super) fn synced(objects: Objects) -> Self {
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

    pub(super) fn read(dump: &'a TableDump) -> Self {
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
    pub(super) fn pool(&self, slots: &[SlotRange], kind: PoolKind) -> Vec<SocketAddr> {
        let mut known = slots.iter().filter(|slots| slots.pool == kind);
        match known.find_map(|slots| self.slots.get(&(slots.map, slots.key))) {
            Some(KnownSlots::Read(slots)) => slots.values().copied().collect(),
            Some(KnownSlots::Synced(_)) | None => Vec::new(),
        }
    }
}

impl KnownChain<'_> {
    /// Whether this is the base chain `base`, or a regular chain.
    pub(super) fn is_at(&self, base: Option<&BaseChain>) -> bool {
        match (self, base) {
            (Self::Synced(_), _) => true,
            (Self::Read(known), None) => known.base == ChainBase::Regular,
            (Self::Read(ChainDump { base: ChainBase::Base(known), .. }), Some(base)) => {
                known == base
            }
            (Self::Read(_), Some(_)) => false,
        }
    }

    pub(super) fn has_rules_of(&self, wanted: &ChainRules, family: Family) -> bool {
        match self {
            Self::Synced(known) => known == wanted,
            Self::Read(known) => {
                known.rules.len() == wanted.rules.len()
                    && known.rules.iter().zip(&wanted.rules).all(|(known, rule)| {
                        known.fingerprint == Some(rule.fingerprint(family))
                            && known.leads_to.as_ref() == rule.leads_to()
                    })
            }
        }
    }
}

impl KnownSet<'_> {
    pub(super) fn has_shape_of(&self, wanted: &SetDef) -> bool {
        match self {
            // The name has all that the shape depends on.
            Self::Synced(_) => true,
            Self::Read(known) => known.definition.as_ref().is_ok_and(|set| {
                // Kernels before 6.5 do not change the size of a map that remembers clients.
                set.same_shape(wanted) && (wanted.timeout.is_some() || set.size == wanted.size)
            }),
        }
    }

    /// The differences from the wanted elements.
    pub(super) fn difference(&self, wanted: &Contents) -> (Vec<Key>, Vec<Element>) {
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
    pub(super) fn address(&self, slot: usize) -> Option<SocketAddr> {
        match self {
            Self::Synced(known) => known.address(slot),
            Self::Read(known) => known.get(&u32::try_from(slot).ok()?).copied(),
        }
    }

    /// The slots from this one on.
    pub(super) fn from(&self, first: usize) -> Vec<u32> {
        match self {
            Self::Synced(known) => (first as u32..known.len() as u32).collect(),
            Self::Read(known) => known.range(first as u32..).map(|(slot, _)| *slot).collect(),
        }
    }
}

/// The handles and the timeouts of the kernel's maps of clients, by the part of their names that
/// identifies the Service port.
#[derive(Default)]
pub(super) struct KnownClients<'a>(HashMap<&'a str, Vec<(u64, Duration)>>);

impl<'a> KnownClients<'a> {
    pub(super) fn from_dump(dump: Option<&'a TableDump>) -> Self {
        let mut clients = Self::default();
        for (name, set) in dump.into_iter().flat_map(|dump| &dump.sets) {
            if let Some((timeout, base)) = affinity::split_clients_map(name.as_str())
                && set.definition.as_ref().is_ok_and(|set| set.timeout == Some(timeout))
            {
                clients.0.entry(base).or_default().push((set.handle, timeout));
            }
        }
        clients
    }

    /// The earlier maps of a Service port, and until when they are needed. Of several, those are
    /// meant that remembered clients last: the newest, whose handle is the highest.
    pub(super) fn earlier(
        &self,
        port: &ResolvedServicePort,
        last: Option<&LastSynced>,
    ) -> Option<(Duration, Instant)> {
        let wanted = port.affinity?;
        if self.0.is_empty() {
            return None;
        }
        let known = last.and_then(|last| last.earlier.get(&port.id));
        let found = self.0.get(names::service_port_base(&port.id.name).as_str())?;
        let mut found = found.iter().filter(|(_, found)| *found != wanted);
        let is_known = |found: &Duration| known.is_some_and(|(known, _)| known == found);
        let now = now();
        let unknown = found.clone().filter(|(_, found)| !is_known(found));
        match unknown.max_by_key(|(handle, _)| *handle) {
            Some(&(_, last)) => Some((last, now + last.min(wanted))),
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
