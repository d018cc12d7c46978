//! The chains, and the jumps to them.

use super::super::{
    Result,
    host::{Host, jump},
};

/// The chains that iptables mode does not have.
pub const ONLY_IPVS: [&str; 5] = [
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

const PORTALS: &str = "kubernetes service portals";
const FIREWALL: &str = "kube-proxy firewall rules";
const ACCESS: &str = "kubernetes ipvs access filter";

/// Table, from, to, comment; in the order in which they are prepended.
const JUMPS: [(&str, &str, &str, &str); 9] = [
    ("nat", "OUTPUT", "KUBE-SERVICES", PORTALS),
    ("nat", "PREROUTING", "KUBE-SERVICES", PORTALS),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    ("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    ("filter", "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL),
    ("filter", "INPUT", "KUBE-IPVS-FILTER", ACCESS),
    ("filter", "OUTPUT", "KUBE-IPVS-OUT-FILTER", ACCESS),
];

const NAT_CHAINS: [&str; 5] =
    ["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"];
const FILTER_CHAINS: [&str; 6] = [
    "KUBE-FORWARD",
    "KUBE-NODE-PORT",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// Runs the single commands that make the chains, and the jumps.
pub fn ensure_jumps(host: &Host<'_>) -> Result<()> {
    for (table, chains) in [("nat", &NAT_CHAINS[..]), ("filter", &FILTER_CHAINS)] {
        for chain in chains {
            // kube-proxy ignores the error for a chain that exists.
            let _ = host.run(table, "-N", chain, &[]);
        }
    }
    for (table, from, to, comment) in JUMPS {
        host.ensure(table, "-I", from, &jump("", comment, to))?;
    }
    Ok(())
}
