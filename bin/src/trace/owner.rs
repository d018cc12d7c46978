//! The programs that chains belong to.

use switchyard_core::proxier::Mode;
use switchyard_iptables::ChainNaming;
use switchyard_kernel::nftables::gates::ChainPath;

use super::packet::Pass;

/// The beginnings of names of chains that other programs of Kubernetes have beside those of
/// kube-proxy, and the programs.
const OTHERS: [(&str, &str); 6] = [
    ("KUBE-FIREWALL", "the kubelet's"),
    ("KUBE-KUBELET-", "the kubelet's"),
    ("KUBE-IPTABLES-HINT", "the kubelet's"),
    ("KUBE-ROUTER-", "kube-router's"),
    ("KUBE-NWPLCY-", "kube-router's"),
    ("KUBE-POD-FW-", "kube-router's"),
];

/// The chains that the proxy of a node writes.
#[derive(Clone, Debug)]
pub struct OwnChains {
    /// The mode of the proxy.
    pub mode: Mode,
    /// The name of its tables in nftables mode.
    pub table: String,
    /// Whether iptables-legacy has rules, which do not show and may be the proxy's.
    pub may_hide: bool,
}

impl OwnChains {
    /// Whether the chain is one of them.
    pub fn has(&self, name: &ChainPath) -> bool {
        let ChainPath { family, table, chain, .. } = name;
        let is_ip = ["ip", "ip6"].contains(family);
        let is_of = |naming: ChainNaming| {
            is_ip && ["filter", "nat", "mangle", "raw"].contains(&&**table) && naming.has(chain)
        };
        match self.mode {
            Mode::IPTABLES => is_of(ChainNaming::KubeProxy),
            // Either of them is beneath.
            Mode::IPVS => is_of(ChainNaming::KubeProxy) || is_ip && *table == self.table,
            Mode::USERSPACE => is_of(ChainNaming::Switchyard) || table.starts_with("switchyard-"),
            _ => is_ip && *table == self.table,
        }
    }

    /// Whether iptables' own chain led to them, and its policy accepted what they left.
    pub fn leave_to_policy(&self, pass: &Pass) -> bool {
        let ChainPath { family, table, .. } = &pass.base;
        let is_own = |chain: &String| self.has(&ChainPath::new(family, table, chain));
        pass.verdict == "policy accept" && pass.chains.iter().any(is_own)
    }
}

/// Whose chain this is, if its name shows that.
pub fn of(chain: &str) -> Option<&'static str> {
    OTHERS.into_iter().find(|(begin, _)| chain.starts_with(begin)).map(|(_, whose)| whose)
}
