//! Base chains that let no new connection pass.
//!
//! The question is asked of other programs' rules, of which not every expression is known here. So
//! a chain is found only if it drops what no rule decides about, and each rule that accepts can be
//! seen to accept nothing new: only packets of known connections, of ICMP, or of the loopback
//! interface. Any other rule that may accept counts as one that does. Of a single connection, whose
//! addresses and port are known, conditions on these are decided. Where others decide whether a
//! chain drops it, the chain is named with these.

mod effect;
mod flow;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use switchyard_model::words;

pub use self::flow::NewFlow;

use self::effect::{Act, Effect, effect};
use super::{
    abi::{LIST_ELEMENT, chain, data, element, message, rule, table},
    listing::{dump, family_name, get, number_of_family_name},
};
use crate::netlink::{Attributes, Error, Socket, Writer};

/// The most chains that are read to decide about a base chain. One that leads to more counts as one
/// that accepts.
const MOST_CHAINS: usize = 256;
/// The subject of what is not decided then.
const MORE_CHAINS: &str = "chains beyond the first 256";

/// The families with the hooks of IP.
const OF_IP: [&str; 3] = ["inet", "ip", "ip6"];

/// A hook that packets of connections to Services pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateHook {
    /// `forward`: packets of pods and other hosts.
    Forward,
    /// `output`: packets of this node.
    Output,
}

// The names that nft has.
words! { GateHook { Forward = "forward", Output = "output" } }

impl GateHook {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            2 => Some(Self::Forward),
            3 => Some(Self::Output),
            _ => None,
        }
    }
}

/// A chain of nf_tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ChainPath {
    /// The family, by the name that nft has for it.
    pub family: &'static str,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

impl ChainPath {
    /// Makes a name, whose family is one of nft's words.
    pub fn new(family: &'static str, table: &str, chain: &str) -> Self {
        Self { family, table: table.to_owned(), chain: chain.to_owned() }
    }
}

/// A base chain that lets no new connection pass, or may let one not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClosedGate {
    /// The chain.
    pub name: ChainPath,
    /// The hook of the chain.
    pub hook: GateHook,
    /// The priority of the chain.
    pub priority: i32,
    /// The port of the netlink socket that owns the table, by default the id of the process: while
    /// the socket is open, nobody else may change the table. `None` if none does.
    pub owner: Option<u32>,
    /// The subjects of conditions that decide whether the connection passes, and are not decided
    /// here: `marks`. Empty if it does not pass.
    pub undecided: BTreeSet<&'static str>,
}

struct ListedChain {
    name: ChainPath,
    owner: Option<u32>,
    /// GateHook, priority and whether the policy drops, of a base chain of the type `filter`.
    gate: Option<(GateHook, i32, bool)>,
}

/// The chains of nf_tables in a network namespace.
pub struct Chains {
    socket: Socket,
    chains: Vec<ListedChain>,
    /// The expressions of the rules of chains that were read.
    rules: BTreeMap<ChainPath, Vec<Vec<u8>>>,
}

impl Chains {
    /// Lists the chains of the calling thread's network namespace, but for those of tables that are
    /// dormant. There are none if the kernel has no nf_tables.
    ///
    /// # Errors
    /// If the kernel refuses, as without CAP_NET_ADMIN, or does not answer.
    pub fn list() -> Result<Self, Error> {
        let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
        if super::generation(&mut socket)?.is_none() {
            return Ok(Self { socket, chains: Vec::new(), rules: BTreeMap::new() });
        }
        let tables: HashMap<(u8, String), Option<u32>> = dump(
            &mut socket,
            message::GET_TABLE,
            0,
            |_| {},
            |family, read| {
                let flags = read.be32(table::FLAGS)?;
                let name = read.text(table::NAME)?.to_owned();
                let owner = read.be32(table::OWNER);
                (flags & table::FLAG_DORMANT == 0).then_some(((family, name), owner))
            },
        )?
        .into_iter()
        .collect();
        let chains = dump(
            &mut socket,
            message::GET_CHAIN,
            0,
            |_| {},
            |family, read| {
                let table = read.text(chain::TABLE)?.to_owned();
                let chain = read.text(chain::NAME)?.to_owned();
                let owner = *tables.get(&(family, table.clone()))?;
                let family = family_name(family).filter(|name| OF_IP.contains(name))?;
                let name = ChainPath { family, table, chain };
                Some(ListedChain { name, owner, gate: gate(read) })
            },
        )?;
        Ok(Self { socket, chains, rules: BTreeMap::new() })
    }

    /// The names of all chains.
    pub fn names(&self) -> impl Iterator<Item = &ChainPath> {
        self.chains.iter().map(|chain| &chain.name)
    }

    /// Returns the base chains that let no new connection pass, but for those of tables that are
    /// `but` these.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn closed_gates(&mut self, but: impl Fn(&str) -> bool) -> Result<Vec<ClosedGate>, Error> {
        let mut gates = self.gates_closed_to(but, None)?;
        gates.retain(|gate| gate.undecided.is_empty());
        Ok(gates)
    }

    /// Does the same for one connection; `None` for all. Those that may drop it are among them.
    /// Rules are read once.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn gates_closed_to(
        &mut self,
        but: impl Fn(&str) -> bool,
        flow: Option<&NewFlow>,
    ) -> Result<Vec<ClosedGate>, Error> {
        let mut found = Vec::new();
        let other_family = flow.map(|flow| if flow.destination.is_ipv4() { "ip6" } else { "ip" });
        for listed in &self.chains {
            let Some((hook, priority, drops)) = listed.gate else { continue };
            if but(&listed.name.table) || Some(listed.name.family) == other_family {
                continue;
            }
            let (socket, name, rules) = (&mut self.socket, &listed.name, &mut self.rules);
            let undecided = BTreeSet::new();
            let mut walk = Walk { socket, name, rules, flow, undecided, read: 0 };
            let ways = walk.chain(&name.chain)?;
            let is_accepted = ways.accepted || (ways.back && !drops);
            if ways.dropped || (ways.back && drops) {
                let undecided = if is_accepted { walk.undecided } else { BTreeSet::new() };
                let (name, owner) = (listed.name.clone(), listed.owner);
                found.push(ClosedGate { name, hook, priority, owner, undecided });
            }
        }
        Ok(found)
    }
}

/// Reads what makes a chain a gate.
fn gate(read: Attributes<'_>) -> Option<(GateHook, i32, bool)> {
    if read.text(chain::TYPE)? != "filter" {
        return None;
    }
    let hook = read.find_kind(chain::HOOK)?.nested();
    let number = hook.be32(chain::HOOK_NUMBER)?;
    let priority = hook.be32(chain::HOOK_PRIORITY)?.cast_signed();
    let policy = read.be32(chain::POLICY)?;
    Some((GateHook::from_number(number)?, priority, policy != chain::POLICY_ACCEPT))
}

/// The ways that a new connection may leave a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ways {
    accepted: bool,
    dropped: bool,
    /// To the chain that asked this one, or to the policy.
    back: bool,
}

/// A walk over the rules that a base chain leads to.
struct Walk<'a> {
    socket: &'a mut Socket,
    name: &'a ChainPath,
    rules: &'a mut BTreeMap<ChainPath, Vec<Vec<u8>>>,
    flow: Option<&'a NewFlow>,
    /// The subjects of conditions that are not decided.
    undecided: BTreeSet<&'static str>,
    read: usize,
}

impl Walk<'_> {
    /// Follows the rules of a chain.
    fn chain(&mut self, chain: &str) -> Result<Ways, Error> {
        self.read += 1;
        if self.read > MOST_CHAINS {
            self.undecided.insert(MORE_CHAINS);
            return Ok(Ways { accepted: true, dropped: true, back: true });
        }
        let mut ways = Ways::default();
        for (act, undecided) in self.effects(chain)? {
            let mut goes_on = undecided.is_some();
            self.undecided.extend(undecided);
            match act {
                Act::Accept => ways.accepted = true,
                Act::Drop => ways.dropped = true,
                Act::Return => ways.back = true,
                Act::Unknown => (ways.accepted, ways.dropped) = (true, true),
                Act::Ask { chain, comes_back } => {
                    let of = self.chain(&chain)?;
                    ways.accepted |= of.accepted;
                    ways.dropped |= of.dropped;
                    goes_on |= comes_back && of.back;
                    ways.back |= !comes_back && of.back;
                }
            }
            if !goes_on {
                return Ok(ways);
            }
        }
        ways.back = true;
        Ok(ways)
    }

    /// The effects of the rules of a chain, which are read once.
    fn effects(&mut self, chain: &str) -> Result<Vec<Effect>, Error> {
        let name = ChainPath::new(self.name.family, &self.name.table, chain);
        if !self.rules.contains_key(&name) {
            let narrow = |w: &mut Writer| {
                w.string(rule::TABLE, &name.table);
                w.string(rule::CHAIN, chain);
            };
            let family = number_of_family_name(name.family);
            let read = dump(self.socket, message::GET_RULE, family, narrow, |_, read| {
                Some(read.find_kind(rule::EXPRESSIONS)?.payload.to_vec())
            })?;
            self.rules.insert(name.clone(), read);
        }
        let Self { socket, rules, flow, .. } = self;
        let mut failure = None;
        let mut has = |set: &str, keys: &[Vec<u8>]| {
            has_element(socket, &name, set, keys).unwrap_or_else(|error| {
                failure = Some(error);
                None
            })
        };
        let rules = rules.get(&name).into_iter().flatten();
        let effects: Vec<_> =
            rules.filter_map(|rule| effect(Attributes::new(rule), *flow, &mut has)).collect();
        failure.map_or(Ok(effects), Err)
    }
}

/// Whether a set of the chain's table has one of these keys, of which one has the length of its
/// keys; `None` if none has.
fn has_element(
    socket: &mut Socket,
    name: &ChainPath,
    set: &str,
    keys: &[Vec<u8>],
) -> Result<Option<bool>, Error> {
    for key in keys {
        let fill = |w: &mut Writer| {
            w.string(element::TABLE, &name.table);
            w.string(element::SET, set);
            w.nest(element::ELEMENTS, |w| {
                w.nest(LIST_ELEMENT, |w| w.nest(element::KEY, |w| w.attribute(data::VALUE, key)));
            });
        };
        let family = number_of_family_name(name.family);
        match get(socket, message::GET_ELEMENT, family, fill, |_| ()) {
            Ok(found) => return Ok(Some(found.is_some())),
            // Of another length.
            Err(Error::Kernel(error)) if error.errno == libc::EINVAL => {}
            // Of a kind that has no such question.
            Err(Error::Kernel(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::{in_namespace, run, run_with};

    use super::*;

    /// The gates that these rules close, each as one text.
    #[track_caller]
    fn closed(rules: &str) -> Vec<String> {
        run_with("nft -f -", rules);
        let gates = Chains::list().unwrap().closed_gates(|table| table == "ours").unwrap();
        let show = |gate: &ClosedGate| {
            let ChainPath { family, table, chain } = &gate.name;
            format!("{family} {table} {chain} {} {}", gate.hook.as_str(), gate.priority)
        };
        let found = gates.iter().map(show).collect();
        run("nft flush ruleset");
        found
    }

    fn inet(hook: &str, policy: &str, rules: &str) -> String {
        format!(
            "table inet t {{\nset none {{\ntype ipv4_addr\n}}\n\
             set some {{\ntype ipv4_addr\nflags interval\nelements = {{ 10.0.0.0/29 }}\n}}\nchain next {{\ncounter\n}}\nchain end {{\ndrop\n}}\n\
             chain back {{\nmeta mark 1 return\ndrop\n}}\nchain c {{\n\
             type filter hook {hook} priority 5; policy {policy};\n{rules}\n}}\n}}\n"
        )
    }

    #[test]
    fn a_gate_is_closed_if_nothing_new_can_pass() {
        in_namespace(|| {
            const NONE: [&str; 0] = [];
            const CLOSED: [&str; 1] = ["inet t c forward 5"];
            for rules in [
                "",
                "ct state established,related accept",
                "ct state established accept\nct state invalid drop",
                "iifname \"lo\" accept\niif lo accept\noifname lo accept",
                "ip protocol icmp accept\nmeta l4proto ipv6-icmp accept\nicmp type echo-request accept",
                "ct state invalid drop\njump next",
                "ct state { established, related } accept",
                "ct state vmap { established : accept, related : accept, invalid : drop }",
                "counter log reject with icmpx admin-prohibited",
                "tcp dport 22 drop\nlog prefix \"dropped\"",
            ] {
                assert_eq!(closed(&inet("forward", "drop", rules)), CLOSED, "{rules}");
            }
            for rules in [
                "ct status dnat accept",
                "ct state established,related,new accept",
                "ct state established,related accept\niifname \"cni0\" accept",
                "ct state vmap { established : accept, new : accept }",
                "ct state { established, new } accept",
                "ct state != { established, related } accept",
                "tcp dport 443 accept",
                "jump next\ntcp dport vmap { 80 : accept }",
                "meta mark & 0x4000 == 0x4000 accept",
                "ct state != established accept",
                "ct state new meta mark 1 accept",
                "iifname . ct state vmap { \"x\" . established : accept }",
                "iifname != \"lo\" accept",
                "meta l4proto != icmp accept",
            ] {
                assert_eq!(closed(&inet("forward", "drop", rules)), NONE, "{rules}");
            }
            // A policy that accepts, and a last rule that decides.
            let last = "ct state established accept\ncounter drop\naccept";
            assert_eq!(closed(&inet("forward", "accept", last)), CLOSED);
            for rules in [
                "",
                "tcp dport 80 drop",
                "jump back",
                "limit rate 1/second drop",
                "meta mark 1 reject",
                "ip saddr 10.0.0.0/8 return\ndrop",
                "ip saddr 10.0.0.0/8 goto next\ndrop",
            ] {
                assert_eq!(closed(&inet("forward", "accept", rules)), NONE, "{rules}");
            }
            for rules in [
                "ip saddr 10.0.0.0/8 jump next\ndrop",
                "jump next\ndrop",
                "jump end",
                "ct state new drop",
            ] {
                assert_eq!(closed(&inet("forward", "accept", rules)), CLOSED, "{rules}");
            }
            assert_eq!(closed(&inet("output", "drop", "")), ["inet t c output 5"]);
            assert_eq!(closed(&inet("input", "drop", "")), NONE, "no such hook is asked about");
        });
    }

    #[test]
    fn chains_of_iptables_are_read() {
        in_namespace(|| {
            let closed = || Chains::list().unwrap().closed_gates(|_| false).unwrap().len();
            for line in [
                "iptables-nft -P FORWARD DROP",
                "iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "iptables-nft -A FORWARD -p icmp -j ACCEPT",
            ] {
                run(line);
                assert_eq!(closed(), 1, "{line}");
            }
            run("iptables-nft -A FORWARD -m conntrack --ctstate NEW,DNAT -j ACCEPT");
            assert_eq!(closed(), 0);
            run("iptables-nft -F FORWARD");
            run("iptables-nft -A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT");
            assert_eq!(closed(), 0);
        });
    }

    #[test]
    fn conditions_on_a_known_connection_are_decided() {
        in_namespace(|| {
            let flow = |source: Option<&str>, to: &str| NewFlow {
                source: source.map(|source| source.parse().unwrap()),
                destination: to.parse().unwrap(),
                protocol: 6,
                is_translated: true,
            };
            let of_v4 = flow(Some("10.9.0.7"), "10.0.0.5:8080");
            let of_v6 = flow(Some("fd00::9:7"), "[fd00::5]:8080");
            let unknown = flow(None, "10.0.0.5:8080");
            let undecided = |flow: &NewFlow| {
                let gates = Chains::list().unwrap().gates_closed_to(|_| false, Some(flow)).unwrap();
                gates.first().map(|gate| gate.undecided.iter().copied().collect::<Vec<_>>())
            };
            let is_closed = |flow: &NewFlow| undecided(flow) == Some(Vec::new());
            for (rule, expected) in [
                ("ip daddr 10.0.0.5 drop", [true, false, true]),
                ("ip daddr 10.0.0.6 drop", [false; 3]),
                ("ip daddr != 10.0.0.0/12 drop", [false; 3]),
                ("ip daddr 10.0.0.0/12 tcp dport 8000-8090 reject", [true, false, true]),
                ("ip saddr 10.9.0.0/16 drop", [true, false, false]),
                ("ip6 saddr fd00::/16 drop", [false, true, false]),
                ("ip6 daddr fd00::5 tcp dport 8081 drop", [false; 3]),
                ("udp dport 8080 drop", [false; 3]),
                ("ip daddr 10.0.0.5 jump end", [true, false, true]),
                ("ip daddr 10.0.0.5 meta mark 1 drop", [false; 3]),
                ("tcp dport { 80, 8080 } drop", [true; 3]),
                ("tcp dport { 80, 443, 9000-9010 } drop", [false; 3]),
                ("tcp dport { 8000-8079, 8081 } drop", [false; 3]),
                (
                    "tcp dport != { 80, 443 } ip daddr { 10.0.0.0/24, 10.9.0.0/16 } drop",
                    [true, false, true],
                ),
                ("ip daddr . tcp dport { 10.0.0.5 . 8080 } drop", [true, false, true]),
                ("ip daddr . tcp dport { 10.0.0.5 . 80, 10.0.0.6 . 8080 } drop", [false; 3]),
                (
                    "ip saddr . ip daddr . tcp dport { 10.9.0.0/16 . 10.0.0.5 . 8000-8090 } drop",
                    [true, false, false],
                ),
                ("ip6 daddr { fd00::/64 } drop", [false, true, false]),
                ("tcp dport { 8080 } accept\ndrop", [false; 3]),
                ("tcp dport { 80, 443 } accept\ndrop", [true; 3]),
                ("tcp dport vmap { 80 : accept }\ndrop", [true; 3]),
                ("tcp dport vmap { 8080 : accept }\ndrop", [false; 3]),
                ("ip daddr @none drop", [false; 3]),
                ("ip daddr @some drop", [true, false, true]),
                ("ip saddr 10.9.0.7 accept\nip daddr 10.0.0.5 drop", [false, false, false]),
                ("ip saddr 10.9.0.8 accept\nip daddr 10.0.0.5 drop", [true, false, false]),
            ] {
                run_with("nft -f -", &inet("forward", "accept", rule));
                assert_eq!([&of_v4, &of_v6, &unknown].map(is_closed), expected, "{rule}");
                run("nft flush ruleset");
            }
            for (rule, expected) in [
                ("meta mark 1 drop", Some(vec!["marks"])),
                ("ct mark and 4 == 4 jump end", Some(vec!["marks"])),
                ("ip daddr 10.0.0.6 meta mark 1 drop", None),
                ("meta mark 1 return\nct status dnat accept\ndrop", None),
                (
                    "meta mark 1 return\niifname \"cni0\" accept\ndrop",
                    Some(vec!["interfaces", "marks"]),
                ),
                ("meta mark set 1 accept\ndrop", None),
                ("meta mark set 1 drop", Some(vec![])),
                ("limit rate 1/second accept\nmeta mark 1 accept", None),
                ("tcp dport vmap { 8080 : drop }", Some(vec!["sets and maps"])),
                ("ct state vmap { new : drop }", Some(vec!["sets and maps"])),
                ("ct state vmap { invalid : drop }", None),
            ] {
                run_with("nft -f -", &inet("forward", "accept", rule));
                assert_eq!(undecided(&of_v4), expected, "{rule}");
                run("nft flush ruleset");
            }
            for (rule, expected) in [
                ("-p tcp -m multiport --dports 80,8000:8090 -j DROP", true),
                ("-p tcp -m multiport --dports 80,443 -j DROP", false),
                ("-p tcp -m multiport ! --dports 80,443 -j DROP", true),
                ("-p tcp -m multiport --sports 8080 -j DROP", false),
                ("-d 10.0.0.5 -m conntrack --ctstate NEW -j DROP", true),
                ("-d 10.0.0.5 -m conntrack --ctstate DNAT -j DROP", true),
                ("-d 10.0.0.5 -m mark --mark 0x8000/0x8000 -j DROP", false),
                ("-d 10.0.0.5 -j MARK --set-mark 1", false),
                ("-d 10.0.0.5 -m conntrack --ctstate INVALID -j DROP", false),
            ] {
                run(&format!("iptables-nft -A FORWARD {rule}"));
                assert_eq!(is_closed(&of_v4), expected, "{rule}");
                run("iptables-nft -F FORWARD");
            }
            run("iptables-nft -A FORWARD -d 10.0.0.5 -p tcp --dport 8080 -j DROP");
            assert!(is_closed(&of_v4));
            run("iptables-nft -I FORWARD -s 10.9.0.0/24 -j ACCEPT");
            assert!(!is_closed(&of_v4) && !is_closed(&of_v6));
        });
    }

    #[test]
    fn tables_that_do_nothing_do_not_count() {
        in_namespace(|| {
            let rules = inet("forward", "drop", "");
            assert_eq!(closed(&rules.replace("inet t {", "inet t {\nflags dormant;\n")).len(), 0);
            assert_eq!(closed(&rules.replace("inet t", "inet ours")).len(), 0);
            assert_eq!(closed(&rules.replace("table inet", "table ip")), ["ip t c forward 5"]);
        });
    }
}
