//! The ways of packets through a table.

use std::collections::{BTreeMap, BTreeSet};

use crate::nftables::{abi::expression as e, ruleset::Hook};

use super::{
    Budget, Choice, Domain, End, Fate, PacketField, Packets, Program, Share,
    decode::{Compare, Draw, Expression, Verdict, WORDS},
    memory::remember,
    values::big_endian,
    walk::{Drawn, Evaluation, Found, Step, Stop, Walk, Word},
};

/// The most parts of packets that are followed, beyond which the rest is not understood.
const MOST_PARTS: usize = 512;
/// The most ways that are open: those of so many endpoints.
const MOST_WAYS: usize = 1 << 17;
/// The work to divide a way, beside that for what it has seen.
const DIVIDE: usize = 32;
/// The most chains that a packet is in (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

impl Program {
    /// Returns the fates of packets on a node with these addresses, in parts whose packets have the
    /// same fate.
    pub fn fates(
        &self,
        packets: &Packets,
        local: &Domain,
        budget: &Budget,
    ) -> Vec<(Packets, Fate)> {
        self.parts(packets, local, &[], budget)
    }

    pub(super) fn parts(
        &self,
        packets: &Packets,
        local: &Domain,
        memories: &[(&str, Vec<u8>)],
        budget: &Budget,
    ) -> Vec<(Packets, Fate)> {
        budget.renew();
        let mut decided = Vec::new();
        let mut open = vec![packets.clone()];
        while let Some(packets) = open.pop() {
            if packets.is_empty() {
                continue;
            }
            if decided.len() + open.len() >= MOST_PARTS {
                decided.push((packets, unknown("there are too many cases".to_owned())));
                break;
            }
            let of = Evaluation { program: self, packets: &packets, local, memories, budget };
            match of.fate() {
                Ok(fate) => decided.push((packets, fate)),
                Err(Stop::Unknown(why)) => decided.push((packets, unknown(why))),
                Err(Stop::Exhausted(why)) => {
                    decided.push((packets, unknown(why.to_owned())));
                    break;
                }
                Err(Stop::Split(field, parts)) => {
                    open.extend(parts.map(|part| packets.replaced(field, part)));
                }
            }
        }
        decided
    }
}

/// Takes the data of an element that was drawn.
fn take<'p>(walk: &mut Walk<'p>, found: Found<'p>) -> Result<(), Stop> {
    match found {
        Found::Bytes(to, bytes) => walk.write(to, bytes),
        Found::Verdict(verdict) => {
            walk.verdict = Some(verdict);
            Ok(())
        }
    }
}

fn unknown(why: String) -> Fate {
    Fate { ends: BTreeMap::from([(End::Unknown(why.into()), (1, 1))]), ..Fate::default() }
}

impl<'p> Evaluation<'p> {
    fn fate(&self) -> Result<Fate, Stop> {
        let hooks = match self.packets.is_from_node {
            false => vec![None, Some(Hook::Prerouting)],
            true => vec![Some(Hook::Postrouting), Some(Hook::Output)],
        };
        let mut open = vec![Walk {
            hooks,
            bases: Vec::new(),
            drops: false,
            stack: Vec::new(),
            rest: &[],
            verdict: None,
            words: [Word::Unset; WORDS],
            drawn: None,
            mark: [0; 4],
            to: None,
            is_bound: false,
            is_looped: false,
            is_masqueraded: false,
            share: (1, 1),
            choices: BTreeSet::new(),
            remembered: BTreeSet::new(),
            asked: BTreeSet::new(),
        }];
        let mut fate = Fate::default();
        while let Some(mut walk) = open.pop() {
            let end = loop {
                self.budget.spend(1)?;
                if let Some(end) = self.advance(&mut walk, &mut open)? {
                    break end;
                }
            };
            remember(&mut fate, &end, walk.remembered)?;
            let share = fate.ends.entry(end).or_insert((0, 1));
            *share = sum(*share, walk.share)?;
            fate.choices.extend(walk.choices);
            fate.asked.extend(walk.asked.into_iter().map(Box::from));
        }
        if fate.ends.len() == 1 {
            fate.choices.clear();
        }
        Ok(fate)
    }

    /// Takes the packets on by an expression, a rule or a hook. Returns their end, if it is one.
    fn advance(&self, walk: &mut Walk<'p>, open: &mut Vec<Walk<'p>>) -> Result<Option<End>, Stop> {
        if let Some(verdict) = walk.verdict.take() {
            return self.decide(walk, verdict);
        }
        let Some((expression, rest)) = walk.rest.split_first() else {
            return self.next_rule(walk);
        };
        walk.rest = rest;
        match self.run(walk, expression)? {
            Step::Next => {}
            Step::Break => walk.rest = &[],
            Step::Verdict(verdict) => return self.decide(walk, verdict),
            Step::Bound => {
                walk.is_bound = true;
                walk.leave();
            }
            Step::Masquerade => {
                walk.is_masqueraded = true;
                walk.leave();
            }
            Step::Reject => return Ok(Some(End::Rejected)),
            Step::Draw(values, all, _) if matches!(values[..], [(_, hits)] if hits == all) => {
                take(walk, values[0].0)?;
            }
            Step::Draw(values, all, choice) => {
                let hits: u64 = values.iter().map(|(_, count)| count).sum();
                let work = DIVIDE + walk.remembered.len() + walk.asked.len();
                let mut part = |count: u64, value: Option<Found<'p>>| {
                    self.budget.spend(work)?;
                    if open.len() >= MOST_WAYS {
                        return Err(Stop::Exhausted("there are too many ways"));
                    }
                    let mut walk = walk.clone();
                    walk.share = product(walk.share, (count, all))?;
                    walk.choices.insert(choice.clone());
                    match value {
                        Some(value) => take(&mut walk, value)?,
                        None => walk.rest = &[],
                    }
                    open.push(walk);
                    Ok(())
                };
                for (value, count) in values {
                    part(count, Some(value))?;
                }
                if hits < all {
                    part(all - hits, None)?;
                }
                // One of them goes on here.
                if let Some(next) = open.pop() {
                    *walk = next;
                }
            }
        }
        Ok(None)
    }

    fn next_rule(&self, walk: &mut Walk<'p>) -> Result<Option<End>, Stop> {
        let Some((chain, number)) = walk.stack.last_mut() else {
            return match walk.drops {
                true => Ok(Some(End::Dropped)),
                false => self.next_base(walk),
            };
        };
        match self.program.chains.get(*chain).and_then(|chain| chain.rules.get(*number)) {
            Some(rule) => {
                *number += 1;
                walk.rest = rule;
                walk.words = [Word::Unset; WORDS];
                walk.drawn = None;
            }
            None => _ = walk.stack.pop(),
        }
        Ok(None)
    }

    fn next_base(&self, walk: &mut Walk<'p>) -> Result<Option<End>, Stop> {
        if let Some(name) = walk.bases.pop() {
            let chain = self.program.chains.get_key_value(name);
            let Some((name, base)) =
                chain.and_then(|(name, chain)| Some((name, chain.base.as_ref()?)))
            else {
                return Ok(None);
            };
            let is_early = matches!(base.hook, Some(Hook::Prerouting | Hook::Output));
            if !(base.is_nat && is_early && walk.is_bound) {
                walk.drops = base.drops;
                walk.stack.push((name, 0));
            }
            return Ok(None);
        }
        let hook = match walk.hooks.pop() {
            None => {
                let port = || self.packets.get(PacketField::DestinationPort).single();
                let to = match walk.to {
                    Some((ip, Some(port))) => Some((ip, port)),
                    Some((ip, None)) => Some((ip, port().unwrap_or(0) as u16)),
                    None => None,
                };
                return Ok(Some(End::Passed { to, masqueraded: walk.is_masqueraded }));
            }
            Some(None) => {
                match self.is_local(walk)? {
                    true => walk.hooks.push(Some(Hook::Input)),
                    false => walk.hooks.extend([Some(Hook::Postrouting), Some(Hook::Forward)]),
                }
                return Ok(None);
            }
            Some(Some(hook)) => hook,
        };
        // The node's packets to itself come back.
        let may_loop = hook == Hook::Postrouting && self.packets.is_from_node && !walk.is_looped;
        if may_loop && self.is_local(walk)? {
            walk.hooks.extend([None, Some(Hook::Prerouting)]);
            walk.is_bound = true;
            walk.is_looped = true;
        }
        let names = self.program.bases.get(&hook);
        walk.bases = names.into_iter().flatten().map(|name| &**name).collect();
        Ok(None)
    }

    /// Whether the packets are for the node.
    fn is_local(&self, walk: &Walk<'_>) -> Result<bool, Stop> {
        match walk.to {
            Some((ip, _)) => Ok(self.local.contains(ip)),
            None => self.is_in(PacketField::Destination, self.local),
        }
    }

    fn decide(&self, walk: &mut Walk<'p>, verdict: &'p Verdict) -> Result<Option<End>, Stop> {
        walk.rest = &[];
        match verdict {
            Verdict::Drop => return Ok(Some(End::Dropped)),
            Verdict::Accept => walk.leave(),
            Verdict::Continue => {}
            Verdict::Return => _ = walk.stack.pop(),
            Verdict::Jump(chain) => walk.stack.push((chain, 0)),
            Verdict::Goto(chain) => {
                walk.stack.pop();
                walk.stack.push((chain, 0));
            }
        }
        match walk.stack.len() > DEEPEST {
            true => Err(Stop::Unknown("chains lead in a circle".to_owned())),
            false => Ok(None),
        }
    }

    fn run(&self, walk: &mut Walk<'p>, expression: &'p Expression) -> Result<Step<'p>, Stop> {
        let unknown = |what: &str| Err(Stop::Unknown(what.to_owned()));
        match expression {
            Expression::Payload { base, offset, length, to } => {
                let (field, at) = self.payload(*base, *offset, *length)?;
                self.load(walk, field, at, *length as usize, *to)?;
            }
            Expression::Meta { key, to } => match *key {
                e::META_L4PROTO => self.load(walk, PacketField::Protocol, 0, 1, *to)?,
                e::META_IIFNAME if walk.is_looped => {
                    let mut name = [0; 16];
                    name[..2].copy_from_slice(b"lo");
                    walk.write(*to, &name)?;
                }
                e::META_IIFNAME => self.load(walk, PacketField::Interface, 0, 16, *to)?,
                // That of hardware, which the kernel compares with nothing.
                e::META_IIFKIND => walk.write(*to, &[0; 16])?,
                e::META_MARK => walk.write(*to, &{ walk.mark })?,
                _ => return unknown(&format!("meta {key}")),
            },
            Expression::SetMark { from } => {
                walk.mark = walk.read(*from, 4)?.try_into().unwrap_or_default();
            }
            Expression::Ct { key, original, to } => match (*key, *original) {
                (e::CT_STATE, _) => walk.write(*to, &e::CT_STATE_NEW.to_ne_bytes())?,
                (e::CT_STATUS, _) => walk.put(*to, Word::Status, 4)?,
                (e::CT_SRC_IP | e::CT_SRC_IP6, Some(true)) => {
                    let length = PacketField::Source.length(self.program.family);
                    self.load_original(walk, PacketField::Source, length, *to)?;
                }
                (e::CT_DST_IP | e::CT_DST_IP6, Some(true)) => {
                    let length = PacketField::Destination.length(self.program.family);
                    self.load_original(walk, PacketField::Destination, length, *to)?;
                }
                (e::CT_PROTO_DST, Some(true)) => {
                    self.load_original(walk, PacketField::DestinationPort, 2, *to)?;
                }
                _ => return unknown(&format!("ct {key}")),
            },
            Expression::Fib { source, to } => {
                let is_local = match (source, walk.to) {
                    (true, _) => Word::Type(PacketField::Source),
                    (false, None) => Word::Type(PacketField::Destination),
                    (false, Some((ip, _))) if self.local.contains(ip) => {
                        Word::Bytes(e::ADDRTYPE_LOCAL.to_ne_bytes())
                    }
                    (false, Some(_)) => return unknown("fib of a translated address"),
                };
                walk.put(*to, is_local, 4)?;
            }
            Expression::Compare { from, how, with } => {
                return Ok(if self.compare(walk, *from, *how, with)? {
                    Step::Next
                } else {
                    Step::Break
                });
            }
            Expression::Range { from, negated, first, last } => {
                let is_within = self.compare(walk, *from, Compare::GreaterOrEqual, first)?
                    && self.compare(walk, *from, Compare::LessOrEqual, last)?;
                return Ok(if is_within != *negated { Step::Next } else { Step::Break });
            }
            Expression::Bitwise { from, to, mask, xor } => {
                self.mask(walk, *from, *to, mask, xor)?
            }
            Expression::Lookup { set, from, to, negated } => {
                return self.look_up(walk, set, *from, *to, *negated);
            }
            Expression::Immediate { to, bytes } => walk.write(*to, bytes)?,
            Expression::Verdict(verdict) => return Ok(Step::Verdict(verdict)),
            Expression::Draw { to, how, modulus, offset } => {
                let how = match how {
                    Draw::Random => Choice::Random,
                    Draw::InTurn => Choice::InTurn,
                    Draw::Hash { from, length, seed } => {
                        let of = walk.fields(self.program.family, *from, *length)?;
                        Choice::Hash { of, seed: *seed, slots: *modulus, order: 0 }
                    }
                };
                let drawn = Drawn { how, modulus: *modulus, offset: *offset };
                if walk.drawn.replace(drawn).is_some() {
                    return unknown("a rule that draws twice");
                }
                walk.put(*to, Word::Drawn, 4)?;
            }
            Expression::Translate { address, port } => {
                let length = PacketField::Destination.length(self.program.family);
                let own = PacketField::Destination;
                match address.map(|address| walk.words[address]) {
                    // To itself.
                    Some(Word::Field { field, length: loaded, .. })
                        if field == own && loaded == length =>
                    {
                        return match port {
                            None => Ok(Step::Bound),
                            Some(_) => unknown("a translation of the port"),
                        };
                    }
                    None => return unknown("a translation without an address"),
                    Some(_) => {}
                }
                let ip = walk.read(address.unwrap_or_default(), length)?;
                let port = match port {
                    Some(port) => Some(u16::from_be_bytes(
                        walk.read(*port, 2)?.try_into().unwrap_or_default(),
                    )),
                    None => None,
                };
                walk.to = Some((big_endian(&ip), port));
                return Ok(Step::Bound);
            }
            Expression::Masquerade => return Ok(Step::Masquerade),
            Expression::Reject => return Ok(Step::Reject),
            Expression::Remember { set, key, data, milliseconds, renews } => {
                let memory = self.memory(walk, set, *key, *data, *milliseconds, *renews)?;
                walk.remembered.insert(memory);
            }
            Expression::Nothing => {}
            Expression::Unknown(name) => {
                let chain = walk.stack.last().map_or("", |(chain, _)| chain);
                return unknown(&format!("the expression {name} in the chain {chain}"));
            }
        }
        Ok(Step::Next)
    }
}

fn sum((a, b): Share, (c, d): Share) -> Result<Share, Stop> {
    let [a, b, c, d] = [a, b, c, d].map(u128::from);
    lowest(a * d + b * c, b * d)
}

fn product((a, b): Share, (c, d): Share) -> Result<Share, Stop> {
    let [a, b, c, d] = [a, b, c, d].map(u128::from);
    lowest(a * c, b * d)
}

fn lowest(part: u128, whole: u128) -> Result<Share, Stop> {
    let (mut a, mut b) = (part, whole);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let divisor = a.max(1);
    match (u64::try_from(part / divisor), u64::try_from(whole / divisor)) {
        (Ok(part), Ok(whole)) => Ok((part, whole)),
        _ => Err(Stop::Unknown("a share".to_owned())),
    }
}
