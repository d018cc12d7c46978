//! Tables of other programs that drop the connections of Services.

use std::fs;

use switchyard_core::{model::Code, proxier::Mode};
use switchyard_netlink::nftables::{ChainName, Chains, ClosedGate, Hook};

use super::{
    Known, needs_privilege, not_readable,
    report::{Finding, Level, Outcome},
};
use crate::config::settings::OF_NAMED_PROXY;

/// Finds base chains that let no new connection pass.
pub(super) fn closed(known: &Known) -> Outcome {
    if !known.is_privileged {
        return needs_privilege();
    }
    let is_a_proxys = |table: &str| table == "kube-proxy" || table.starts_with(OF_NAMED_PROXY);
    let gates = Chains::list().and_then(|mut chains| chains.closed_gates(is_a_proxys));
    let gates = match gates {
        Ok(gates) => gates,
        Err(error) => return not_readable(&error),
    };
    // In these modes, the node itself opens or sends connections to endpoints.
    let is_forwarding = !matches!(known.likely_mode(), Mode::IPVS | Mode::USERSPACE);
    let is_used = |gate: &ClosedGate| gate.name.family != "ip6" || has_ipv6(gate.hook);
    let concerns =
        |gate: &ClosedGate| (is_forwarding || gate.hook == Hook::Output) && is_used(gate);
    Outcome::Made(gates.into_iter().filter(concerns).map(finding).collect())
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

fn finding(ClosedGate { name, hook, priority, .. }: ClosedGate) -> Finding {
    let ChainName { family, table, chain, .. } = name;
    let (whose, way) = match hook {
        Hook::Forward => ("of pods and other hosts", "forwarded"),
        Hook::Output => ("of this node", "sent"),
    };
    Finding {
        code: Code::new("SWY0301"),
        level: Level::Error,
        finding: format!(
            "The table {family} {table} drops new connections {whose}, those to Services among them"
        ),
        because: format!(
            "the chain {chain} (hook {}, priority {priority}) drops what no rule accepts, and no rule accepts \
             a new connection that is {way}",
            hook.as_str()
        ),
        remedy: format!("nft insert rule {family} {table} {chain} ct status dnat accept"),
    }
}
