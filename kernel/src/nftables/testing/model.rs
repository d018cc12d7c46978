//! A model of nf_tables: tables in memory, which take transactions as the kernel does.

use std::{collections::BTreeMap, sync::Arc};

use crate::nftables::{
    ruleset::{
        ChainBase, ChainDump, ChainName, Element, ElementData, ElementDump, Key, Operation,
        OperationKind, Rule, RuleDump, SetDef, SetDump, SetName, Statement, Table, TableDump,
        Transaction, Verdict,
    },
    transport::{Elements, Refusal, TransportError},
};

#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    handle: u64,
    pub(super) base: ChainBase,
    /// The rules with their handles.
    pub(super) rules: Vec<(u64, Rule)>,
}

/// A set or map of the model.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) handle: u64,
    definition: SetDef,
    pub(super) elements: BTreeMap<Key, ElementDump>,
}

/// A table of the model. What a transaction leaves alone is shared with the states before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents {
    pub(super) chains: BTreeMap<ChainName, Arc<Chain>>,
    pub(super) sets: BTreeMap<SetName, Arc<Set>>,
}

/// All tables at one moment. A clone is cheap.
#[derive(Clone, Debug, Default)]
pub struct Ruleset {
    pub(super) tables: BTreeMap<Table, Arc<Contents>>,
    newest_handle: u64,
}

/// The error numbers of `linux/errno.h` that a transaction can meet.
type Errno = i32;

impl Ruleset {
    /// Does all of a transaction, or nothing.
    ///
    /// # Errors
    /// The refusals of all operations and elements, as the kernel and
    /// [`crate::nftables::netlink::NetlinkTransport`] name them together.
    pub fn commit(&mut self, transaction: &Transaction) -> Result<(), TransportError> {
        let mut next = self.clone();
        let mut refusals = Vec::new();
        for (index, operation) in transaction.operations().iter().enumerate() {
            next.apply(operation, &mut |element, errno| {
                refusals.push(refusal(index, operation, element, errno));
            });
        }
        let mut refusals = refusals.into_iter();
        match refusals.next() {
            Some(first) => Err(TransportError::Refused(first, refusals.collect())),
            None => {
                *self = next;
                Ok(())
            }
        }
    }

    /// Reads a table at this generation, as a transport does.
    pub fn read(&self, table: &Table, elements: Elements, generation: u32) -> Option<TableDump> {
        let contents = self.tables.get(table)?;
        let chain = |(name, chain): (&ChainName, &Arc<Chain>)| {
            let rule = |(handle, rule): &(u64, Rule)| RuleDump {
                handle: *handle,
                fingerprint: Some(rule.fingerprint(table.family)),
                leads_to: rule.leads_to().cloned(),
            };
            let rules = chain.rules.iter().map(rule).collect();
            (name.clone(), ChainDump { handle: chain.handle, base: chain.base.clone(), rules })
        };
        let set = |(name, set): (&SetName, &Arc<Set>)| {
            let is_read = elements == Elements::Include && set.definition.timeout.is_none();
            let dump = SetDump {
                handle: set.handle,
                definition: Ok(set.definition.clone()),
                elements: is_read.then(|| set.elements.values().cloned().collect()),
            };
            (name.clone(), dump)
        };
        Some(TableDump {
            table: table.clone(),
            generation: Some(generation),
            dormant: false,
            chains: contents.chains.iter().map(chain).collect(),
            sets: contents.sets.iter().map(set).collect(),
        })
    }

    /// The names of the sets and maps of a table, in order.
    pub fn sets(&self, table: &Table) -> impl Iterator<Item = &SetName> {
        self.tables.get(table).into_iter().flat_map(|contents| contents.sets.keys())
    }

    /// The elements of a set or map in the order of their keys; `None` if there is no such set.
    pub fn elements(
        &self,
        table: &Table,
        set: &SetName,
    ) -> Option<impl Iterator<Item = &ElementDump>> {
        self.tables.get(table)?.sets.get(set).map(|set| set.elements.values())
    }

    /// Puts an element into a map, or takes all out, as packets and time do with maps that have a
    /// timeout. Does nothing if there is no such map.
    pub fn set_by_packets(&mut self, table: &Table, map: &SetName, element: Option<Element>) {
        let Some(contents) = self.tables.get_mut(table) else { return };
        let Some(set) = Arc::make_mut(contents).sets.get_mut(map) else { return };
        let set = Arc::make_mut(set);
        match element {
            Some(element) => {
                let expires = set.definition.timeout;
                set.elements.insert(element.key, ElementDump { element, expires });
            }
            None => set.elements.clear(),
        }
    }

    fn handle(&mut self) -> u64 {
        self.newest_handle += 1;
        self.newest_handle
    }

    fn apply(&mut self, operation: &Operation, refuse: &mut dyn FnMut(Option<Key>, Errno)) {
        let result = match &operation.kind {
            OperationKind::AddTable { .. } | OperationKind::WakeTable => {
                self.tables.entry(operation.table.clone()).or_default();
                Ok(())
            }
            OperationKind::DeleteTable => {
                self.tables.remove(&operation.table).map(drop).ok_or(libc::ENOENT)
            }
            kind => {
                let handle = self.handle();
                match self.tables.get_mut(&operation.table) {
                    Some(contents) => Arc::make_mut(contents).apply(kind, handle, refuse),
                    None => Err(libc::ENOENT),
                }
            }
        };
        if let Err(errno) = result {
            refuse(None, errno);
        }
    }
}

fn refusal(index: usize, operation: &Operation, element: Option<Key>, errno: Errno) -> Refusal {
    Refusal {
        operation: index,
        element: element.map(Box::new),
        subject: operation.subject(),
        errno: Some(errno),
        reason: std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

impl Contents {
    fn apply(
        &mut self,
        kind: &OperationKind,
        handle: u64,
        refuse: &mut dyn FnMut(Option<Key>, Errno),
    ) -> Result<(), Errno> {
        let base = |base: ChainBase| Arc::new(Chain { handle, base, rules: Vec::new() });
        match kind {
            OperationKind::AddTable { .. }
            | OperationKind::WakeTable
            | OperationKind::DeleteTable => {}
            OperationKind::AddBaseChain(added) => {
                let added_base = ChainBase::Base(added.clone());
                let chain = self.chains.entry(added.name.clone());
                let chain = chain.or_insert_with(|| base(added_base.clone()));
                if chain.base != added_base {
                    return Err(libc::EEXIST);
                }
            }
            OperationKind::AddChain(name) => {
                let chain = self.chains.entry(name.clone());
                chain.or_insert_with(|| base(ChainBase::Regular));
            }
            OperationKind::FlushChain(name) => self.chain(name)?.rules.clear(),
            OperationKind::DeleteChain(name) => {
                self.chain(name)?;
                if self.is_led_to(name) {
                    return Err(libc::EBUSY);
                }
                self.chains.remove(name);
            }
            OperationKind::AddSet(definition) => {
                let elements = BTreeMap::new();
                let definition = SetDef::clone(definition);
                let new = Set { handle, definition: definition.clone(), elements };
                let set = self.sets.entry(definition.name.clone());
                let set = set.or_insert_with(|| Arc::new(new));
                if !set.definition.same_fields(&definition) {
                    return Err(libc::EEXIST);
                }
                if set.definition != definition {
                    Arc::make_mut(set).definition.size = definition.size;
                }
            }
            OperationKind::DeleteSet(name) => {
                self.set(name)?;
                let rules = self.chains.values().flat_map(|chain| &chain.rules);
                if rules.flat_map(|(_, rule)| rule.sets()).any(|used| used == name) {
                    return Err(libc::EBUSY);
                }
                self.sets.remove(name);
            }
            OperationKind::AddRule(chain, rule) => {
                let is_known = |set| self.sets.contains_key(set);
                if !rule.sets().all(is_known) {
                    return Err(libc::ENOENT);
                }
                for statement in &rule.statements {
                    if let Statement::Verdict(verdict) = statement {
                        self.check(verdict)?;
                    }
                }
                self.chain(chain)?.rules.push((handle, rule.clone()));
            }
            OperationKind::AddElements(set, elements) => {
                self.set(&set.name)?;
                let elements = elements.iter().map(|element| (element, None));
                self.add_elements(&set.name, elements, refuse);
            }
            OperationKind::RestoreElements(set, elements) => {
                self.set(&set.name)?;
                let elements = elements.iter().map(|dump| (&dump.element, dump.expires));
                self.add_elements(&set.name, elements, refuse);
            }
            OperationKind::DeleteElements(set, keys) => {
                let set = self.set(&set.name)?;
                for key in keys {
                    if set.elements.remove(key).is_none() {
                        refuse(Some(*key), libc::ENOENT);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_elements<'a>(
        &mut self,
        name: &SetName,
        elements: impl Iterator<Item = (&'a Element, Option<std::time::Duration>)>,
        refuse: &mut dyn FnMut(Option<Key>, Errno),
    ) {
        for (element, expires) in elements {
            if let ElementData::Verdict(verdict) = &element.data
                && let Err(errno) = self.check(verdict)
            {
                refuse(Some(element.key), errno);
                continue;
            }
            let Ok(set) = self.set(name) else { continue };
            let expires = expires.or(set.definition.timeout);
            match set.elements.get(&element.key) {
                // An element that is there already stays as it is.
                Some(known) if known.element.data == element.data => {}
                Some(_) => refuse(Some(element.key), libc::EEXIST),
                None => {
                    let dump = ElementDump { element: element.clone(), expires };
                    set.elements.insert(element.key, dump);
                }
            }
        }
    }

    fn chain(&mut self, name: &ChainName) -> Result<&mut Chain, Errno> {
        self.chains.get_mut(name).map(Arc::make_mut).ok_or(libc::ENOENT)
    }

    fn set(&mut self, name: &SetName) -> Result<&mut Set, Errno> {
        self.sets.get_mut(name).map(Arc::make_mut).ok_or(libc::ENOENT)
    }

    /// Refuses a verdict that leads nowhere, or to a base chain.
    fn check(&self, verdict: &Verdict) -> Result<(), Errno> {
        let Some(to) = verdict.chain() else { return Ok(()) };
        match self.chains.get(to) {
            None => Err(libc::ENOENT),
            Some(chain) if chain.base != ChainBase::Regular => Err(libc::EOPNOTSUPP),
            Some(_) => Ok(()),
        }
    }

    /// Whether a rule or an element leads to a chain.
    fn is_led_to(&self, name: &ChainName) -> bool {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        let by_rules = rules.filter_map(|(_, rule)| rule.leads_to());
        let elements = self.sets.values().flat_map(|set| set.elements.values());
        let by_elements = elements.filter_map(|dump| match &dump.element.data {
            ElementData::Verdict(verdict) => verdict.chain(),
            _ => None,
        });
        by_rules.chain(by_elements).any(|to| to == name)
    }
}
