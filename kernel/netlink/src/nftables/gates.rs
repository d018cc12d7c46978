//! Base chains that let no new connection pass.
//!
//! The question is asked of other programs' rules, of which not every expression is known here. So
//! a chain is found only if it drops what no rule decides about, and each rule that accepts can be
//! seen to accept nothing new: only packets of known connections, of ICMP, or of the loopback
//! interface. Any other rule that may accept counts as one that does.

use std::collections::BTreeSet;

use super::abi::{chain, data, expression, message, rule, table};
use crate::{Attributes, Error, Message, Socket, Writer, nfnetlink};

/// The most chains that are read to decide about a base chain. One that leads to more counts as one
/// that accepts.
const MOST_CHAINS: usize = 256;

/// A hook that packets of connections to Services pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `forward`: packets of pods and other hosts.
    Forward,
    /// `output`: packets of this node.
    Output,
}

impl Hook {
    fn from_number(number: u32) -> Option<Self> {
        match number {
            2 => Some(Self::Forward),
            3 => Some(Self::Output),
            _ => None,
        }
    }

    /// The name that nft has for the hook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Output => "output",
        }
    }
}

/// A chain of nf_tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct ChainName {
    /// The family, by the name that nft has for it.
    pub family: &'static str,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
}

/// A base chain that lets no new connection pass.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClosedGate {
    /// The chain.
    pub name: ChainName,
    /// The hook of the chain.
    pub hook: Hook,
    /// The priority of the chain.
    pub priority: i32,
}

struct ListedChain {
    name: ChainName,
    /// Hook, priority and whether the policy drops, of a base chain of the type `filter`.
    gate: Option<(Hook, i32, bool)>,
}

/// The chains of nf_tables in a network namespace.
pub struct Chains {
    socket: Socket,
    chains: Vec<ListedChain>,
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
            return Ok(Self { socket, chains: Vec::new() });
        }
        let dormant: BTreeSet<(u8, String)> = dump(
            &mut socket,
            message::GET_TABLE,
            0,
            |_| {},
            |family, read| {
                let flags = read.find_kind(table::FLAGS)?.be32()?;
                let name = text(read, table::NAME)?.to_owned();
                (flags & table::FLAG_DORMANT != 0).then_some((family, name))
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
                let table = text(read, chain::TABLE)?.to_owned();
                let chain = text(read, chain::NAME)?.to_owned();
                if dormant.contains(&(family, table.clone())) {
                    return None;
                }
                let name = ChainName { family: family_name(family)?, table, chain };
                Some(ListedChain { name, gate: gate(read) })
            },
        )?;
        Ok(Self { socket, chains })
    }

    /// The names of all chains.
    pub fn names(&self) -> impl Iterator<Item = &ChainName> {
        self.chains.iter().map(|chain| &chain.name)
    }

    /// Returns the base chains that let no new connection pass, but for those of these tables.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn closed_gates(&mut self, but: impl Fn(&str) -> bool) -> Result<Vec<ClosedGate>, Error> {
        let mut found = Vec::new();
        for listed in &self.chains {
            let Some((hook, priority, drops)) = listed.gate else { continue };
            if but(&listed.name.table) {
                continue;
            }
            let mut walk = Walk { socket: &mut self.socket, name: &listed.name, read: 0 };
            let passes = match walk.chain(&listed.name.chain)? {
                Passage::Open => true,
                Passage::Ends => false,
                Passage::Undecided => !drops,
            };
            if !passes {
                found.push(ClosedGate { name: listed.name.clone(), hook, priority });
            }
        }
        Ok(found)
    }
}

/// The name that nft has for a family with the hooks of IP.
fn family_name(number: u8) -> Option<&'static str> {
    match i32::from(number) {
        libc::NFPROTO_INET => Some("inet"),
        libc::NFPROTO_IPV4 => Some("ip"),
        libc::NFPROTO_IPV6 => Some("ip6"),
        _ => None,
    }
}

fn family_number(name: &str) -> u8 {
    match name {
        "ip" => libc::NFPROTO_IPV4 as u8,
        "ip6" => libc::NFPROTO_IPV6 as u8,
        _ => libc::NFPROTO_INET as u8,
    }
}

/// Reads what makes a chain a gate.
fn gate(read: Attributes<'_>) -> Option<(Hook, i32, bool)> {
    if text(read, chain::TYPE)? != "filter" {
        return None;
    }
    let hook = read.find_kind(chain::HOOK)?.nested();
    let number = hook.find_kind(chain::HOOK_NUMBER)?.be32()?;
    let priority = hook.find_kind(chain::HOOK_PRIORITY)?.be32()?.cast_signed();
    let policy = read.find_kind(chain::POLICY)?.be32()?;
    Some((Hook::from_number(number)?, priority, policy != chain::POLICY_ACCEPT))
}

/// The way of a new connection through a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    /// A rule may accept it.
    Open,
    /// A rule drops it.
    Ends,
    /// No rule decides.
    Undecided,
}

/// A walk over the rules that a base chain leads to.
struct Walk<'a> {
    socket: &'a mut Socket,
    name: &'a ChainName,
    read: usize,
}

/// The effect of a rule on a new connection, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// None, or none that decides.
    None,
    MayAccept,
    /// A chain is asked.
    Asks(String),
    /// Each packet is dropped.
    Drops,
}

impl Walk<'_> {
    fn chain(&mut self, chain: &str) -> Result<Passage, Error> {
        self.read += 1;
        if self.read > MOST_CHAINS {
            return Ok(Passage::Open);
        }
        let narrow = |w: &mut Writer| {
            w.string(rule::TABLE, &self.name.table);
            w.string(rule::CHAIN, chain);
        };
        let family = family_number(self.name.family);
        let effects = dump(self.socket, message::GET_RULE, family, narrow, |_, read| {
            Some(effect(read.find_kind(rule::EXPRESSIONS)?.nested()))
        })?;
        for effect in effects {
            match effect {
                Effect::None => {}
                Effect::MayAccept => return Ok(Passage::Open),
                Effect::Drops => return Ok(Passage::Ends),
                // A condition of the jump is not looked at, so that a drop there decides nothing.
                Effect::Asks(next) => {
                    if self.chain(&next)? == Passage::Open {
                        return Ok(Passage::Open);
                    }
                }
            }
        }
        Ok(Passage::Undecided)
    }
}

/// Returns the effect of a rule with these expressions.
fn effect(expressions: Attributes<'_>) -> Effect {
    let mut conditions = Conditions::default();
    for each in expressions {
        let read = each.nested();
        let Some(name) = text(read, expression::NAME) else { return Effect::MayAccept };
        let parts = read.find_kind(expression::DATA).map(|data| data.nested());
        let parts = parts.unwrap_or_else(|| Attributes::new(&[]));
        if conditions.exclude_new(name, parts) {
            return Effect::None;
        }
        match name {
            "immediate" => match verdict(parts) {
                Some((data::ACCEPT, _)) => return Effect::MayAccept,
                Some((data::DROP, _)) if conditions.is_always => return Effect::Drops,
                Some((data::JUMP | data::GOTO, Some(chain))) => return Effect::Asks(chain),
                Some((data::DROP | data::RETURN, _)) | None => {}
                Some(_) => return Effect::MayAccept,
            },
            "reject" if conditions.is_always => return Effect::Drops,
            "reject" | "counter" | "log" | "notrack" => {}
            // A verdict map, or a verdict of another program.
            "lookup" if number(parts, expression::LOOKUP_DREG) == Some(0) => {
                return Effect::MayAccept;
            }
            "queue" | "synproxy" | "tproxy" | "objref" => return Effect::MayAccept,
            "target" => match text(parts, expression::TARGET_NAME) {
                Some("REJECT") if conditions.is_always => return Effect::Drops,
                Some("REJECT" | "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => {}
                _ => return Effect::MayAccept,
            },
            _ => conditions.is_always = false,
        }
    }
    Effect::None
}

/// The verdict of an `immediate` expression, and the chain that it leads to.
fn verdict(parts: Attributes<'_>) -> Option<(i32, Option<String>)> {
    let data = parts.find_kind(expression::IMMEDIATE_DATA)?.nested();
    let verdict = data.find_kind(data::VERDICT)?.nested();
    let code = verdict.find_kind(data::VERDICT_CODE)?.be32()?.cast_signed();
    Some((code, text(verdict, data::VERDICT_CHAIN).map(str::to_owned)))
}

/// The part of a packet that a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    /// The bits of the connection's state that are in this mask.
    State(u32),
    Interface,
    InterfaceIndex,
    Protocol,
}

/// The conditions of a rule, up to an expression.
struct Conditions {
    /// Whether there is none.
    is_always: bool,
    loaded: Option<(u32, Loaded)>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { is_always: true, loaded: None }
    }
}

impl Conditions {
    /// Follows an expression. Returns whether it rules new connections out.
    fn exclude_new(&mut self, name: &str, parts: Attributes<'_>) -> bool {
        let get = |kind| number(parts, kind);
        match name {
            "ct" if get(expression::CT_KEY) == Some(expression::CT_STATE) => {
                self.load(get(expression::CT_DREG), Loaded::State(u32::MAX));
            }
            "meta" => {
                let loaded = match get(expression::META_KEY) {
                    Some(expression::META_IIFNAME | expression::META_OIFNAME) => Loaded::Interface,
                    Some(expression::META_IIF | expression::META_OIF) => Loaded::InterfaceIndex,
                    Some(expression::META_L4PROTO) => Loaded::Protocol,
                    _ => return false,
                };
                self.load(get(expression::META_DREG), loaded);
            }
            "payload" => {
                let is_protocol = get(expression::PAYLOAD_BASE) == Some(expression::BASE_NETWORK)
                    && get(expression::PAYLOAD_OFFSET) == Some(expression::IPV4_PROTOCOL)
                    && get(expression::PAYLOAD_LEN) == Some(1);
                self.loaded = None;
                if is_protocol {
                    self.load(get(expression::PAYLOAD_DREG), Loaded::Protocol);
                }
            }
            "bitwise" => {
                let mask = value(parts, expression::BITWISE_MASK).and_then(host_number);
                let source = get(expression::BITWISE_SREG);
                let state = self.loaded.filter(|(register, _)| Some(*register) == source);
                self.loaded = None;
                if let (Some((_, Loaded::State(all))), Some(mask)) = (state, mask) {
                    self.load(get(expression::BITWISE_DREG), Loaded::State(all & mask));
                }
            }
            "cmp" => return self.compare(parts),
            "match" if text(parts, expression::MATCH_NAME) == Some("conntrack") => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let revision = get(expression::MATCH_REV);
                return revision == Some(3) && info.is_some_and(conntrack_excludes_new);
            }
            _ => {}
        }
        false
    }

    fn load(&mut self, register: Option<u32>, loaded: Loaded) {
        self.loaded = register.map(|register| (register, loaded));
    }

    fn compare(&self, parts: Attributes<'_>) -> bool {
        let source = number(parts, expression::CMP_SREG);
        let Some((_, loaded)) = self.loaded.filter(|(register, _)| Some(*register) == source)
        else {
            return false;
        };
        let is_equal = match number(parts, expression::CMP_OP) {
            Some(expression::CMP_EQ) => true,
            Some(expression::CMP_NEQ) => false,
            _ => return false,
        };
        let Some(with) = value(parts, expression::CMP_DATA) else { return false };
        match loaded {
            Loaded::State(mask) => host_number(with)
                .is_some_and(|state| (mask & expression::CT_STATE_NEW == state) != is_equal),
            Loaded::Interface => is_equal && with.starts_with(b"lo\0"),
            Loaded::InterfaceIndex => is_equal && host_number(with) == Some(LOOPBACK),
            Loaded::Protocol => is_equal && matches!(with, [ICMP | ICMPV6]),
        }
    }
}

/// The index of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;

/// Whether the match `conntrack` of xtables rules new connections out, by its description (`struct
/// xt_conntrack_mtinfo3`).
fn conntrack_excludes_new(info: &[u8]) -> bool {
    // After eight addresses, two times and five numbers of 16 bits.
    const FLAGS: usize = 8 * 16 + 8 + 10;
    const INVERTED: usize = FLAGS + 2;
    const STATES: usize = FLAGS + 4;
    /// `XT_CONNTRACK_STATE`
    const STATE: u16 = 1;
    /// `XT_CONNTRACK_STATE_BIT(IP_CT_NEW)`, and `XT_CONNTRACK_STATE_SNAT` and `_DNAT`, which a new
    /// connection may have.
    const NEW: u16 = 1 << 3 | 1 << 6 | 1 << 7;
    let get = |at: usize| {
        let bytes = info.get(at..at + 2)?;
        Some(u16::from_ne_bytes(bytes.try_into().ok()?))
    };
    let Some(((flags, inverted), states)) = get(FLAGS).zip(get(INVERTED)).zip(get(STATES)) else {
        return false;
    };
    flags & STATE != 0 && inverted & STATE == 0 && states & NEW == 0
}

fn host_number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn number(parts: Attributes<'_>, kind: u16) -> Option<u32> {
    parts.find_kind(kind)?.be32()
}

fn value<'a>(parts: Attributes<'a>, kind: u16) -> Option<&'a [u8]> {
    Some(parts.find_kind(kind)?.nested().find_kind(data::VALUE)?.payload)
}

fn text<'a>(attributes: Attributes<'a>, kind: u16) -> Option<&'a str> {
    attributes.find_kind(kind)?.str()
}

/// Asks for the objects of a kind. `read` gets the family and the attributes of each.
fn dump<T>(
    socket: &mut Socket,
    kind: u8,
    family: u8,
    narrow: impl Fn(&mut Writer),
    read: impl Fn(u8, Attributes<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    socket.dump(
        |sequence| {
            let mut writer = Writer::new();
            let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
            nfnetlink::dump(&mut writer, kind, sequence, family, &narrow);
            writer.as_slice().to_vec()
        },
        |all: &mut Vec<T>, message: Message<'_>| {
            let family = message.payload.first().copied().unwrap_or_default();
            all.extend(read(family, message.attributes(nfnetlink::HEADER)));
            Ok(())
        },
    )
}

#[cfg(test)]
mod tests {
    use test_netns::{in_namespace, run, run_with};

    use super::*;

    /// The gates that these rules close, each as one text.
    #[track_caller]
    fn closed(rules: &str) -> Vec<String> {
        run_with("nft -f -", rules);
        let gates = Chains::list().unwrap().closed_gates(|table| table == "ours").unwrap();
        let show = |gate: &ClosedGate| {
            let ChainName { family, table, chain } = &gate.name;
            format!("{family} {table} {chain} {} {}", gate.hook.as_str(), gate.priority)
        };
        let found = gates.iter().map(show).collect();
        run("nft flush ruleset");
        found
    }

    fn inet(hook: &str, policy: &str, rules: &str) -> String {
        format!(
            "table inet t {{\nchain next {{\ncounter\n}}\nchain c {{\n\
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
                "counter log reject with icmpx admin-prohibited",
                "tcp dport 22 drop\nlog prefix \"dropped\"",
            ] {
                assert_eq!(closed(&inet("forward", "drop", rules)), CLOSED, "{rules}");
            }
            for rules in [
                "ct status dnat accept",
                "ct state established,related,new accept",
                "ct state established,related accept\niifname \"cni0\" accept",
                "ct state vmap { established : accept, related : accept }",
                "tcp dport 443 accept",
                "jump next\ntcp dport vmap { 80 : accept }",
                "meta mark & 0x4000 == 0x4000 accept",
                "ct state != established accept",
                "iifname != \"lo\" accept",
                "meta l4proto != icmp accept",
            ] {
                assert_eq!(closed(&inet("forward", "drop", rules)), NONE, "{rules}");
            }
            // A policy that accepts, and a last rule that decides.
            let last = "ct state established accept\ncounter drop\naccept";
            assert_eq!(closed(&inet("forward", "accept", last)), CLOSED);
            for rules in ["", "tcp dport 80 drop", "limit rate 1/second drop", "meta mark 1 reject"]
            {
                assert_eq!(closed(&inet("forward", "accept", rules)), NONE, "{rules}");
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
    fn tables_that_do_nothing_do_not_count() {
        in_namespace(|| {
            let rules = inet("forward", "drop", "");
            assert_eq!(closed(&rules.replace("inet t {", "inet t {\nflags dormant;\n")).len(), 0);
            assert_eq!(closed(&rules.replace("inet t", "inet ours")).len(), 0);
            assert_eq!(closed(&rules.replace("table inet", "table ip")), ["ip t c forward 5"]);
        });
    }
}
