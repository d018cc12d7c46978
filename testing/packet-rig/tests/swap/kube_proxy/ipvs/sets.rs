//! The ipsets, which rules match.

use std::collections::{BTreeMap, BTreeSet};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;

use super::super::{Cluster, Result};

/// The sets: IPv4 name, type.
pub const SETS: [(&str, &str); 17] = [
    ("KUBE-LOOP-BACK", "hash:ip,port,ip"),
    ("KUBE-CLUSTER-IP", "hash:ip,port"),
    ("KUBE-EXTERNAL-IP", "hash:ip,port"),
    ("KUBE-EXTERNAL-IP-LOCAL", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-LOCAL", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-FW", "hash:ip,port"),
    ("KUBE-LOAD-BALANCER-SOURCE-IP", "hash:ip,port,ip"),
    ("KUBE-LOAD-BALANCER-SOURCE-CIDR", "hash:ip,port,net"),
    ("KUBE-NODE-PORT-TCP", "bitmap:port"),
    ("KUBE-NODE-PORT-LOCAL-TCP", "bitmap:port"),
    ("KUBE-NODE-PORT-UDP", "bitmap:port"),
    ("KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port"),
    ("KUBE-NODE-PORT-SCTP-HASH", "hash:ip,port"),
    ("KUBE-NODE-PORT-LOCAL-SCTP-HASH", "hash:ip,port"),
    ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port"),
    ("KUBE-IPVS-IPS", "hash:ip"),
];

/// The entries of sets, by IPv4 name.
type Entries = BTreeMap<&'static str, BTreeSet<&'static str>>;

/// The entries that a sync makes.
pub fn wanted(cluster: Cluster, family: IpFamily) -> Entries {
    let mut entries = Entries::new();
    for (set, entry) in cluster.ipvs_entries(family) {
        entries.entry(set).or_default().insert(entry);
    }
    entries
}

/// The name of a set for a family.
pub fn name(family: IpFamily, name: &str) -> String {
    match family {
        IpFamily::V4 => name.to_owned(),
        IpFamily::V6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect(),
    }
}

/// Makes all sets; a set of the same type and options may exist, and any other is an error.
pub fn ensure(node: &NetNs, family: IpFamily) -> Result<()> {
    let inet = if family == IpFamily::V4 { "inet" } else { "inet6" };
    let create = |(set, kind): (&str, &str)| {
        let options = match kind {
            "bitmap:port" => "range 0-65535".to_owned(),
            _ => format!("family {inet} hashsize 1024 maxelem 65536"),
        };
        format!("create {} {kind} {options} -exist\n", name(family, set))
    };
    restore(node, &SETS.map(create).concat())
}

/// Lists the entries of all sets, and adds and deletes what differs.
pub fn sync(node: &NetNs, family: IpFamily, wanted: &Entries) -> Result<()> {
    let saved = node.output("ipset", &["save"], "")?;
    let mut commands = String::new();
    for (set, _) in SETS {
        let set_name = name(family, set);
        let start = format!("add {set_name} ");
        let held: BTreeSet<&str> =
            saved.lines().filter_map(|line| line.strip_prefix(&start)).collect();
        let none = BTreeSet::new();
        let wanted = wanted.get(set).unwrap_or(&none);
        for (action, these, others) in [("del", &held, wanted), ("add", wanted, &held)] {
            for entry in these.difference(others) {
                commands += &format!("{action} {set_name} {entry} -exist\n");
            }
        }
    }
    restore(node, &commands)
}

fn restore(node: &NetNs, commands: &str) -> Result<()> {
    node.output("ipset", &["restore"], commands)?;
    Ok(())
}

/// All sets but those of [`Bystanders`](super::super::Bystanders): the type of each, and its
/// entries.
pub fn list(node: &NetNs) -> Result<Vec<String>> {
    let saved = node.output("ipset", &["save"], "")?;
    let is_foreign = |line: &&str| line.contains("KUBE-SRC-") || line.contains("cali40");
    // What follows the type has a random number.
    let line = |line: &str| match line.starts_with("create ") {
        true => line.split(' ').take(3).collect::<Vec<_>>().join(" "),
        false => line.to_owned(),
    };
    Ok(saved.lines().filter(|line| !is_foreign(line)).map(line).collect())
}
