//! Rules of other programs on the node, which no proxy may change.

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Result,
    programs::{restore, save},
};

/// Rules of the kubelet, some shared with kube-proxy; rules of a network plugin, of an
/// administrator, and of a program that uses nftables; and ipsets of network plugins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bystanders {
    flavour: Flavour,
    before: Vec<String>,
}

const KUBELET: &str = "\
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
COMMIT
";

const LOCALNET: &str = "\
*filter
-A KUBE-FIREWALL -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 \
! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
COMMIT
";

const OTHERS: &str = "\
*nat
:CNI-HOSTPORT - [0:0]
:KUBERNETES-ADMIN - [0:0]
-A POSTROUTING -m comment --comment \"not KUBE-SERVICES\" -j CNI-HOSTPORT
-A CNI-HOSTPORT -m mark --mark 0x2000/0x2000 -j MASQUERADE
COMMIT
*filter
:CNI-FORWARD - [0:0]
-A FORWARD -j CNI-FORWARD
-A CNI-FORWARD -p tcp -m tcp --dport 9 -j DROP
COMMIT
";

const NFT: &str = "\
table inet other {
    set service-ips { type inet_service; elements = { 9 }; }
    chain services { type filter hook forward priority 10; tcp dport @service-ips drop; }
}
table ip kube-proxy-lookalike {
    chain services { type filter hook forward priority 20; }
}
";

/// The first name begins as those of kube-proxy's sets do: kube-router has such sets.
const SETS: &str = "\
create KUBE-SRC-ABCDEFGHIJKLMNOP hash:ip family inet
add KUBE-SRC-ABCDEFGHIJKLMNOP 10.244.1.10
create cali40masq-ipam-pools hash:net family inet
add cali40masq-ipam-pools 10.244.0.0/16
";

impl Bystanders {
    /// Writes the rules, and remembers their listing.
    pub fn settle(node: &NetNs, flavour: Flavour) -> Result<Self> {
        for family in IpFamily::ALL {
            restore(flavour, node, family, KUBELET)?;
            if family == IpFamily::V4 {
                restore(flavour, node, family, LOCALNET)?;
            }
            restore(flavour, node, family, OTHERS)?;
        }
        node.nft(NFT)?;
        node.output("ipset", &["restore"], SETS)?;
        let before = Self::look(node, flavour)?;
        Ok(Self { flavour, before })
    }

    /// The present rules of other programs: all but kube-proxy's and
    /// Switchyard's chains and tables.
    fn look(node: &NetNs, flavour: Flavour) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        for family in IpFamily::ALL {
            for line in save(flavour, node, family)? {
                let is_shared = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"]
                    .iter()
                    .any(|chain| line.contains(chain));
                // Listing a table can create it, so empty tables do not count; nor does the order
                // of rules in a built-in chain, which depends on the last program that inserts.
                let is_rule = line.starts_with("-A ") || line.starts_with(":KUBE-");
                let is_proxys = line.contains("-j KUBE-") || line.starts_with(":KUBE-");
                if is_shared || (is_rule && !is_proxys && !line.starts_with("-A KUBE-")) {
                    seen.push(line);
                }
            }
        }
        for table in [["inet", "other"], ["ip", "kube-proxy-lookalike"]] {
            seen.push(node.output("nft", &["list", "table", table[0], table[1]], "")?);
        }
        for line in SETS.lines().filter_map(|line| line.strip_prefix("create ")) {
            let name = line.split(' ').next().unwrap_or_default();
            let listing = node.output("ipset", &["save", name], "");
            seen.push(listing.unwrap_or_else(|error| format!("no set {name}: {error}")));
        }
        seen.sort();
        Ok(seen)
    }

    /// The changes to these rules since [`Self::settle`]; empty if there are none.
    pub fn changes(&self, node: &NetNs) -> Result<Vec<String>> {
        let now = Self::look(node, self.flavour)?;
        let only_in = |these: &[String], others: &[String], what: &str| -> Vec<String> {
            let missing = these.iter().filter(|line| !others.contains(line));
            missing.map(|line| format!("{what}: {line}")).collect()
        };
        let mut changes = only_in(&self.before, &now, "gone");
        changes.extend(only_in(&now, &self.before, "new"));
        if changes.is_empty() && now.len() != self.before.len() {
            changes.push(format!("doubled: {now:?}"));
        }
        Ok(changes)
    }
}
