//! Reading a table, by dumps of its chains, rules, sets and elements.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use crate::{
    netlink::{Attributes, Error, Socket, Writer},
    nftables::{
        self,
        abi::{chain, element, message, rule, set, table},
        listing::dump_once,
        ruleset::{Hook, Table},
    },
};

use super::{
    Program,
    decode::{self, Data, Expression, Name},
};

/// The number of attempts to read a table that changes while it is read.
const ATTEMPTS: usize = 20;

/// `NFT_SET_ELEM_CATCHALL`
const FLAG_CATCH_ALL: u32 = 2;
/// The longest key, and the longest data, in bytes (`NFT_DATA_VALUE_MAXLEN`).
const LONGEST: u32 = 64;

/// A base chain's place.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) hook: Option<Hook>,
    pub(super) priority: i32,
    pub(super) is_nat: bool,
    pub(super) drops: bool,
}

/// A chain: the expressions of its rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    pub(super) base: Option<Base>,
    pub(super) rules: Vec<Vec<Expression>>,
}

/// An element, whose key is an interval if it has an `end`, which is included.
#[derive(Clone, Debug)]
pub(super) struct Element {
    pub(super) key: Box<[u8]>,
    pub(super) end: Option<Box<[u8]>>,
    /// `None` for data that is not understood.
    pub(super) data: Option<Data>,
}

/// Elements by parts of their keys.
type Index = HashMap<Box<[u8]>, Vec<u32>>;

#[derive(Debug, Default)]
pub(super) struct Set {
    /// The length of keys, in bytes.
    pub(super) length: usize,
    /// The length of the data, in bytes; 0 for sets and verdicts.
    pub(super) data_length: usize,
    /// The time that elements stay, if packets and time change them, so that they are not read.
    pub(super) volatile: Option<Duration>,
    pub(super) elements: Vec<Element>,
    /// Whether there is an element for all keys that no other has.
    pub(super) has_catch_all: bool,
    /// The elements by their whole keys; empty if there are intervals.
    by_key: HashMap<Box<[u8]>, u32>,
    /// The elements by some words of their keys, whose bits are set, as far as was asked for.
    by_words: RefCell<HashMap<u64, Index>>,
}

impl Set {
    pub(super) fn new(
        lengths: [usize; 2],
        volatile: Option<Duration>,
        elements: Vec<Element>,
    ) -> Self {
        let [length, data_length] = lengths;
        let has_catch_all = false;
        let has_intervals = elements.iter().any(|element| element.end.is_some());
        let keys = elements.iter().enumerate().map(|(n, one)| (one.key.clone(), n as u32));
        let by_key = if has_intervals { HashMap::new() } else { keys.collect() };
        let by_words = RefCell::default();
        Self { length, data_length, volatile, elements, has_catch_all, by_key, by_words }
    }

    /// Returns the element with this key, if keys are no intervals.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Element> {
        self.elements.get(*self.by_key.get(key)? as usize)
    }

    /// Whether keys are intervals, so that [`Self::get`] finds none.
    pub(super) fn has_intervals(&self) -> bool {
        self.by_key.len() < self.elements.len()
    }

    /// Returns the elements whose keys have these bytes in the words whose bits are set. Where keys
    /// are intervals, all elements.
    pub(super) fn with(&self, words: u64, bytes: &[u8]) -> Vec<u32> {
        if words == 0 || self.has_intervals() {
            return (0..self.elements.len() as u32).collect();
        }
        let mut all = self.by_words.borrow_mut();
        let index = all.entry(words).or_insert_with(|| {
            let mut index = Index::new();
            for (number, element) in self.elements.iter().enumerate() {
                let parts = element.key.chunks(4).enumerate();
                let chosen = parts.filter(|(word, _)| words >> word & 1 != 0);
                let key: Vec<u8> = chosen.flat_map(|(_, bytes)| bytes.iter().copied()).collect();
                index.entry(key.into()).or_default().push(number as u32);
            }
            index
        });
        index.get(bytes).cloned().unwrap_or_default()
    }
}

/// Reads a table in one state; `None` if there is none, or the table is dormant. No attempt begins
/// after so much time.
pub(super) fn read(
    socket: &mut Socket,
    of: &Table,
    limit: Duration,
) -> Result<Option<Program>, Error> {
    let begun = Instant::now();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 && begun.elapsed() >= limit {
            break;
        }
        let Some(before) = nftables::generation(socket)? else { return Ok(None) };
        let read = read_once(socket, of);
        if nftables::is_generation(socket, before)? {
            match read {
                Err(Error::Interrupted) => {}
                read => return read,
            }
        }
    }
    Err(Error::Interrupted)
}

fn read_once(socket: &mut Socket, of: &Table) -> Result<Option<Program>, Error> {
    let name = of.name.as_str();
    let tables: Vec<u32> = dump(
        socket,
        of,
        message::GET_TABLE,
        |_| {},
        |tables: &mut Vec<_>, read| {
            if read.text(table::NAME) == Some(name) {
                tables.push(read.be32(table::FLAGS).unwrap_or(0));
            }
        },
    )?;
    if tables.first().is_none_or(|flags| flags & table::FLAG_DORMANT != 0) {
        return Ok(None);
    }
    let mut chains: BTreeMap<Name, Chain> = dump(
        socket,
        of,
        message::GET_CHAIN,
        |_| {},
        |chains: &mut BTreeMap<_, _>, read| {
            if read.text(chain::TABLE) == Some(name)
                && let Some(chain_name) = read.text(chain::NAME)
            {
                chains.insert(chain_name.into(), Chain { base: base(read), rules: Vec::new() });
            }
        },
    )?;
    let in_table = |w: &mut Writer| w.string(rule::TABLE, name);
    let rules = dump(socket, of, message::GET_RULE, in_table, |rules: &mut Vec<_>, read| {
        if read.text(rule::TABLE) == Some(name)
            && let Some(chain) = read.text(rule::CHAIN)
        {
            let list = read.find_kind(rule::EXPRESSIONS);
            let list = list.map(|list| decode::expressions(list.nested()));
            rules.push((Name::from(chain), list.unwrap_or_default()));
        }
    })?;
    for (name, expressions) in rules {
        chains.get_mut(&name).ok_or(Error::Interrupted)?.rules.push(expressions);
    }
    let in_table = |w: &mut Writer| w.string(set::TABLE, name);
    let found = dump(socket, of, message::GET_SET, in_table, |sets: &mut Vec<_>, read| {
        if read.text(set::TABLE) == Some(name)
            && let (Some(set), Some(length)) = (read.text(set::NAME), read.be32(set::KEY_LEN))
        {
            let data_length = read.be32(set::DATA_LEN).unwrap_or(0);
            let milliseconds = read.be64(set::TIMEOUT);
            let timeout = Duration::from_millis(milliseconds.unwrap_or(0));
            let lengths = [length, data_length].map(|length| length.min(LONGEST) as usize);
            sets.push((Name::from(set), lengths, timeout, read.be32(set::FLAGS).unwrap_or(0)));
        }
    })?;
    let mut sets = HashMap::new();
    for (set, lengths, timeout, flags) in found {
        let is_volatile = flags & (set::FLAG_TIMEOUT | set::FLAG_DYNAMIC) != 0;
        let (elements, has_catch_all) = match is_volatile {
            true => (Vec::new(), false),
            false => elements(socket, of, &set, flags & set::FLAG_INTERVAL != 0)?,
        };
        let read = Set::new(lengths, is_volatile.then_some(timeout), elements);
        sets.insert(set, Set { has_catch_all, ..read });
    }
    Ok(Some(Program::new(of.family, chains, sets)))
}

/// Returns the place of a base chain; `None` for other chains.
fn base(read: Attributes<'_>) -> Option<Base> {
    let hook = read.find_kind(chain::HOOK)?.nested();
    Some(Base {
        hook: hook.be32(chain::HOOK_NUMBER).and_then(Hook::from_number),
        priority: hook.be32(chain::HOOK_PRIORITY).unwrap_or(0).cast_signed(),
        is_nat: read.text(chain::TYPE) == Some("nat"),
        drops: read.be32(chain::POLICY).is_some_and(|policy| policy != chain::POLICY_ACCEPT),
    })
}

/// Reads the elements of a set, and whether there is one for all other keys. While the kernel
/// resizes a set, a dump has some elements twice, and lacks as many others.
fn elements(
    socket: &mut Socket,
    of: &Table,
    name: &str,
    has_intervals: bool,
) -> Result<(Vec<Element>, bool), Error> {
    let of_set = |w: &mut Writer| {
        w.string(element::TABLE, of.name.as_str());
        w.string(element::SET, name);
    };
    let (mut found, has_catch_all) = dump(
        socket,
        of,
        message::GET_ELEMENT,
        of_set,
        |(elements, has_catch_all): &mut (Vec<_>, bool), read| {
            let list = read.find_kind(element::ELEMENTS);
            for one in list.into_iter().flat_map(|list| list.nested()) {
                let one = one.nested();
                let key = |kind| match one.find_kind(kind).and_then(decode::data) {
                    Some(Data::Bytes(bytes)) => Some(bytes),
                    _ => None,
                };
                let flags = one.be32(element::FLAGS).unwrap_or(0);
                *has_catch_all |= flags & FLAG_CATCH_ALL != 0;
                // The interval that ends before the first address has no key in some versions.
                let Some(start) = key(element::KEY) else { continue };
                let given = one.find_kind(element::DATA);
                let data = given.map_or(Some(Data::None), decode::data);
                let data = data.filter(|_| !decode::has_own_expressions(one));
                let is_end = flags & element::FLAG_INTERVAL_END != 0;
                let element = Element { key: start, end: key(element::KEY_END), data };
                elements.push((is_end, element));
            }
        },
    )?;
    // An end is before a beginning at the same key.
    found.sort_by(|(is_end, a), (other, b)| (&a.key, !is_end).cmp(&(&b.key, !other)));
    if found.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1.key == pair[1].1.key) {
        return Err(Error::Interrupted);
    }
    if !has_intervals || found.iter().any(|(_, element)| element.end.is_some()) {
        return Ok((found.into_iter().map(|(_, element)| element).collect(), has_catch_all));
    }
    let mut intervals: Vec<Element> = Vec::new();
    let mut is_open = false;
    for (is_end, element) in found {
        if let Some(open) = intervals.last_mut().filter(|_| is_open) {
            open.end = Some(before(&element.key));
        }
        is_open = !is_end;
        if is_open {
            let end = Some(vec![0xff; element.key.len()].into());
            intervals.push(Element { end, ..element });
        }
    }
    Ok((intervals, has_catch_all))
}

fn before(number: &[u8]) -> Box<[u8]> {
    let mut bytes: Box<[u8]> = number.into();
    for byte in bytes.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    bytes
}

fn dump<T: Default>(
    socket: &mut Socket,
    of: &Table,
    kind: u8,
    narrow: impl Fn(&mut Writer),
    read: impl FnMut(&mut T, Attributes<'_>),
) -> Result<T, Error> {
    let (collected, is_interrupted) = dump_once(socket, kind, of.family.number(), narrow, read)?;
    // The generation shows whether anything was changed.
    match is_interrupted && kind == message::GET_CHAIN {
        true => Err(Error::Interrupted),
        false => Ok(collected),
    }
}
