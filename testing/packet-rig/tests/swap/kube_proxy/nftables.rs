//! The syncs and the clean-up of kube-proxy's nftables mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use packet_rig::{NetNs, chain};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Cluster, Listing, Result,
    genuine::Genuine,
    listing::{self, nft_family},
};

/// The time after which a chain that nothing leads to is deleted.
const STALE_FOR: Duration = Duration::from_secs(1);

/// The sets and maps whose elements kube-proxy reads back.
const DYNAMIC: [(&str, &str); 7] = [
    ("set", "cluster-ips"),
    ("map", "service-ips"),
    ("map", "firewall-ips"),
    ("map", "no-endpoint-services"),
    ("map", "no-endpoint-nodeports"),
    ("map", "service-nodeports"),
    ("set", "hairpin-connections"),
];

#[derive(Debug, Default)]
pub struct NftablesMode {
    /// Whether node ports are served at all addresses of the node, instead of `primary`.
    pub all_node_addresses: bool,
    /// Whether the elements of maps are taken for unreadable, and written anew.
    pub reads_no_elements: bool,
    /// The errors of transactions that should have deleted stale chains. A healthy node has no such
    /// errors: after each, kube-proxy writes everything anew.
    pub cleanup_failures: Vec<String>,
    /// Existing sets and maps whose elements could not be read.
    pub unreadable: Vec<&'static str>,
    /// Whether its base chains have been made by this process.
    has_base_chains: bool,
    stale: BTreeMap<(IpFamily, String), Instant>,
}

impl NftablesMode {
    /// Makes a full sync of both families. Chains that were stale a second ago are deleted first.
    pub fn sync(&mut self, node: &NetNs, cluster: Cluster) -> Result<()> {
        if let Some(genuine) = Genuine::find(Flavour::Nft)? {
            let all = ["--nodeport-addresses=0.0.0.0/0,::/0"];
            let arguments = if self.all_node_addresses { &all[..] } else { &[] };
            let mut is_new = false;
            for family in IpFamily::ALL {
                is_new |= Listing::read(node, family)?.is_empty();
            }
            let mut errors = genuine.sync(node, "nftables", cluster, arguments)?;
            // kube-proxy tries to list the table that it has not made yet.
            errors.retain(|line| !is_new || !line.contains("list existing nftables objects"));
            self.cleanup_failures.extend(errors);
            return Ok(());
        }
        self.write(node, cluster)
    }

    /// Writes what a sync writes, as the stand-in.
    pub fn write(&mut self, node: &NetNs, cluster: Cluster) -> Result<()> {
        for family in IpFamily::ALL {
            self.delete_stale(node, family);
            let script = self.script(node, family, cluster)?;
            node.nft(&script)?;
        }
        self.has_base_chains = true;
        Ok(())
    }

    /// Removes what kube-proxy's clean-up removes, also at the start of another mode.
    pub fn cleanup(node: &NetNs) -> Result<()> {
        if let Some(genuine) = Genuine::find(Flavour::Nft)? {
            return genuine.clean_up(node);
        }
        for family in IpFamily::ALL {
            if !Listing::read(node, family)?.is_empty() {
                node.nft(&format!("delete table {} kube-proxy\n", nft_family(family)))?;
            }
        }
        Ok(())
    }

    fn delete_stale(&mut self, node: &NetNs, family: IpFamily) {
        let mut script = String::new();
        self.stale.retain(|(of, chain), since| {
            let is_due = *of == family && since.elapsed() > STALE_FOR;
            if is_due {
                script += &format!("delete chain {} kube-proxy {chain}\n", nft_family(family));
            }
            !is_due
        });
        if !script.is_empty()
            && let Err(error) = node.nft(&script)
        {
            self.cleanup_failures.push(chain(&error));
        }
    }

    /// The transaction of a sync of a family.
    fn script(&mut self, node: &NetNs, family: IpFamily, cluster: Cluster) -> Result<String> {
        let listing = Listing::read(node, family)?;
        let table = format!("{} kube-proxy", nft_family(family));
        let recorded = match self.all_node_addresses {
            true => at_all_node_addresses(family, cluster.nftables(family)),
            false => cluster.nftables(family).to_owned(),
        };
        let declared = |what: &str| -> Vec<&str> {
            let start = format!("add {what} {table} ");
            recorded.lines().filter_map(|line| line.strip_prefix(&*start)).collect()
        };
        let name = |line: &'_ str| line.split(' ').next().unwrap_or_default().to_owned();
        let (elements, declarations): (Vec<&str>, Vec<&str>) = recorded
            .lines()
            .partition(|line| line.starts_with("add element") && !line.contains(" nodeport-ips "));
        let mut script: Vec<String> = declarations.iter().map(|&line| line.to_owned()).collect();
        if !self.has_base_chains {
            // After the table. Declared without a hook: that fits whatever is there.
            let bases = declared("chain").into_iter().filter(|line| line.contains(" hook "));
            let again = bases.flat_map(|line| {
                ["add", "delete"].map(|verb| format!("{verb} chain {table} {}", name(line)))
            });
            script.splice(1..1, again);
        }
        for (kind, set) in DYNAMIC {
            let is_there = listing.sets.contains(set) || listing.maps.contains(set);
            let known = match is_there && !self.reads_no_elements {
                true => listing::elements(node, family, kind, set)?,
                false => None,
            };
            if is_there && known.is_none() {
                self.unreadable.push(set);
            }
            if known.is_none() {
                script.push(format!("flush {kind} {table} {set}"));
            }
            let start = format!("add element {table} {set} {{ ");
            let wanted = elements.iter().filter(|line| line.starts_with(&start));
            script.extend(changes(&start, wanted.copied(), known.unwrap_or_default()));
        }
        let now = Instant::now();
        let chains: BTreeSet<String> = declared("chain").into_iter().map(name).collect();
        for chain in listing.chains.iter().filter(|chain| chain.contains('/')) {
            let key = (family, chain.clone());
            if chains.contains(chain) {
                self.stale.remove(&key);
            } else {
                script.push(format!("flush chain {table} {chain}"));
                self.stale.insert(key, now);
            }
        }
        let sets: BTreeSet<String> = declared("set").into_iter().map(name).collect();
        for set in listing.sets.iter().filter(|set| set.starts_with("affinity-")) {
            if !sets.contains(set) {
                script.push(format!("delete set {table} {set}"));
            }
        }
        Ok(script.join("\n") + "\n")
    }
}

/// The lines that make the known elements of a set or map those that are wanted. Each line of these
/// begins with `start`, and goes on with a key, perhaps a comment, and in a map a value.
fn changes<'a>(
    start: &str,
    wanted: impl Iterator<Item = &'a str>,
    mut known: BTreeMap<String, String>,
) -> Vec<String> {
    let delete = |key: &str| format!("{}{key} }}", start.replacen("add", "delete", 1));
    let mut lines = Vec::new();
    for line in wanted {
        let element = line.strip_prefix(start).and_then(|rest| rest.strip_suffix(" }"));
        let element = element.unwrap_or_default();
        let (key, value) = element.split_once(" : ").unwrap_or((element, ""));
        let key = key.split(" comment ").next().unwrap_or_default();
        match known.remove(key) {
            Some(same) if same == value => continue,
            Some(_) => lines.push(delete(key)),
            None => {}
        }
        lines.push(line.to_owned());
    }
    lines.extend(known.keys().map(|key| delete(key)));
    lines
}

/// The transaction with node ports at all addresses of the node, instead of `primary`.
fn at_all_node_addresses(family: IpFamily, recorded: &str) -> String {
    let word = nft_family(family);
    let loopback = if family == IpFamily::V4 { "127.0.0.0/8" } else { "::1" };
    let line = |line: &str| {
        let (at, everywhere) =
            (format!("{word} daddr @nodeport-ips"), format!("{word} daddr != {loopback}"));
        match line {
            _ if line.starts_with("flush set") && line.ends_with(" nodeport-ips") => {
                line.replacen("flush", "delete", 1)
            }
            _ if line.starts_with("add element") && line.contains(" nodeport-ips ") => {
                String::new()
            }
            _ if line.contains("services ") => {
                line.replace(&at, &format!("fib daddr type local {everywhere}"))
            }
            _ => line.replace(&at, &everywhere),
        }
    };
    recorded.lines().map(line).filter(|line| !line.is_empty()).map(|line| line + "\n").collect()
}
