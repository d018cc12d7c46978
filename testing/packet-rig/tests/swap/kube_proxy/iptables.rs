//! The syncs and the clean-up of kube-proxy's iptables mode.

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Cluster, Result,
    genuine::Genuine,
    host::{Host, jump},
    programs::{restore, save},
};

/// The prefixes of chains of Services and endpoints, all in the nat table.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-"];

const NEW: &str = "-m conntrack --ctstate NEW";
const PORTALS: &str = "kubernetes service portals";
const EXTERNAL: &str = "kubernetes externally-visible service portals";
const FIREWALL: &str = "kubernetes load balancer firewall";

/// Table, from, to, match, comment; in the order in which they are prepended.
const JUMPS: [(&str, &str, &str, &str, &str); 12] = [
    ("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", NEW, EXTERNAL),
    ("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", NEW, EXTERNAL),
    ("filter", "INPUT", "KUBE-NODEPORTS", "", "kubernetes health check service ports"),
    ("filter", "FORWARD", "KUBE-SERVICES", NEW, PORTALS),
    ("filter", "OUTPUT", "KUBE-SERVICES", NEW, PORTALS),
    ("filter", "FORWARD", "KUBE-FORWARD", "", "kubernetes forwarding rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", NEW, FIREWALL),
    ("filter", "OUTPUT", "KUBE-PROXY-FIREWALL", NEW, FIREWALL),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", NEW, FIREWALL),
    ("nat", "OUTPUT", "KUBE-SERVICES", "", PORTALS),
    ("nat", "PREROUTING", "KUBE-SERVICES", "", PORTALS),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", "", "kubernetes postrouting rules"),
];

/// The rule of the chain that kube-proxy shares with the kubelet.
const LOCALNET: [&str; 16] = [
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "-d",
    "127.0.0.0/8",
    "!",
    "-s",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

const FILTER_CHAINS: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
];
const NAT_CHAINS: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"];
const CANARY: &str = "KUBE-PROXY-CANARY";
const TABLES: [&str; 3] = ["mangle", "nat", "filter"];

/// kube-proxy in iptables mode, with node ports at all addresses of the node, also loopback.
#[derive(Clone, Copy, Debug)]
pub struct IptablesMode {
    /// The flavour that its image chose.
    pub flavour: Flavour,
}

impl IptablesMode {
    /// Makes a full sync of both families; a second sync changes nothing.
    pub fn sync(&self, node: &NetNs, cluster: Cluster) -> Result<()> {
        if let Some(genuine) = Genuine::find(self.flavour)? {
            return genuine.sync_without_errors(node, "iptables", cluster);
        }
        self.write(node, cluster)
    }

    /// Writes what a sync writes, as the stand-in.
    pub fn write(&self, node: &NetNs, cluster: Cluster) -> Result<()> {
        for family in IpFamily::ALL {
            let host = Host { node, family, flavour: self.flavour };
            host.ensure_jumps()?;
            // The table nat is the last.
            let recorded = cluster.iptables(family);
            let is_wanted = |chain: &String| recorded.contains(&format!("\n:{chain} "));
            let stale: Vec<String> = host
                .chains("nat")?
                .into_iter()
                .filter(|chain| is_of_service(chain) && !is_wanted(chain))
                .collect();
            let flushes = stale.iter().map(|chain| format!(":{chain} - [0:0]\n"));
            let deletions = stale.iter().map(|chain| format!("-X {chain}\n"));
            let mut text = recorded.trim_end_matches("COMMIT\n").to_owned();
            text.extend(flushes.chain(deletions));
            restore(self.flavour, node, family, &(text + "COMMIT\n"))?;
        }
        Ok(())
    }

    /// Removes what kube-proxy's clean-up removes, also at the start of nftables mode.
    pub fn cleanup(&self, node: &NetNs) -> Result<()> {
        if let Some(genuine) = Genuine::find(self.flavour)? {
            return genuine.clean_up(node);
        }
        for family in IpFamily::ALL {
            let host = Host { node, family, flavour: self.flavour };
            for (table, from, to, matching, comment) in JUMPS {
                let rule = jump(matching, comment, to);
                if host.has(table, from, &rule) {
                    host.run(table, "-D", from, &rule)?;
                }
            }
            for (table, fixed) in [("nat", &NAT_CHAINS[..]), ("filter", &FILTER_CHAINS)] {
                let existing = host.chains(table)?;
                let ours = |chain: &&String| {
                    let is_service = table == "nat" && is_of_service(chain);
                    fixed.contains(&chain.as_str()) || is_service || **chain == CANARY
                };
                let gone: Vec<_> = existing.iter().filter(ours).collect();
                let flushes: String =
                    gone.iter().map(|chain| format!(":{chain} - [0:0]\n")).collect();
                let deletions: String = gone.iter().map(|chain| format!("-X {chain}\n")).collect();
                let text = format!("*{table}\n{flushes}{deletions}COMMIT\n");
                restore(self.flavour, node, family, &text)?;
            }
            if host.chains("mangle")?.contains(CANARY) {
                host.run("mangle", "-F", CANARY, &[])?;
                host.run("mangle", "-X", CANARY, &[])?;
            }
        }
        Ok(())
    }

    /// The chains that the clean-up or the next sync would delete.
    pub fn leftovers(&self, node: &NetNs) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            for line in save(self.flavour, node, family)? {
                let is_kubelets = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"]
                    .iter()
                    .any(|chain| line.contains(chain));
                let is_ours = [":KUBE-", "-A KUBE-"].iter().any(|start| line.starts_with(start));
                if (is_ours || line.contains(" -j KUBE-")) && !is_kubelets {
                    found.push(line);
                }
            }
        }
        Ok(found)
    }
}

fn is_of_service(chain: &str) -> bool {
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

impl Host<'_> {
    /// Runs the single commands that make the chains which built-in chains jump to, and the jumps.
    fn ensure_jumps(&self) -> Result<()> {
        // kube-proxy ignores the error for a chain that exists.
        for table in TABLES {
            let _ = self.run(table, "-N", CANARY, &[]);
        }
        for (table, from, to, matching, comment) in JUMPS {
            let _ = self.run(table, "-N", to, &[]);
            self.ensure(table, "-I", from, &jump(matching, comment, to))?;
        }
        let _ = self.run("filter", "-N", "KUBE-FIREWALL", &[]);
        for from in ["INPUT", "OUTPUT"] {
            self.ensure("filter", "-I", from, &["-j", "KUBE-FIREWALL"])?;
        }
        if self.family == IpFamily::V4 {
            self.ensure("filter", "-A", "KUBE-FIREWALL", &LOCALNET)?;
        }
        Ok(())
    }
}
