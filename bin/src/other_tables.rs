//! Tables of other programs that drop the connections of Services.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::PathBuf,
};

use switchyard_core::{
    error::ErrorChain,
    explain::{ChainClients, ClosedChain},
    model::IpFamily,
    proxier::Mode,
};
use switchyard_kernel::{
    netlink::Error,
    nftables::gates::{ChainPath, Chains, ClosedGate, GateHook, NewFlow},
};
use switchyard_nft::OF_NAMED_PROXY;

use crate::pace::Pace;

/// The names of programs, by what the names of all their tables or chains begin with.
const PROGRAMS: [(&str, &str); 4] =
    [("firewalld", "firewalld"), ("ufw-", "ufw"), ("ufw6-", "ufw"), ("DOCKER", "docker")];

/// The number of netfilter's sockets (`NETLINK_NETFILTER`).
const NETFILTER: u32 = 12;

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
    pub fn closed(&self, flows: &[NewFlow]) -> Option<(Vec<ClosedChain>, Vec<String>)> {
        let read = self.pace.run(|| closed(self.mode, flows))?;
        let log = |error: &Error| tracing::debug!(err = %ErrorChain(error), "Failed to read the tables of others");
        read.inspect_err(log).ok()
    }
}

/// Returns the tables of iptables-legacy that have rules, those of the proxy among them, as far as
/// this process may know.
pub fn unread() -> Vec<String> {
    let program = |family| match family {
        IpFamily::V4 => "iptables-legacy",
        IpFamily::V6 => "ip6tables-legacy",
    };
    let tables = switchyard_iptables::legacy_tables().into_iter();
    tables.map(|(family, table)| format!("{} {table}", program(family))).collect()
}

/// Returns the chains of other programs that let no new connection pass to an endpoint, or none of
/// these, on a node in this mode; and those that may drop one of these, with what is not decided.
/// Rules of iptables-legacy are not read.
///
/// # Errors
/// If the kernel refuses, as without CAP_NET_ADMIN, or does not answer.
pub fn closed(mode: Mode, flows: &[NewFlow]) -> Result<(Vec<ClosedChain>, Vec<String>), Error> {
    let is_a_proxys = |table: &str| table == "kube-proxy" || table.starts_with(OF_NAMED_PROXY);
    let mut chains = Chains::list()?;
    let gates = chains.closed_gates(is_a_proxys)?;
    // In these modes, the node itself opens or sends connections to endpoints.
    let is_forwarding = !matches!(mode, Mode::IPVS | Mode::USERSPACE);
    let concerns = |gate: &&ClosedGate| {
        (is_forwarding || gate.hook == GateHook::Output)
            && (gate.name.family != "ip6" || has_ipv6(gate.hook))
    };
    let found = gates.iter().filter(concerns);
    let mut found: Vec<_> = found.map(|gate| closed_chain(gate, &chains, is_forwarding)).collect();
    let mut of_some: Vec<(ClosedGate, Vec<SocketAddr>)> = Vec::new();
    let mut undecided = BTreeMap::<ChainPath, BTreeSet<&str>>::new();
    for flow in flows {
        // Where the node itself sends, it chooses the source.
        let source = flow.source.filter(|_| is_forwarding);
        let flow = NewFlow { source, is_translated: is_forwarding, ..*flow };
        let closed = chains.gates_closed_to(is_a_proxys, Some(&flow))?.into_iter();
        for gate in closed.filter(|gate| !gates.contains(gate) && concerns(&gate)) {
            if !gate.undecided.is_empty() {
                undecided.entry(gate.name).or_default().extend(gate.undecided);
                continue;
            }
            match of_some.iter_mut().find(|(one, _)| *one == gate) {
                Some((_, to)) => to.push(flow.destination),
                None => of_some.push((gate, vec![flow.destination])),
            }
        }
    }
    found.extend(of_some.into_iter().map(|(gate, to)| ClosedChain {
        only: Some(to),
        ..closed_chain(&gate, &chains, is_forwarding)
    }));
    let named = |(ChainPath { family, table, chain, .. }, of): (ChainPath, BTreeSet<&str>)| {
        let subjects = of.into_iter().collect::<Vec<_>>().join(" and ");
        format!("{subjects} in table {family} {table}, chain {chain}")
    };
    Ok((found, undecided.into_iter().map(named).collect()))
}

/// Whether packets of IPv6 come to a hook: a node without IPv6 may close it.
fn has_ipv6(hook: GateHook) -> bool {
    match hook {
        GateHook::Forward => fs::read_to_string("/proc/sys/net/ipv6/conf/all/forwarding")
            .is_ok_and(|setting| setting.trim() != "0"),
        // The fourth column is the scope, 00 of global addresses (if_inet6 in proc(5)).
        GateHook::Output => fs::read_to_string("/proc/self/net/if_inet6").is_ok_and(|addresses| {
            addresses.lines().any(|line| line.split_whitespace().nth(3) == Some("00"))
        }),
    }
}

fn closed_chain(gate: &ClosedGate, chains: &Chains, is_forwarding: bool) -> ClosedChain {
    let ChainPath { family, table, chain, .. } = &gate.name;
    let clients = match (gate.hook, is_forwarding) {
        (GateHook::Forward, _) => ChainClients::ExceptNode,
        (GateHook::Output, true) => ChainClients::Node,
        (GateHook::Output, false) => ChainClients::ByNode,
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
        only: None,
        program,
        remedy,
    }
}

/// The name of the process that has the netlink socket of this port. By default, a port is the id
/// that the process has in its own PID namespace, where another process may have it here: so the
/// process must be seen to have the socket.
fn process(port: u32) -> Option<String> {
    let sockets = fs::read_to_string("/proc/thread-self/net/netlink").ok()?;
    let inode = sockets.lines().find_map(|line| inode(line, port))?;
    let socket = format!("socket:[{inode}]");
    let open = fs::read_dir(format!("/proc/{port}/fd")).ok()?;
    let has = |to: PathBuf| to.as_os_str() == &*socket;
    open.flatten().find(|file| fs::read_link(file.path()).is_ok_and(has))?;
    let name = fs::read_to_string(format!("/proc/{port}/comm")).ok()?;
    Some(name.trim_end().to_owned())
}

/// The inode of a line of `/proc/net/netlink`, if it is that of the socket of netfilter with this
/// port. The columns are the address, protocol and port, seven others, and the inode.
fn inode(line: &str, port: u32) -> Option<&str> {
    let [_, protocol, of, .., inode] = *line.split_whitespace().collect::<Vec<_>>() else {
        return None;
    };
    let is_it = protocol.parse() == Ok(NETFILTER) && of.parse() == Ok(port);
    is_it.then_some(inode)
}

/// The program that chains of the table are named after.
fn program(gate: &ChainPath, chains: &Chains) -> Option<String> {
    let beside =
        chains.names().filter(|name| (name.family, &name.table) == (gate.family, &gate.table));
    let mut names = std::iter::once(&gate.table).chain(beside.map(|name| &name.chain));
    let of = |name: &String| PROGRAMS.into_iter().find(|(begin, _)| name.starts_with(begin));
    names.find_map(of).map(|(_, program)| program.to_owned())
}

/// The program whose chain this is, if it is one of those that iptables has.
fn iptables(ChainPath { family, table, chain, .. }: &ChainPath) -> Option<&'static str> {
    let command = match *family {
        "ip" => "iptables",
        "ip6" => "ip6tables",
        _ => return None,
    };
    (table == "filter" && ["FORWARD", "OUTPUT"].contains(&&**chain)).then_some(command)
}

#[cfg(test)]
mod kernel_tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use switchyard_kernel::nftables::gates::Chains;
    use test_netns::{in_namespace, wait};

    use super::*;

    #[test]
    fn the_owner_of_a_table_is_the_process_that_has_its_socket() {
        in_namespace(|| {
            let mut nft = Command::new("nft")
                .arg("-i")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut input = nft.stdin.take().unwrap();
            writeln!(input, "add table inet t {{ flags owner; }}").unwrap();
            writeln!(
                input,
                "add chain inet t c {{ type filter hook forward priority 0; policy drop; }}"
            )
            .unwrap();
            let owner = || {
                let gates = Chains::list().unwrap().closed_gates(|_| false).unwrap();
                gates.first().and_then(|gate| gate.owner)
            };
            wait::until("the table is there", || owner().is_some());
            assert_eq!(owner(), Some(nft.id()));
            assert_eq!(process(nft.id()).as_deref(), Some("nft"));
            // Those that have the same port elsewhere, such as in a container.
            assert_eq!([1, std::process::id()].map(process), [None, None]);
            drop(input);
            nft.wait().unwrap();
        });
    }
}
