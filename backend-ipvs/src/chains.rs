//! The chains of ipvs mode, and the jumps to them, under kube-proxy's names.

use switchyard_xtables::{Jump, OwnedChains, RuleText, Table};

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const FORWARD: &str = "KUBE-FORWARD";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const FILTER: &str = "KUBE-IPVS-FILTER";
const OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// The chains that iptables mode has, too, under the same names.
pub(crate) const SHARED_WITH_IPTABLES: [(Table, &str); 5] = [
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, MARK_MASQ),
    (Table::Filter, FORWARD),
    (Table::Filter, PROXY_FIREWALL),
];

/// The chains that only ipvs mode has.
const OWN: [(Table, &str); 6] = [
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, NODE_PORT),
    (Table::Filter, NODE_PORT),
    (Table::Filter, SOURCE_RANGES),
    (Table::Filter, FILTER),
    (Table::Filter, OUT_FILTER),
];

/// Returns all chains of ipvs mode, and the jumps to them.
pub(crate) fn owned() -> OwnedChains {
    OwnedChains {
        names: [&SHARED_WITH_IPTABLES[..], &OWN].concat(),
        prefixes: Vec::new(),
        jumps: jumps(),
    }
}

fn jumps() -> Vec<Jump> {
    let portals = "kubernetes service portals";
    let firewall = "kube-proxy firewall rules";
    let access = "kubernetes ipvs access filter";
    [
        (Table::Nat, "OUTPUT", SERVICES, portals),
        (Table::Nat, "PREROUTING", SERVICES, portals),
        (Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        (Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        (Table::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        (Table::Filter, "INPUT", PROXY_FIREWALL, firewall),
        (Table::Filter, "FORWARD", PROXY_FIREWALL, firewall),
        (Table::Filter, "INPUT", FILTER, access),
        (Table::Filter, "OUTPUT", OUT_FILTER, access),
    ]
    .map(|(table, from, to, comment)| Jump {
        table,
        from,
        to,
        rule: RuleText::new().comment(comment).jump(to),
    })
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_to_an_owned_chain() {
        let all = owned();
        assert!(all.jumps.iter().all(|jump| all.contains(jump.table, jump.to)));
        let own = all.without(&SHARED_WITH_IPTABLES);
        assert_eq!(own.names, OWN);
        let from: Vec<_> = own.jumps.iter().map(|jump| (jump.from, jump.to)).collect();
        assert_eq!(from, [("INPUT", NODE_PORT), ("INPUT", FILTER), ("OUTPUT", OUT_FILTER)]);
    }
}
