//! The ipsets, which rules match.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;

use super::super::{cluster::ServicePort, error::Result};

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
type Entries = BTreeMap<&'static str, BTreeSet<String>>;

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
        let held: BTreeSet<String> =
            saved.lines().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect();
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

/// All sets but those of [`Bystanders`](super::super::Bystanders): the type of each, and its entries.
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

/// The entries for these Service ports, as ipset prints them.
pub fn wanted(ports: &[ServicePort<'_>], bound: &BTreeSet<IpAddr>) -> Entries {
    let mut entries = Entries::new();
    let mut add = |set: &'static str, entry: String| {
        entries.entry(set).or_default().insert(entry);
    };
    for ip in bound {
        add("KUBE-IPVS-IPS", ip.to_string());
    }
    for port in ports {
        let is_local = port.is_external_local();
        let at = |ip: &IpAddr| format!("{ip},{}:{}", port.protocol(), port.port.port);
        add("KUBE-CLUSTER-IP", at(&port.cluster_ip));
        for ip in &port.external_ips {
            add(if is_local { "KUBE-EXTERNAL-IP-LOCAL" } else { "KUBE-EXTERNAL-IP" }, at(ip));
        }
        for ip in &port.load_balancer_ips {
            add("KUBE-LOAD-BALANCER", at(ip));
            if is_local {
                add("KUBE-LOAD-BALANCER-LOCAL", at(ip));
            }
            if port.source_ranges.is_empty() {
                continue;
            }
            add("KUBE-LOAD-BALANCER-FW", at(ip));
            for range in &port.source_ranges {
                let range = range.trim_end_matches("/32").trim_end_matches("/128");
                add("KUBE-LOAD-BALANCER-SOURCE-CIDR", format!("{},{range}", at(ip)));
            }
            if port.allows_node() {
                add("KUBE-LOAD-BALANCER-SOURCE-IP", format!("{},{ip}", at(ip)));
            }
        }
        for (set, of_local) in node_port_sets(&port.protocol()) {
            if port.port.node_port != 0 && (is_local || !of_local) {
                add(set, port.port.node_port.to_string());
            }
        }
        for endpoint in port.reachable().iter().filter(|endpoint| endpoint.is_local) {
            let (ip, number) = (endpoint.address.ip(), endpoint.address.port());
            add("KUBE-LOOP-BACK", format!("{ip},{}:{number},{ip}", port.protocol()));
        }
    }
    entries
}

/// The sets for the node ports of a protocol: that of all, and that of those with the policy `Local`.
fn node_port_sets(protocol: &str) -> [(&'static str, bool); 2] {
    match protocol {
        "tcp" => [("KUBE-NODE-PORT-TCP", false), ("KUBE-NODE-PORT-LOCAL-TCP", true)],
        _ => [("KUBE-NODE-PORT-UDP", false), ("KUBE-NODE-PORT-LOCAL-UDP", true)],
    }
}
