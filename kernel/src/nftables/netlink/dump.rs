//! Tables, read by dumps of their objects.

use std::{collections::BTreeMap, ops::ControlFlow, thread, time::Duration};

use crate::{
    families,
    netlink::{
        Attribute, Attributes, Error, Message, Socket, Writer,
        nfnetlink::{self, subsystem::NFTABLES},
    },
    nftables::{
        abi::{chain, data, element, message, rule, set, table},
        listing::{dump_once, get, target},
        ruleset::{
            BaseChain, ChainBase, ChainDump, ChainName, Element, ElementData, ElementDump, Family,
            Hook, Key, RuleDump, SetData, SetDef, SetDump, SetName, Table, TableDump, Value,
            Verdict,
            interval::{self, Boundary},
        },
        transport::Elements,
    },
};

use super::{
    batch,
    userdata::{self, abi as udata},
};

/// The number of times that chains are dumped, at most, until no commit interrupts the dump. Some
/// hundred chains are one part, which nothing interrupts.
const CHAIN_DUMPS: usize = 20;
/// The number of attempts to read a set that the kernel is resizing.
const RESIZE_ATTEMPTS: usize = 100;
/// The wait between two attempts: two seconds in all.
const RESIZE_WAIT: Duration = Duration::from_millis(20);

/// Reads a table; returns `None` if it does not exist, and whether it can be whole: a part that is
/// missing was deleted in the meantime. The result holds only if no other program changed the table
/// in the meantime. A hasty reading does not wait for sets that the kernel is resizing.
pub(super) fn read_table(
    socket: &mut Socket,
    table: &Table,
    with_elements: Elements,
    generation: Option<u32>,
    is_hasty: bool,
) -> Result<(Option<TableDump>, bool), Error> {
    let Some(table_flags) = flags_of(socket, table)? else { return Ok((None, true)) };
    let mut is_whole = true;
    let (family, in_table) = (table.family, table.name.as_str());
    let mut chains = complete(|| {
        let read = |chains: &mut BTreeMap<_, _>, read: Attributes<'_>| {
            chains.extend(read_chain(in_table, read));
        };
        dump_once(socket, message::GET_CHAIN, family.number(), |_| {}, read)
    })?;
    let rules: Vec<(ChainName, RuleDump)> = dump(
        socket,
        family,
        message::GET_RULE,
        |w| w.string(rule::TABLE, in_table),
        |rules: &mut Vec<_>, read| rules.extend(read_rule(in_table, read)),
    )?;
    for (name, rule) in rules {
        match chains.get_mut(&name) {
            Some(chain) => chain.rules.push(rule),
            None => is_whole = false,
        }
    }
    let mut sets: BTreeMap<_, _> = dump(
        socket,
        family,
        message::GET_SET,
        |w| w.string(set::TABLE, in_table),
        |sets: &mut BTreeMap<SetName, SetDump>, read| sets.extend(read_set(in_table, read)),
    )?;
    if with_elements == Elements::Include {
        for set in sets.values_mut() {
            let Ok(definition) = &set.definition else { continue };
            if definition.timeout.is_some() {
                continue;
            }
            match read_elements(socket, table, definition, is_hasty) {
                Ok((elements, is_complete)) => {
                    set.elements = Some(elements);
                    is_whole &= is_complete;
                }
                Err(Error::Malformed(why)) => set.definition = Err(why.to_owned()),
                Err(Error::Kernel(error)) if error.errno == libc::ENOENT => is_whole = false,
                Err(error) => return Err(error),
            }
        }
    }
    let dump = TableDump {
        table: table.clone(),
        generation,
        dormant: table_flags & table::FLAG_DORMANT != 0,
        chains,
        sets,
    };
    Ok((Some(dump), is_whole))
}

/// Returns the flags of a table; `None` if it does not exist.
fn flags_of(socket: &mut Socket, table: &Table) -> Result<Option<u32>, Error> {
    let name = |w: &mut Writer| w.string(table::NAME, table.name.as_str());
    let flags = |read: Attributes<'_>| read.be32(table::FLAGS).unwrap_or_default();
    get(socket, message::GET_TABLE, table.family.number(), name, flags)
}

/// Repeats a dump of chains until it is not interrupted, and returns all chains that were seen.
///
/// The kernel narrows these dumps to a family alone, and counts the chains of all tables to find
/// where it stopped: with another table's chains, a dump leaves out some. Where commits interrupt
/// every dump, all dumps together are taken for complete, as no two leave out the same: another
/// program that commits without a pause must not keep the table from being read.
fn complete<K: Ord, V>(
    mut dump: impl FnMut() -> Result<(BTreeMap<K, V>, bool), Error>,
) -> Result<BTreeMap<K, V>, Error> {
    let mut all = BTreeMap::new();
    for _ in 0..CHAIN_DUMPS {
        let (dumped, interrupted) = dump()?;
        all.extend(dumped);
        if !interrupted {
            break;
        }
    }
    Ok(all)
}

/// Dumps objects of a table or a set, to which `narrow` narrows the dump. The kernel calls the dump
/// interrupted after any commit, but continues where it stopped there; the caller knows whether a
/// commit was to the table.
fn dump<T: Default>(
    socket: &mut Socket,
    family: Family,
    kind: u8,
    narrow: impl FnMut(&mut Writer),
    read: impl FnMut(&mut T, Attributes<'_>),
) -> Result<T, Error> {
    dump_once(socket, kind, family.number(), narrow, read).map(|(dumped, _)| dumped)
}

fn attributes(message: Message<'_>) -> Attributes<'_> {
    message.attributes(nfnetlink::HEADER)
}

fn read_chain(table: &str, read: Attributes<'_>) -> Option<(ChainName, ChainDump)> {
    if read.text(chain::TABLE)? != table {
        return None;
    }
    let name = ChainName::from(read.text(chain::NAME)?);
    let base = match read.find_kind(chain::HOOK) {
        None => ChainBase::Regular,
        Some(hook) => match base_chain(&name, read, hook) {
            Some(base) => ChainBase::Base(base),
            None => ChainBase::Foreign("its type, hook or policy is another".into()),
        },
    };
    let handle = read.be64(chain::HANDLE)?;
    Some((name, ChainDump { handle, base, rules: Vec::new() }))
}

fn base_chain(name: &ChainName, read: Attributes<'_>, hook: Attribute<'_>) -> Option<BaseChain> {
    if read.be32(chain::POLICY)? != chain::POLICY_ACCEPT {
        return None;
    }
    let number = hook.nested().be32(chain::HOOK_NUMBER)?;
    Some(BaseChain {
        name: name.clone(),
        kind: read.text(chain::TYPE)?.parse().ok()?,
        hook: Hook::from_number(number)?,
        priority: hook.nested().be32(chain::HOOK_PRIORITY)?.cast_signed(),
    })
}

fn read_rule(table: &str, read: Attributes<'_>) -> Option<(ChainName, RuleDump)> {
    if read.text(rule::TABLE)? != table {
        return None;
    }
    let fingerprint = read.find_kind(rule::USERDATA).and_then(|user_data| {
        let (_, hash) = userdata::items(user_data.payload)
            .find(|(kind, _)| *kind == udata::RULE_FINGERPRINT)?;
        Some(u64::from_be_bytes(hash.try_into().ok()?))
    });
    let handle = read.be64(rule::HANDLE)?;
    let leads_to = target(read).map(ChainName::from);
    Some((read.text(rule::CHAIN)?.into(), RuleDump { handle, fingerprint, leads_to }))
}

fn read_set(table: &str, read: Attributes<'_>) -> Option<(SetName, SetDump)> {
    if read.text(set::TABLE)? != table {
        return None;
    }
    let flags = read.be32(set::FLAGS).unwrap_or(0);
    if flags & set::FLAG_ANONYMOUS != 0 {
        return None;
    }
    let name = SetName::from(read.text(set::NAME)?);
    let definition = definition(&name, flags, read).map_err(str::to_owned);
    Some((name, SetDump { handle: read.be64(set::HANDLE)?, definition, elements: None }))
}

/// The definition of a set, or why [`SetDef`] cannot express it.
fn definition(name: &SetName, flags: u32, read: Attributes<'_>) -> Result<SetDef, &'static str> {
    let fields = |packed| batch::unpacked_type(packed).ok_or("its fields have other types");
    let key = fields(read.be32(set::KEY_TYPE).unwrap_or(0))?;
    let data = match read.be32(set::DATA_TYPE) {
        _ if flags & set::FLAG_MAP == 0 => SetData::None,
        None => return Err("its data has another type"),
        Some(set::DATA_VERDICT) => SetData::Verdict,
        Some(packed) => SetData::Value(fields(packed)?),
    };
    let timeout = match flags & set::FLAG_TIMEOUT {
        0 => None,
        _ => Some(Duration::from_millis(read.be64(set::TIMEOUT).unwrap_or(0))),
    };
    if [set::EXPRESSION, set::EXPRESSIONS].into_iter().any(|kind| read.find_kind(kind).is_some()) {
        return Err("its elements have statements");
    }
    let comment = read
        .find_kind(set::USERDATA)
        .and_then(|data| userdata::comment(data.payload, udata::SET_COMMENT))
        .map(|comment| comment.to_owned().into());
    let size = read.find_kind(set::DESC).and_then(|desc| desc.nested().be32(set::DESC_SIZE));
    let interval = flags & set::FLAG_INTERVAL != 0;
    let definition = SetDef { name: name.clone(), key, data, timeout, size, interval, comment };
    if interval && !definition.has_addresses() {
        return Err("its elements are intervals of something else than addresses");
    }
    if flags != batch::set_flags(&definition) {
        return Err("its flags are others");
    }
    if read.be32(set::KEY_LEN) != Some(definition.key_len() as u32) {
        return Err("its key has another length");
    }
    let value_len = read.be32(set::DATA_LEN).unwrap_or(0);
    if matches!(definition.data, SetData::Value(_)) && value_len != definition.value_len() as u32 {
        return Err("its data has another length");
    }
    Ok(definition)
}

/// Reads the elements of a set, sorted by key, and whether these are all.
///
/// The kernel resizes the hash table of a set for a while after many elements were added. A dump in
/// this time has some elements twice, and lacks as many others. So a dump is complete if it has no
/// element twice.
pub(super) fn read_elements(
    socket: &mut Socket,
    table: &Table,
    definition: &SetDef,
    is_hasty: bool,
) -> Result<(Vec<ElementDump>, bool), Error> {
    if definition.interval {
        return dump_intervals(socket, table, definition).map(|elements| (elements, true));
    }
    let mut attempts = if is_hasty { 1 } else { RESIZE_ATTEMPTS };
    loop {
        let mut elements = dump_elements(socket, table, definition, read_element)?;
        elements.sort_unstable_by_key(|found| found.element.key);
        let dumped = elements.len();
        elements.dedup_by_key(|found| found.element.key);
        let is_complete = elements.len() == dumped;
        attempts -= 1;
        if is_complete || attempts == 0 {
            return Ok((elements, is_complete));
        }
        thread::sleep(RESIZE_WAIT);
    }
}

/// Shows elements to `visit` until it breaks, by its own socket: the rest of a dump cannot be
/// called off.
pub(super) fn scan_elements(
    table: &Table,
    definition: &SetDef,
    visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    let kind = nfnetlink::kind(NFTABLES, message::GET_ELEMENT);
    nfnetlink::dump(&mut request, kind, sequence, table.family.number(), |w| {
        of_set(w, table, definition);
    });
    let (mut is_over, mut missed) = (false, false);
    let scanned = socket.request(request.as_slice(), sequence, |message| {
        let list = attributes(message).find_kind(element::ELEMENTS);
        for one in list.into_iter().flat_map(|list| list.nested()) {
            match read_element(one.nested()) {
                Some(element) => is_over = visit(element).is_break(),
                // One for all other keys, which another program has added, has none.
                None => missed |= one.nested().find_kind(element::KEY).is_some(),
            }
            if is_over {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    });
    match scanned {
        // Any commit interrupts a dump, and does no harm.
        Ok(()) | Err(Error::Interrupted) if !missed => Ok(()),
        Ok(()) | Err(Error::Interrupted) => Err(Error::Malformed("an element has an unknown form")),
        Err(error) => Err(error),
    }
}

/// Narrows a dump of elements to a set.
fn of_set(w: &mut Writer, table: &Table, definition: &SetDef) {
    w.string(element::TABLE, table.name.as_str());
    w.string(element::SET, definition.name.as_str());
}

/// All elements of an interval set, sorted by key.
fn dump_intervals(
    socket: &mut Socket,
    table: &Table,
    definition: &SetDef,
) -> Result<Vec<ElementDump>, Error> {
    let boundaries = dump_elements(socket, table, definition, |read| {
        let key = read.find_kind(element::KEY)?.nested().find_kind(data::VALUE)?;
        let flags = read.be32(element::FLAGS).unwrap_or(0);
        let is_end = flags & element::FLAG_INTERVAL_END != 0;
        Some(Boundary { address: families::address(key.payload)?, is_end })
    })?;
    let dumped = |key| ElementDump { element: Element::new(key), expires: None };
    Ok(interval::between(boundaries).into_iter().map(dumped).collect())
}

/// The items that `read_one` reads of the elements of a set.
fn dump_elements<T>(
    socket: &mut Socket,
    table: &Table,
    definition: &SetDef,
    read_one: impl Fn(Attributes<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let (elements, missed): (Vec<T>, usize) = dump(
        socket,
        table.family,
        message::GET_ELEMENT,
        |w| of_set(w, table, definition),
        |(elements, missed): &mut (Vec<_>, usize), read| {
            let Some(list) = read.find_kind(element::ELEMENTS) else { return };
            for one in list.nested() {
                match read_one(one.nested()) {
                    Some(element) => elements.push(element),
                    None => *missed += 1,
                }
            }
        },
    )?;
    if missed > 0 {
        return Err(Error::Malformed("an element has an unknown form"));
    }
    Ok(elements)
}

pub(super) fn read_element(read: Attributes<'_>) -> Option<ElementDump> {
    let key = read.find_kind(element::KEY)?.nested().find_kind(data::VALUE)?;
    let data = match read.find_kind(element::DATA) {
        None => ElementData::None,
        Some(found) => match found.nested().next()? {
            Attribute { kind: data::VALUE, payload } => {
                ElementData::Value(Value::from_bytes(payload)?)
            }
            verdict => ElementData::Verdict(read_verdict(verdict)?),
        },
    };
    let comment = read
        .find_kind(element::USERDATA)
        .and_then(|data| userdata::comment(data.payload, udata::COMMENT));
    let element =
        Element { key: Key::from_bytes(key.payload)?, data, comment: comment.map(Into::into) };
    let expires = read.be64(element::EXPIRATION).map(Duration::from_millis);
    Some(ElementDump { element, expires })
}

fn read_verdict(read: Attribute<'_>) -> Option<Verdict> {
    let chain = || read.nested().text(data::VERDICT_CHAIN).map(ChainName::from);
    Some(match read.nested().be32(data::VERDICT_CODE)?.cast_signed() {
        data::ACCEPT => Verdict::Accept,
        data::DROP => Verdict::Drop,
        data::RETURN => Verdict::Return,
        data::JUMP => Verdict::Jump(chain()?),
        data::GOTO => Verdict::Goto(chain()?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of [`complete`] for dumps of 100 chains, the `n`-th of which lacks chain `n` and
    /// is interrupted unless it is number `last`; and how many dumps it takes.
    fn completed(last: usize) -> (usize, usize) {
        let mut count = 0;
        let all = complete(|| {
            count += 1;
            let is_last = count == last;
            let chains = (0..100).filter(|chain| is_last || *chain != count);
            Ok((chains.map(|chain| (chain, ())).collect(), !is_last))
        });
        (all.unwrap().len(), count)
    }

    #[test]
    fn chains_are_dumped_until_no_commit_interrupts() {
        assert_eq!(completed(1), (100, 1));
        assert_eq!(completed(3), (100, 3));
    }

    #[test]
    fn dumps_that_are_all_interrupted_are_complete_together() {
        assert_eq!(completed(CHAIN_DUMPS + 1), (100, CHAIN_DUMPS));
    }
}
