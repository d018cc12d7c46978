//! Rules of others on the node: none of a proxy's business, whichever comes or goes.

use super::{Flavour, IpFamily};
use crate::{error::Result, netns::NetNs};

/// What the kubelet leaves behind, and shares with kube-proxy; and rules of a network plugin, of
/// an administrator, and of a program that speaks nftables.
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

impl Bystanders {
    /// Writes their rules, and remembers what they look like.
    pub fn settle(node: &NetNs, flavour: Flavour) -> Result<Self> {
        for family in IpFamily::ALL {
            flavour.restore(node, family, KUBELET)?;
            if family == IpFamily::V4 {
                flavour.restore(node, family, LOCALNET)?;
            }
            flavour.restore(node, family, OTHERS)?;
        }
        node.nft(NFT)?;
        let before = Self::look(node, flavour)?;
        Ok(Self { flavour, before })
    }

    /// Their rules, as they are now: everything but kube-proxy's chains and tables.
    fn look(node: &NetNs, flavour: Flavour) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        for family in IpFamily::ALL {
            for line in flavour.save(node, family)? {
                let is_shared = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"]
                    .iter()
                    .any(|chain| line.contains(chain));
                // Empty tables come and go with who looks at them, and the order of rules in a
                // built-in chain is for whoever inserts last.
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
        seen.sort();
        Ok(seen)
    }

    /// What of theirs has changed since; nothing, if all is well.
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
