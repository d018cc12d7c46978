//! Tables of other programs that drop the connections of Services.

use switchyard_core::{model::Code, proxier::Mode};
use switchyard_netlink::nftables::{ChainName, Chains, ClosedGate, Hook};

use super::{
    Known, needs_privilege, not_readable,
    report::{Finding, Level, Outcome},
};

/// Finds base chains that let no new connection pass.
pub(super) fn closed(known: &Known) -> Outcome {
    if !known.is_privileged {
        return needs_privilege();
    }
    let is_a_proxys = |table: &str| table == "kube-proxy" || table.starts_with("service-proxy-");
    let gates = Chains::list().and_then(|mut chains| chains.closed_gates(is_a_proxys));
    let gates = match gates {
        Ok(gates) => gates,
        Err(error) => return not_readable(&error),
    };
    // In these modes, the node itself opens or sends connections to endpoints.
    let is_forwarding = !matches!(known.likely_mode(), Mode::IPVS | Mode::USERSPACE);
    let concerns = |gate: &ClosedGate| is_forwarding || gate.hook == Hook::Output;
    Outcome::Made(gates.into_iter().filter(concerns).map(finding).collect())
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
