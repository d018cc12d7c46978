//! The ways of a packet through tables that change meanwhile.
//!
//! A commit replaces a table as a whole, and a packet passes each table of a hook in one state
//! (`ipt_do_table` of x_tables holds the table; `nft_do_chain` reads the generation once for each
//! base chain). So a packet may wait before each table until the next commits take effect.

use std::{collections::BTreeSet, net::IpAddr, net::SocketAddr};

use ipnet::IpNet;
use switchyard_model::testing::{Fate, Packet};

use super::model::Tables;
use crate::xtables::{Table, rule::Words};

/// A packet on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Walk {
    to: SocketAddr,
    translated: bool,
    masqueraded: bool,
    mark: u32,
}

/// The end of a chain for a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Behind the last rule, or at `RETURN`.
    Returned,
    Accepted,
    Fate(Fate),
}

/// A table, and a built-in chain of it.
type Hook<'a> = (Table, &'a str);

/// Returns the fates that a packet may have while a family's tables go through these states, on a
/// node with these addresses. No client is remembered.
///
/// # Panics
/// If a rule on the packet's way has a word that is not known here.
pub fn fates(states: &[&Tables], packet: &Packet, local: &BTreeSet<IpAddr>) -> BTreeSet<Fate> {
    let (to, mut fates) = (packet.destination, BTreeSet::new());
    let start = Walk { to, translated: false, masqueraded: false, mark: 0 };
    let way = Way { states, packet, local };
    let first = if packet.interface.is_some() { "PREROUTING" } else { "OUTPUT" };
    for (from, walk) in way.pass(0, start, (Table::Nat, first), &mut fates) {
        let filter = match packet.interface {
            None => "OUTPUT",
            Some(_) if local.contains(&walk.to.ip()) => "INPUT",
            Some(_) => "FORWARD",
        };
        for (from, walk) in way.pass(from, walk, (Table::Filter, filter), &mut fates) {
            let last = if filter == "INPUT" { "INPUT" } else { "POSTROUTING" };
            for (_, walk) in way.pass(from, walk, (Table::Nat, last), &mut fates) {
                let Walk { to, translated, masqueraded, .. } = walk;
                fates.insert(Fate::Passed { to, translated, masqueraded });
            }
        }
    }
    fates
}

struct Way<'a> {
    states: &'a [&'a Tables],
    packet: &'a Packet,
    local: &'a BTreeSet<IpAddr>,
}

impl Way<'_> {
    /// Passes a table in each state from the given one on. Returns how the packet goes on, with
    /// the state.
    fn pass(
        &self,
        from: usize,
        walk: Walk,
        (table, chain): Hook<'_>,
        fates: &mut BTreeSet<Fate>,
    ) -> BTreeSet<(usize, Walk)> {
        let mut all = BTreeSet::new();
        for (number, tables) in self.states.iter().enumerate().skip(from) {
            for (end, walk) in self.chain(tables, table, chain, walk.clone()) {
                match end {
                    End::Fate(fate) => _ = fates.insert(fate),
                    End::Returned | End::Accepted => _ = all.insert((number, walk)),
                }
            }
        }
        all
    }

    /// Passes a chain, in all ways that chance allows.
    fn chain(&self, tables: &Tables, table: Table, name: &str, walk: Walk) -> Vec<(End, Walk)> {
        let rules = tables.chain(table, name);
        let rules = rules.unwrap_or_else(|| panic!("there is no chain {name}"));
        let (mut present, mut ended) = (vec![walk], Vec::new());
        for rule in rules {
            for walk in std::mem::take(&mut present) {
                let Some((may_pass, target)) = self.matches(rule, &walk) else {
                    present.push(walk);
                    continue;
                };
                if may_pass {
                    present.push(walk.clone());
                }
                let (target, options) = target.split_once(' ').unwrap_or((target, ""));
                let option = options.split(' ').nth(1).unwrap_or_default();
                match target {
                    "RETURN" => ended.push((End::Returned, walk)),
                    "ACCEPT" => ended.push((End::Accepted, walk)),
                    "DROP" => ended.push((End::Fate(Fate::Dropped), walk)),
                    "REJECT" => ended.push((End::Fate(Fate::Rejected), walk)),
                    "DNAT" => {
                        let to = option.parse().expect("an endpoint");
                        ended.push((End::Accepted, Walk { to, translated: true, ..walk }));
                    }
                    "MASQUERADE" => {
                        ended.push((End::Accepted, Walk { masqueraded: true, ..walk }));
                    }
                    "MARK" => {
                        let (value, mask) = numbers(option);
                        present.push(Walk { mark: walk.mark & !mask ^ value, ..walk });
                    }
                    chain => {
                        for (end, walk) in self.chain(tables, table, chain, walk) {
                            match end {
                                End::Returned => present.push(walk),
                                end => ended.push((end, walk)),
                            }
                        }
                    }
                }
            }
            present.sort_unstable();
            present.dedup();
        }
        ended.extend(present.into_iter().map(|walk| (End::Returned, walk)));
        ended
    }

    /// Whether the packet may pass the rule by chance, and the target with its options; `None` if
    /// the rule does not match.
    fn matches<'r>(&self, rule: &'r str, walk: &Walk) -> Option<(bool, &'r str)> {
        let Packet { protocol, source, interface, .. } = self.packet;
        let (mut words, mut is_not, mut by_chance) = (Words(rule), false, false);
        while let Some(word) = words.next() {
            let mut next = || words.next().expect("an option");
            let within = |net: &str, ip| net.parse::<IpNet>().expect("a network").contains(&ip);
            let holds = match word {
                "!" => {
                    is_not = true;
                    continue;
                }
                "-j" => return Some((by_chance, words.0.trim_start())),
                "-m" | "--comment" | "--mode" | "--seconds" | "--name" | "--mask" => {
                    next();
                    continue;
                }
                "--set" | "--reap" | "--rsource" => continue,
                "--probability" => {
                    next();
                    by_chance = true;
                    continue;
                }
                "-s" => within(next(), source.ip()),
                "-d" => within(next(), walk.to.ip()),
                "-i" => match (next(), *interface) {
                    (_, None) => false,
                    (name, Some(known)) => match name.strip_suffix('+') {
                        Some(prefix) => known.starts_with(prefix),
                        None => known == name,
                    },
                },
                "-p" => next() == protocol.as_lower(),
                "--dport" => next() == walk.to.port().to_string(),
                "--dst-type" if next() == "LOCAL" => self.local.contains(&walk.to.ip()),
                "--src-type" if next() == "LOCAL" => self.local.contains(&source.ip()),
                "--ctstate" => next()
                    .split(',')
                    .any(|state| state == "NEW" || state == "DNAT" && walk.translated),
                "--mark" => {
                    let (value, mask) = numbers(next());
                    walk.mark & mask == value
                }
                // No client is remembered.
                "--rcheck" | "--update" => false,
                _ => panic!("{word:?} of {rule:?} is not known"),
            };
            if holds == std::mem::take(&mut is_not) {
                return None;
            }
        }
        panic!("{rule:?} leads nowhere");
    }
}

/// A value with its mask, such as `0x4000/0x4000`.
fn numbers(text: &str) -> (u32, u32) {
    let number = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        u32::from_str_radix(digits, 16).expect("a number")
    };
    let (value, mask) = text.split_once('/').expect("a mask");
    (number(value), number(mask))
}
