//! Tables of other programs that drop the connections of Services.

use std::fs;

use switchyard_core::{
    error::ErrorChain,
    explain::{ChainClients, ClosedChain},
    model::IpFamily,
    proxier::Mode,
};
use switchyard_netlink::{
    Error,
    nftables::{ChainName, Chains, ClosedGate, Hook},
};

use crate::{config::settings::OF_NAMED_PROXY, pace::Pace};

/// The names of programs, by what the names of all their tables or chains begin with.
const PROGRAMS: [(&str, &str); 4] =
    [("firewalld", "firewalld"), ("ufw-", "ufw"), ("ufw6-", "ufw"), ("DOCKER", "docker")];

/// Reads the tables of other programs for those who ask about a Service.
#[derive(Debug)]
pub struct OtherTables {
    mode: Mode,
    pace: Pace,
}

impl OtherTables {
    /// Returns a reader for a node that is in this mode.
    pub fn new(mode: Mode) -> Self {
        Self { mode, pace: Pace::default() }
    }

    /// Returns what [`closed`] does; `None` if the tables cannot be read, or that took long and was
    /// a moment ago.
    pub fn closed(&self) -> Option<Vec<ClosedChain>> {
        let read = self.pace.run(|| closed(self.mode))?;
        let log = |error: &Error| tracing::debug!(err = %ErrorChain(error), "Failed to read the tables of others");
        read.inspect_err(log).ok()
    }
}

/// Returns the chains of other programs that let no new connection pass to an endpoint, on a node
/// in this mode. Rules of iptables-legacy are not read.
///
/// # Errors
/// If the kernel refuses, as without CAP_NET_ADMIN, or does not answer.
pub fn closed(mode: Mode) -> Result<Vec<ClosedChain>, Error> {
    let is_a_proxys = |table: &str| table == "kube-proxy" || table.starts_with(OF_NAMED_PROXY);
    let mut chains = Chains::list()?;
    let gates = chains.closed_gates(is_a_proxys)?;
    // In these modes, the node itself opens or sends connections to endpoints.
    let is_forwarding = !matches!(mode, Mode::IPVS | Mode::USERSPACE);
    let concerns = |gate: &&ClosedGate| {
        (is_forwarding || gate.hook == Hook::Output)
            && (gate.name.family != "ip6" || has_ipv6(gate.hook))
    };
    let found = gates.iter().filter(concerns);
    Ok(found.map(|gate| closed_chain(gate, &chains, is_forwarding)).collect())
}

/// Whether packets of IPv6 come to a hook: a node without IPv6 may close it.
fn has_ipv6(hook: Hook) -> bool {
    match hook {
        Hook::Forward => fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding")
            .is_ok_and(|setting| setting.trim() != "0"),
        // The fourth column is the scope, 00 of global addresses (if_inet6 in proc(5)).
        Hook::Output => fs::read_to_string("/proc/self/net/if_inet6").is_ok_and(|addresses| {
            addresses.lines().any(|line| line.split_whitespace().nth(3) == Some("00"))
        }),
    }
}

fn closed_chain(gate: &ClosedGate, chains: &Chains, is_forwarding: bool) -> ClosedChain {
    let ChainName { family, table, chain, .. } = &gate.name;
    let clients = match (gate.hook, is_forwarding) {
        (Hook::Forward, _) => ChainClients::ExceptNode,
        (Hook::Output, true) => ChainClients::Node,
        (Hook::Output, false) => ChainClients::ByNode,
    };
    let program = gate.owner.and_then(process).or_else(|| program(&gate.name, chains));
    let remedy = match (clients, gate.owner, iptables(&gate.name)) {
        (ChainClients::ByNode, ..) => {
            format!(
                "accept connections of this node to pods in the chain {chain} of {family} {table}"
            )
        }
        // Nobody else can add the rule.
        (_, Some(_), _) => {
            format!(
                "have the program that owns {family} {table} add to {chain}: ct status dnat accept"
            )
        }
        (_, None, Some(command)) => {
            format!("{command} -I {chain} -m conntrack --ctstate DNAT -j ACCEPT")
        }
        (_, None, None) => {
            format!("nft insert rule {family} {table} {chain} ct status dnat accept")
        }
    };
    ClosedChain {
        table: format!("{family} {table}"),
        chain: chain.clone(),
        hook: gate.hook.as_str(),
        priority: gate.priority,
        family: match *family {
            "ip" => Some(IpFamily::V4),
            "ip6" => Some(IpFamily::V6),
            _ => None,
        },
        clients,
        program,
        remedy,
    }
}

/// The name of a process of this network namespace.
fn process(id: u32) -> Option<String> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let here = namespace("self")?;
    namespace(&id.to_string()).filter(|there| *there == here)?;
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The program that chains of the table are named after.
fn program(gate: &ChainName, chains: &Chains) -> Option<String> {
    let beside =
        chains.names().filter(|name| (name.family, &name.table) == (gate.family, &gate.table));
    let mut names = std::iter::once(&gate.table).chain(beside.map(|name| &name.chain));
    let of = |name: &String| PROGRAMS.into_iter().find(|(begin, _)| name.starts_with(begin));
    names.find_map(of).map(|(_, program)| program.to_owned())
}

/// The program whose chain this is, if it is one of those that iptables has.
fn iptables(ChainName { family, table, chain, .. }: &ChainName) -> Option<&'static str> {
    let command = match *family {
        "ip" => "iptables",
        "ip6" => "ip6tables",
        _ => return None,
    };
    (table == "filter" && ["FORWARD", "OUTPUT"].contains(&&**chain)).then_some(command)
}
