//! What kube-proxy's ipvs mode leaves on a node: ipsets, rules, and the device with the addresses of
//! Services.
//!
//! Virtual servers are left out, and so are the rules that ask IPVS (`KUBE-IPVS-OUT-FILTER`): the
//! fixtures must do on a kernel without IPVS, where nothing serves. On a kernel without dummy
//! devices, a bridge takes the place of the device.

use std::{collections::BTreeSet, net::IpAddr};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Cluster, MARK,
    cluster::ServicePort,
    error::Result,
    family::cluster_cidr,
    programs::{restore, save},
};

const DEVICE: &str = "kube-ipvs0";

/// The sets: IPv4 name, type.
const SETS: [(&str, &str); 17] = [
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

/// The chains that iptables mode does not have.
const ONLY_IPVS: [&str; 5] = [
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// kube-proxy in ipvs mode, which has ended.
#[derive(Clone, Copy, Debug)]
pub struct IpvsMode {
    /// The flavour that its image chose.
    pub flavour: Flavour,
}

impl IpvsMode {
    /// Leaves everything behind for the Services of `cluster`.
    pub fn leave(&self, node: &NetNs, cluster: &Cluster) -> Result<()> {
        if node.ip(&format!("link add {DEVICE} type dummy\n")).is_err() {
            node.ip(&format!("link add {DEVICE} type bridge\n"))?;
        }
        for family in IpFamily::ALL {
            let ports = cluster.service_ports(family);
            let bound: BTreeSet<IpAddr> = ports.iter().flat_map(addresses).collect();
            let host = if family == IpFamily::V4 { "32" } else { "128 nodad" };
            let add = |ip: &IpAddr| format!("address add {ip}/{host} dev {DEVICE}\n");
            node.ip(&bound.iter().map(add).collect::<String>())?;
            node.output("ipset", &["restore"], &sets(family, &ports, &bound))?;
            restore(self.flavour, node, family, &rules(family))?;
        }
        Ok(())
    }

    /// What is left that iptables mode does not have, too: sets, the device, lines of rules.
    pub fn leftovers(&self, node: &NetNs) -> Result<Vec<String>> {
        let existing = node.output("ipset", &["list", "-name"], "")?;
        let is_set = |line: &&str| {
            let of = |family| SETS.iter().any(|(name, _)| set(family, name) == *line);
            IpFamily::ALL.into_iter().any(of)
        };
        let mut found: Vec<String> = existing.lines().filter(is_set).map(str::to_owned).collect();
        let links = node.output("ip", &["-oneline", "link"], "")?;
        found.extend(links.lines().filter(|line| line.contains(DEVICE)).map(str::to_owned));
        for family in IpFamily::ALL {
            let is_ipvs = |line: &String| {
                line.split([' ', ':']).any(|word| ONLY_IPVS.contains(&word))
                    || line.contains("--match-set KUBE-")
            };
            found.extend(save(self.flavour, node, family)?.into_iter().filter(is_ipvs));
        }
        Ok(found)
    }
}

/// The name of a set for a family.
fn set(family: IpFamily, name: &str) -> String {
    match family {
        IpFamily::V4 => name.to_owned(),
        IpFamily::V6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect(),
    }
}

/// All addresses of a Service port.
fn addresses(port: &ServicePort<'_>) -> Vec<IpAddr> {
    [&[port.cluster_ip][..], &port.external_ips, &port.load_balancer_ips].concat()
}

/// The sets with their entries, in the language of `ipset restore`.
fn sets(family: IpFamily, ports: &[ServicePort<'_>], bound: &BTreeSet<IpAddr>) -> String {
    let mut text = String::new();
    let inet = if family == IpFamily::V4 { "inet" } else { "inet6" };
    for (name, kind) in SETS {
        let options = match kind {
            "bitmap:port" => "range 0-65535".to_owned(),
            _ => format!("family {inet} hashsize 1024 maxelem 65536"),
        };
        text += &format!("create {} {kind} {options}\n", set(family, name));
    }
    let mut add = |name: &str, entry: String| {
        text += &format!("add {} {entry} -exist\n", set(family, name));
    };
    for ip in bound {
        add("KUBE-IPVS-IPS", ip.to_string());
    }
    for port in ports {
        let at = |ip: &IpAddr| format!("{ip},{}:{}", port.protocol(), port.port.port);
        add("KUBE-CLUSTER-IP", at(&port.cluster_ip));
        for ip in &port.external_ips {
            add("KUBE-EXTERNAL-IP", at(ip));
        }
        for ip in &port.load_balancer_ips {
            add("KUBE-LOAD-BALANCER", at(ip));
            if port.is_external_local() {
                add("KUBE-LOAD-BALANCER-LOCAL", at(ip));
            }
            if let Some(sources) = port.allowed_sources() {
                add("KUBE-LOAD-BALANCER-FW", at(ip));
                for source in sources {
                    add("KUBE-LOAD-BALANCER-SOURCE-CIDR", format!("{},{source}", at(ip)));
                }
            }
        }
        if port.port.node_port != 0 {
            let kind = port.protocol().to_uppercase();
            add(&format!("KUBE-NODE-PORT-{kind}"), port.port.node_port.to_string());
        }
        for endpoint in port.reachable().iter().filter(|endpoint| endpoint.is_local) {
            let (ip, number) = (endpoint.address.ip(), endpoint.address.port());
            add("KUBE-LOOP-BACK", format!("{ip},{}:{number},{ip}", port.protocol()));
        }
    }
    text
}

/// The chains and jumps, in the language of `iptables-restore`.
fn rules(family: IpFamily) -> String {
    let matches = |name: &str, directions: &str| {
        format!("-m set --match-set {} {directions}", set(family, name))
    };
    let (cluster, external) =
        (matches("KUBE-CLUSTER-IP", "dst,dst"), matches("KUBE-EXTERNAL-IP", "dst,dst"));
    let balancer = matches("KUBE-LOAD-BALANCER", "dst,dst");
    let outside = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL";
    let cidr = cluster_cidr(family);
    let loopback = if family == IpFamily::V4 { "127.0.0.0/8" } else { "::1/128" };
    let portals = "-m comment --comment \"kubernetes service portals\"";
    let firewall = "-m comment --comment \"kube-proxy firewall rules\"";
    [
        "*nat".to_owned(),
        [
            "KUBE-SERVICES",
            "KUBE-POSTROUTING",
            "KUBE-NODE-PORT",
            "KUBE-LOAD-BALANCER",
            "KUBE-MARK-MASQ",
        ]
        .map(|name| format!(":{name} - [0:0]"))
        .join("\n"),
        format!("-I OUTPUT {portals} -j KUBE-SERVICES"),
        format!("-I PREROUTING {portals} -j KUBE-SERVICES"),
        "-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING"
            .to_owned(),
        format!("-A KUBE-SERVICES -s {loopback} -j RETURN"),
        format!("-A KUBE-SERVICES {balancer} -j KUBE-LOAD-BALANCER"),
        format!("-A KUBE-SERVICES ! -s {cidr} {cluster} -j KUBE-MARK-MASQ"),
        format!("-A KUBE-SERVICES {external} -j KUBE-MARK-MASQ"),
        format!("-A KUBE-SERVICES {external} {outside} -j ACCEPT"),
        format!("-A KUBE-SERVICES {external} -m addrtype --dst-type LOCAL -j ACCEPT"),
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT".to_owned(),
        format!("-A KUBE-SERVICES {cluster} -j ACCEPT"),
        format!("-A KUBE-SERVICES {balancer} -j ACCEPT"),
        format!(
            "-A KUBE-LOAD-BALANCER {} -j RETURN",
            matches("KUBE-LOAD-BALANCER-LOCAL", "dst,dst")
        ),
        "-A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ".to_owned(),
        format!(
            "-A KUBE-NODE-PORT -p tcp {} -j KUBE-MARK-MASQ",
            matches("KUBE-NODE-PORT-TCP", "dst")
        ),
        format!(
            "-A KUBE-NODE-PORT -p udp {} -j KUBE-MARK-MASQ",
            matches("KUBE-NODE-PORT-UDP", "dst")
        ),
        format!("-A KUBE-POSTROUTING {} -j MASQUERADE", matches("KUBE-LOOP-BACK", "dst,dst,src")),
        format!("-A KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN"),
        format!("-A KUBE-POSTROUTING -j MARK --xor-mark {MARK}"),
        "-A KUBE-POSTROUTING -j MASQUERADE --random-fully".to_owned(),
        format!("-A KUBE-MARK-MASQ -j MARK --or-mark {MARK}"),
        "COMMIT".to_owned(),
        "*filter".to_owned(),
        [
            "KUBE-FORWARD",
            "KUBE-NODE-PORT",
            "KUBE-PROXY-FIREWALL",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
        ]
        .map(|name| format!(":{name} - [0:0]"))
        .join("\n"),
        "-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD"
            .to_owned(),
        "-I INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT"
            .to_owned(),
        format!("-I INPUT {firewall} -j KUBE-PROXY-FIREWALL"),
        format!("-I FORWARD {firewall} -j KUBE-PROXY-FIREWALL"),
        "-I INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER"
            .to_owned(),
        "-I OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER"
            .to_owned(),
        format!("-A KUBE-FORWARD -m mark --mark {MARK}/{MARK} -j ACCEPT"),
        "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
        format!("-A KUBE-NODE-PORT {} -j ACCEPT", matches("KUBE-HEALTH-CHECK-NODE-PORT", "dst")),
        format!(
            "-A KUBE-PROXY-FIREWALL {} -j KUBE-SOURCE-RANGES-FIREWALL",
            matches("KUBE-LOAD-BALANCER-FW", "dst,dst")
        ),
        format!(
            "-A KUBE-SOURCE-RANGES-FIREWALL {} -j RETURN",
            matches("KUBE-LOAD-BALANCER-SOURCE-CIDR", "dst,dst,src")
        ),
        "-A KUBE-SOURCE-RANGES-FIREWALL -j DROP".to_owned(),
        format!("-A KUBE-IPVS-FILTER {balancer} -j RETURN"),
        format!("-A KUBE-IPVS-FILTER {cluster} -j RETURN"),
        format!("-A KUBE-IPVS-FILTER {external} -j RETURN"),
        format!(
            "-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW {} -j REJECT",
            matches("KUBE-IPVS-IPS", "dst")
        ),
        "COMMIT\n".to_owned(),
    ]
    .join("\n")
}
