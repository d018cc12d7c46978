//! The ways of a packet through a [`Ruleset`] that a commit changes meanwhile.
//!
//! A packet sees the following of a commit (`net/netfilter/nf_tables_core.c` and `nf_tables_api.c`
//! of Linux 5.13 to 6.18):
//!
//! - `nft_do_chain` reads the generation cursor once for each base chain. All chains that the
//!   packet enters from there are taken in that generation (`blob_gen_0` or `blob_gen_1`), of which
//!   `nf_tables_commit` publishes the next one before it sets the cursor.
//! - A lookup in a set reads the cursor again (`nft_genmask_cur`): it finds the elements of the
//!   present generation. All elements of a commit change when the cursor is set, at once.
//! - A chain that is new has no rules in the generation before it (`nf_tables_addchain`).
//!
//! So a packet may wait at each rule, and before each base chain, until the commit takes effect.
//! Two things are better here than they can be: a packet sees one commit at most, though a packet
//! that waited for longer than the message for the next one takes could see two; and kernels before
//! 6.17 may find nothing if a commit replaces the element during the lookup itself.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use switchyard_model::{
    IpFamily,
    testing::{Fate, Packet},
};

use super::model::{Chain, Contents, Ruleset, Set};
use crate::{
    families,
    nftables::ruleset::{
        ChainBase, ChainKind, ChainName, ElementData, Family, Hook, InterfaceMatch, Key, Selector,
        SetName, Side, SlotChoice, Statement, Table, Verdict,
    },
};

/// The states of a kernel before and after a commit.
#[derive(Clone, Debug)]
pub struct Commit<'a> {
    states: [&'a Ruleset; 2],
    /// The base chains of both states, the last one first.
    bases: [Vec<(Hook, Base<'a>)>; 2],
    local: &'a BTreeSet<IpAddr>,
}

/// A base chain: its table, its name, and whether it translates destinations.
type Base<'a> = (&'a Table, &'a ChainName, bool);

/// A packet on its way.
#[derive(Clone)]
struct Walk<'a> {
    /// The present state: 1 once the commit has taken effect.
    present: usize,
    /// The hooks that are to be passed, the next one last; `None` is the choice of a route.
    hooks: Vec<Option<Hook>>,
    /// The base chains that are left of this hook, the next one last.
    bases: Vec<Base<'a>>,
    /// The state whose chains are passed in this base chain.
    generation: usize,
    table: Option<&'a Table>,
    /// The chains that the packet is in, each with the number of the next rule.
    stack: Vec<(&'a Chain, usize)>,
    interface: Option<&'static str>,
    destination: SocketAddr,
    mark: u32,
    /// Whether a chain of type nat has decided about the destination.
    is_bound: bool,
    is_masqueraded: bool,
}

/// The result of a rule.
#[derive(PartialEq)]
enum Outcome<'a> {
    /// The next rule.
    Next,
    /// The end of the base chain.
    Accept,
    Return,
    Enter(&'a ChainName, bool),
    /// The end of the base chain, with the destination translated to one of these; and if a slot is
    /// empty, the next rule for the packets that select the slot.
    Translate(Vec<SocketAddr>, bool),
    Masquerade,
    End(Fate),
}

impl<'a> Commit<'a> {
    /// The commit between two states, on a node with the `local` addresses.
    pub fn new(before: &'a Ruleset, after: &'a Ruleset, local: &'a BTreeSet<IpAddr>) -> Self {
        let bases = |state: &'a Ruleset| {
            let chains = state.tables.iter().flat_map(|(table, contents)| {
                contents.chains.iter().map(move |(name, chain)| (table, name, &chain.base))
            });
            let bases = chains.filter_map(|(table, name, base)| {
                let ChainBase::Base(base) = base else { return None };
                let is_early = matches!(base.hook, Hook::Prerouting | Hook::Output);
                let translates = base.kind == ChainKind::Nat && is_early;
                Some((base.priority, (base.hook, (table, name, translates))))
            });
            let mut bases: Vec<_> = bases.collect();
            bases.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
            bases.into_iter().map(|(_, base)| base).collect()
        };
        Self { states: [before, after], bases: [before, after].map(bases), local }
    }

    /// All fates that a packet can have, whenever it comes.
    pub fn fates(&self, packet: &Packet) -> BTreeSet<Fate> {
        let hooks = match packet.interface {
            Some(_) => vec![None, Some(Hook::Prerouting)],
            None => vec![Some(Hook::Postrouting), Some(Hook::Output)],
        };
        let mut fates = BTreeSet::new();
        let mut open = vec![Walk {
            present: 0,
            hooks,
            bases: Vec::new(),
            generation: 0,
            table: None,
            stack: Vec::new(),
            interface: packet.interface,
            destination: packet.destination,
            mark: 0,
            is_bound: false,
            is_masqueraded: false,
        }];
        while let Some(mut walk) = open.pop() {
            let Some((chain, number)) = walk.stack.last().copied() else {
                self.enter_base(packet, walk, &mut open, &mut fates);
                continue;
            };
            let Some((_, rule)) = chain.rules.get(number) else {
                walk.stack.pop();
                open.push(walk);
                continue;
            };
            let result = self.evaluate(packet, &walk, walk.present, &rule.statements);
            // If the commit makes no difference here, it may as well take effect later.
            if walk.present == 0 {
                let changed = self.evaluate(packet, &walk, 1, &rule.statements);
                if changed != result {
                    let walk = Walk { present: 1, ..walk.clone() };
                    self.go_on(walk, changed, &mut open, &mut fates);
                }
            }
            self.go_on(walk, result, &mut open, &mut fates);
        }
        fates
    }

    fn contents(&self, state: usize, table: Option<&Table>) -> Option<&'a Contents> {
        self.states[state].tables.get(table?).map(|contents| &**contents)
    }

    /// The chain of this name, in the generation of the packet.
    fn chain(&self, walk: &Walk<'a>, name: &ChainName) -> Option<&'a Chain> {
        self.contents(walk.generation, walk.table)?.chains.get(name).map(|chain| &**chain)
    }

    /// The set that the rules of the packet's generation name so, with its present elements.
    fn set(&self, walk: &Walk<'a>, present: usize, name: &SetName) -> Option<&'a Set> {
        let of = |state| self.contents(state, walk.table)?.sets.get(name).map(|set| &**set);
        let used = of(walk.generation)?;
        Some(of(present).filter(|set| set.handle == used.handle).unwrap_or(used))
    }

    /// Goes on after a rule, with the mark that it leaves.
    fn go_on(
        &self,
        mut walk: Walk<'a>,
        (outcome, mark): (Outcome<'a>, u32),
        open: &mut Vec<Walk<'a>>,
        fates: &mut BTreeSet<Fate>,
    ) {
        walk.mark = mark;
        if let Some((_, number)) = walk.stack.last_mut() {
            *number += 1;
        }
        match outcome {
            Outcome::Next => open.push(walk),
            Outcome::Accept => {
                walk.stack.clear();
                open.push(walk);
            }
            Outcome::Return => {
                walk.stack.pop();
                open.push(walk);
            }
            Outcome::Enter(name, returns) => {
                if !returns {
                    walk.stack.pop();
                }
                // A chain without rules in this generation has nothing to return from.
                walk.stack.extend(self.chain(&walk, name).map(|chain| (chain, 0)));
                open.push(walk);
            }
            Outcome::Translate(to, has_empty) => {
                open.extend(has_empty.then(|| walk.clone()));
                walk.stack.clear();
                walk.is_bound = true;
                open.extend(to.into_iter().map(|destination| Walk { destination, ..walk.clone() }));
            }
            Outcome::Masquerade => {
                walk.stack.clear();
                walk.is_masqueraded = true;
                open.push(walk);
            }
            Outcome::End(fate) => _ = fates.insert(fate),
        }
    }

    /// Enters the next base chain, if there is one.
    fn enter_base(
        &self,
        packet: &Packet,
        mut walk: Walk<'a>,
        open: &mut Vec<Walk<'a>>,
        fates: &mut BTreeSet<Fate>,
    ) {
        if let Some((table, name, translates)) = walk.bases.pop() {
            if translates && walk.is_bound {
                open.push(walk);
                return;
            }
            walk.table = Some(table);
            for present in walk.present..=1 {
                let mut walk = Walk { present, generation: present, ..walk.clone() };
                walk.stack.extend(self.chain(&walk, name).map(|chain| (chain, 0)));
                open.push(walk);
            }
            return;
        }
        let is_local = self.local.contains(&walk.destination.ip());
        let hook = match walk.hooks.pop() {
            None => {
                let translated = walk.destination != packet.destination;
                let masqueraded = walk.is_masqueraded;
                fates.insert(Fate::Passed { to: walk.destination, translated, masqueraded });
                return;
            }
            Some(None) => {
                match is_local {
                    true => walk.hooks.push(Some(Hook::Input)),
                    false => walk.hooks.extend([Some(Hook::Postrouting), Some(Hook::Forward)]),
                }
                open.push(walk);
                return;
            }
            Some(Some(hook)) => hook,
        };
        // The node's packets to itself come back.
        if hook == Hook::Postrouting && is_local && walk.interface.is_none() {
            walk.hooks.extend([None, Some(Hook::Prerouting)]);
            walk.is_bound = true;
        }
        if hook == Hook::Prerouting && walk.interface.is_none() {
            walk.interface = Some("lo");
        }
        let family = Family::from(IpFamily::of(&packet.destination.ip()));
        let bases = self.bases[walk.present].iter();
        let here = bases.filter(|(at, (table, ..))| *at == hook && table.family == family);
        walk.bases = here.map(|(_, base)| *base).collect();
        open.push(walk);
    }

    /// The result of a rule and the mark that it leaves, with the elements of the `present` state.
    fn evaluate(
        &self,
        packet: &Packet,
        walk: &Walk<'a>,
        present: usize,
        statements: &'a [Statement],
    ) -> (Outcome<'a>, u32) {
        let mut mark = walk.mark;
        (self.decide(packet, walk, present, statements, &mut mark).unwrap_or(Outcome::Next), mark)
    }

    /// The decision of a rule; `None` if it makes none.
    fn decide(
        &self,
        packet: &Packet,
        walk: &Walk<'a>,
        present: usize,
        statements: &'a [Statement],
        mark: &mut u32,
    ) -> Option<Outcome<'a>> {
        for statement in statements {
            let matches = match statement {
                Statement::CtStateNew => true,
                Statement::CtStatusDnat => walk.destination != packet.destination,
                Statement::Address { side, negated, net } => {
                    net.contains(&walk.address(packet, *side)) != *negated
                }
                Statement::InputInterface { negated, name } => {
                    let interface = walk.interface.unwrap_or_default();
                    let is_named = match name {
                        InterfaceMatch::Exact(name) => interface == &**name,
                        InterfaceMatch::Prefix(prefix) => interface.starts_with(&**prefix),
                        // No packet of the model comes in at an interface of any kind.
                        InterfaceMatch::Kind(_) => return None,
                    };
                    is_named != *negated
                }
                Statement::FibLocal(side) => self.local.contains(&walk.address(packet, *side)),
                // No packet of the model is for a socket.
                Statement::SocketTransparent | Statement::SocketWildcard => false,
                // Each packet of the model is a client's.
                Statement::CtReply => false,
                Statement::Protocol(protocol) => packet.protocol == *protocol,
                Statement::MarkSet(mask) => *mark & mask != 0,
                Statement::MarkOr(mask) => {
                    *mark |= mask;
                    true
                }
                Statement::MarkXor(mask) => {
                    *mark ^= mask;
                    true
                }
                Statement::Lookup { key, set } => {
                    let key = walk.key(packet, key);
                    self.set(walk, present, set).is_some_and(|set| has(set, key))
                }
                Statement::VerdictMap { key, map } => {
                    let key = walk.key(packet, key);
                    let found = self.set(walk, present, map).and_then(|set| set.elements.get(&key));
                    match found.map(|dump| &dump.element.data) {
                        Some(ElementData::Verdict(verdict)) => return Some(decide(verdict)),
                        _ => false,
                    }
                }
                Statement::DnatSlot { protocol, key, choice, slots, map } => {
                    let key = walk.key(packet, key);
                    let chosen = match choice {
                        SlotChoice::Random | SlotChoice::InTurn => 0..*slots,
                        // `reciprocal_scale` in `linux/kernel.h`.
                        SlotChoice::Hash { .. } => {
                            let slot = (u64::from(packet.hash) * u64::from(*slots)) >> 32;
                            slot as u32..slot as u32 + 1
                        }
                    };
                    let set = self.set(walk, present, map).filter(|_| packet.protocol == *protocol);
                    let endpoint = |slot| endpoint(set?, key.slot(slot));
                    let found: Vec<Option<SocketAddr>> = chosen.map(endpoint).collect();
                    let has_empty = found.contains(&None);
                    match found.into_iter().flatten().collect::<Vec<_>>() {
                        found if found.is_empty() => false,
                        found => return Some(Outcome::Translate(found, has_empty)),
                    }
                }
                Statement::DnatMap { key, map } => {
                    let key = walk.key(packet, key);
                    match self.set(walk, present, map).and_then(|set| endpoint(set, key)) {
                        Some(found) => return Some(Outcome::Translate(vec![found], false)),
                        None => false,
                    }
                }
                Statement::DnatToItself => {
                    return Some(Outcome::Translate(vec![walk.destination], false));
                }
                Statement::Masquerade => return Some(Outcome::Masquerade),
                Statement::Reject => return Some(Outcome::End(Fate::Rejected)),
                // Adds what later packets find.
                Statement::UpdateMap { .. } => true,
                Statement::Verdict(verdict) => return Some(decide(verdict)),
            };
            if !matches {
                return None;
            }
        }
        None
    }
}

impl Walk<'_> {
    fn address(&self, packet: &Packet, side: Side) -> IpAddr {
        match side {
            Side::Source => packet.source.ip(),
            Side::Destination => self.destination.ip(),
        }
    }

    fn key(&self, packet: &Packet, selectors: &[Selector]) -> Key {
        selectors.iter().fold(Key::new(), |key, selector| match selector {
            Selector::SourceAddress | Selector::OriginalSource => key.address(packet.source.ip()),
            Selector::DestinationAddress => key.address(self.destination.ip()),
            Selector::Protocol => key.protocol(packet.protocol),
            Selector::SourcePort => key.port(packet.source.port()),
            Selector::DestinationPort => key.port(self.destination.port()),
            Selector::OriginalDestination => key.address(packet.destination.ip()),
            Selector::OriginalDestinationPort => key.port(packet.destination.port()),
        })
    }
}

fn decide(verdict: &Verdict) -> Outcome<'_> {
    match verdict {
        Verdict::Accept => Outcome::Accept,
        Verdict::Drop => Outcome::End(Fate::Dropped),
        Verdict::Return => Outcome::Return,
        Verdict::Jump(chain) => Outcome::Enter(chain, true),
        Verdict::Goto(chain) => Outcome::Enter(chain, false),
    }
}

/// Whether a set has a key, or an interval with it.
fn has(set: &Set, key: Key) -> bool {
    let address = || families::address(key.as_slice());
    set.elements.contains_key(&key)
        || set
            .elements
            .keys()
            .filter_map(Key::as_interval)
            .any(|(first, last)| address().is_some_and(|address| (first..=last).contains(&address)))
}

/// The value of an element of a map, which is an address and a port.
fn endpoint(set: &Set, key: Key) -> Option<SocketAddr> {
    let ElementData::Value(value) = set.elements.get(&key)?.element.data else { return None };
    let (ip, port) = value.as_slice().split_at_checked(value.as_slice().len().checked_sub(4)?)?;
    Some((families::address(ip)?, u16::from_be_bytes([port[0], port[1]])).into())
}
