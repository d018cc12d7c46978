//! The objects that commits of other programs have changed, as far as notifications name them.

use std::collections::HashMap;

use crate::{
    netlink::{Attributes, Message, nfnetlink},
    nftables::{
        abi::{element, message, rule},
        ruleset::{ChainName, Element, Key, SetName, Table},
    },
};

use super::dump;

/// The most elements and chains of a table that are remembered. Of more, reading the table is no
/// slower.
const MOST: usize = 4_096;

/// Elements of a set as they were left, with the generation of the last commit; `None` for those
/// that were deleted.
pub type TouchedElements = HashMap<Key, (u32, Option<Element>)>;

/// The objects that other programs have changed in some tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Those of each table that was changed.
    pub tables: HashMap<Table, TouchedTable>,
    /// Whether anything else may have been changed: notifications were lost.
    pub anything: bool,
}

/// The objects of a table that other programs have changed, with the generation of the last commit
/// that changed each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TouchedTable {
    /// Chains of which rules were added, replaced or deleted.
    pub chains: HashMap<ChainName, u32>,
    /// Elements of each set.
    pub elements: HashMap<SetName, TouchedElements>,
    /// Whether anything else was changed: the table, a chain or a set, or more elements than are
    /// remembered.
    pub more: bool,
}

impl Touched {
    /// Returns what lost notifications are about.
    pub fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    /// Adds what was changed later.
    pub fn extend(&mut self, later: Self) {
        for (table, later) in later.tables {
            self.tables.entry(table).or_default().extend(later);
        }
        self.anything |= later.anything;
    }

    /// Forgets what was changed by commits up to this generation.
    pub fn forget_until(&mut self, generation: u32) {
        for table in self.tables.values_mut() {
            table.chains.retain(|_, of| is_after(*of, generation));
            table.elements.retain(|_, elements| {
                elements.retain(|_, (of, _)| is_after(*of, generation));
                !elements.is_empty()
            });
        }
    }

    /// Adds what a notification says, but for the generation, which follows.
    pub(super) fn add(&mut self, table: &Table, notification: &Message<'_>) {
        self.tables.entry(table.clone()).or_default().add(notification);
    }

    /// Notes the generation of the commit of everything.
    pub(super) fn committed(&mut self, generation: u32) {
        for table in self.tables.values_mut() {
            table.chains.values_mut().for_each(|of| *of = generation);
            let elements = table.elements.values_mut().flat_map(HashMap::values_mut);
            elements.for_each(|(of, _)| *of = generation);
        }
    }
}

impl TouchedTable {
    fn extend(&mut self, later: Self) {
        self.chains.extend(later.chains);
        for (set, elements) in later.elements {
            self.elements.entry(set).or_default().extend(elements);
        }
        self.more |= later.more;
        self.forget_too_many();
    }

    fn add(&mut self, notification: &Message<'_>) {
        let attributes = notification.attributes(nfnetlink::HEADER);
        let is = |kind| notification.kind == nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
        let known = if is(message::NEW_RULE) || is(message::DEL_RULE) {
            attributes.text(rule::CHAIN).map(|chain| {
                self.chains.insert(chain.into(), 0);
            })
        } else if is(message::NEW_ELEMENT) || is(message::DEL_ELEMENT) {
            self.add_elements(attributes, is(message::NEW_ELEMENT))
        } else {
            None
        };
        self.more |= known.is_none();
        self.forget_too_many();
    }

    fn add_elements(&mut self, list: Attributes<'_>, are_there: bool) -> Option<()> {
        let set = SetName::from(list.text(element::SET)?);
        let elements = self.elements.entry(set).or_default();
        for one in list.find_kind(element::ELEMENTS)?.nested() {
            let element = dump::read_element(one.nested())?.element;
            elements.insert(element.key, (0, are_there.then_some(element)));
        }
        Some(())
    }

    fn forget_too_many(&mut self) {
        if self.elements.values().map(HashMap::len).sum::<usize>() + self.chains.len() > MOST {
            *self = Self { more: true, ..Self::default() };
        }
    }
}

/// Whether a generation comes after another. The kernel's counter wraps.
pub(super) fn is_after(generation: u32, other: u32) -> bool {
    generation.wrapping_sub(other).cast_signed() > 0
}
