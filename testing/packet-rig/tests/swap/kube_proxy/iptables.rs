//! The syncs and the clean-up of kube-proxy's iptables mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Cluster, MARK,
    cluster::{Endpoint, ServicePort},
    error::Result,
    family::cluster_cidr,
    genuine::Genuine,
    host::{Host, jump},
    names,
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
    pub fn sync(&self, node: &NetNs, cluster: &Cluster) -> Result<()> {
        if let Some(genuine) = Genuine::find(self.flavour)? {
            return genuine.sync_without_errors(node, "iptables", cluster);
        }
        self.write(node, cluster)
    }

    /// Writes what a sync writes, as the stand-in.
    pub fn write(&self, node: &NetNs, cluster: &Cluster) -> Result<()> {
        for family in IpFamily::ALL {
            let host = Host { node, family, flavour: self.flavour };
            host.ensure_jumps()?;
            let existing = host.chains("nat")?;
            let mut tables = Tables::new(family);
            tables.fixed();
            for port in cluster.service_ports(family) {
                tables.service_port(&port);
            }
            restore(self.flavour, node, family, &tables.finish(&existing))?;
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

/// The input of one run of `iptables-restore`.
struct Tables {
    family: IpFamily,
    filter: Vec<String>,
    /// Rules of nat's shared chains.
    nat: Vec<String>,
    /// Rules of nat's other chains.
    chains: BTreeMap<String, Vec<String>>,
    /// The last rules of nat.
    tail: Vec<String>,
}

impl Tables {
    fn new(family: IpFamily) -> Self {
        let (filter, nat, tail) = (Vec::new(), Vec::new(), Vec::new());
        Self { family, filter, nat, chains: BTreeMap::new(), tail }
    }

    fn fixed(&mut self) {
        let masquerade = "-m comment --comment \"kubernetes service traffic requiring SNAT\" \
                          -j MASQUERADE --random-fully";
        for rule in [
            format!("KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN"),
            format!("KUBE-POSTROUTING -j MARK --xor-mark {MARK}"),
            format!("KUBE-POSTROUTING {masquerade}"),
            format!("KUBE-MARK-MASQ -j MARK --or-mark {MARK}"),
        ] {
            self.nat.push(rule);
        }
        let forwarding = "-m comment --comment \"kubernetes forwarding rules\"";
        let conntrack = "-m comment --comment \"kubernetes forwarding conntrack rule\"";
        for rule in [
            "KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP".to_owned(),
            format!("KUBE-FORWARD {forwarding} -m mark --mark {MARK}/{MARK} -j ACCEPT"),
            format!(
                "KUBE-FORWARD {conntrack} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
            ),
        ] {
            self.filter.push(rule);
        }
        let last = "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the \
                    last rule in this chain\" -m addrtype --dst-type LOCAL";
        self.tail.push(match self.family {
            IpFamily::V4 => format!("KUBE-SERVICES {last} -j KUBE-NODEPORTS"),
            IpFamily::V6 => format!("KUBE-SERVICES {last} ! -d ::1/128 -j KUBE-NODEPORTS"),
        });
    }

    fn service_port(&mut self, port: &ServicePort<'_>) {
        let name = port.name();
        let suffix = names::iptables_service(port);
        let chain = |kind: &str| format!("KUBE-{kind}-{suffix}");
        let (service, local, external) = (chain("SVC"), chain("SVL"), chain("EXT"));
        let internal = if port.service.internal_local { &local } else { &service };
        let has_external = port.uses_external_chain();
        let sources = port.allowed_sources().filter(|_| port.has_endpoints());

        let at = |ip: &IpAddr, what: &str| {
            let (protocol, number) = (port.protocol(), port.port.port);
            format!("{} -m {protocol} -p {protocol} -d {ip} --dport {number}", comment(&name, what))
        };
        if port.has_internal() {
            let rule = at(&port.cluster_ip, " cluster IP");
            self.nat.push(format!("KUBE-SERVICES {rule} -j {internal}"));
        } else {
            self.refuse(port, "KUBE-SERVICES", &at(&port.cluster_ip, &why(port)));
        }
        for ip in &port.external_ips {
            if has_external {
                let rule = at(ip, " external IP");
                self.nat.push(format!("KUBE-SERVICES {rule} -j {external}"));
            }
            if !port.has_external() {
                self.refuse(port, "KUBE-EXTERNAL-SERVICES", &at(ip, &why(port)));
            }
        }
        let firewall = chain("FW");
        for ip in &port.load_balancer_ips {
            if has_external {
                let to = if sources.is_some() { &firewall } else { &external };
                let rule = at(ip, " loadbalancer IP");
                self.nat.push(format!("KUBE-SERVICES {rule} -j {to}"));
            }
            if sources.is_some() {
                let rule = at(ip, &format!(" traffic not accepted by {firewall}"));
                self.filter.push(format!("KUBE-PROXY-FIREWALL {rule} -j DROP"));
            }
            if !port.has_external() {
                self.refuse(port, "KUBE-EXTERNAL-SERVICES", &at(ip, &why(port)));
            }
        }
        if port.port.node_port != 0 {
            let (protocol, number) = (port.protocol(), port.port.node_port);
            let rule = |what: &str| {
                format!("{} -m {protocol} -p {protocol} --dport {number}", comment(&name, what))
            };
            if has_external {
                self.nat.push(format!("KUBE-NODEPORTS {} -j {external}", rule("")));
            }
            if !port.has_external() {
                let rule = format!("{} -m addrtype --dst-type LOCAL", rule(&why(port)));
                self.refuse(port, "KUBE-EXTERNAL-SERVICES", &rule);
            }
        }
        if has_external {
            let rules = self.external(port, &service, &local);
            self.chains.insert(external.clone(), rules);
        }
        if let Some(sources) = sources {
            let said = comment(&name, " loadbalancer IP");
            let mut rules: Vec<_> =
                sources.iter().map(|source| format!("{said} -s {source} -j {external}")).collect();
            rules.push(comment(
                &format!("other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL"),
                "",
            ));
            self.chains.insert(firewall.clone(), rules);
        }
        for (chain, endpoints) in [(&service, port.cluster()), (&local, port.local())] {
            if !endpoints.is_empty() {
                let mut rules = Vec::new();
                if chain == internal {
                    let rule = at(&port.cluster_ip, " cluster IP");
                    let cidr = cluster_cidr(self.family);
                    rules.push(format!("{rule} ! -s {cidr} -j KUBE-MARK-MASQ"));
                }
                rules.extend(balance(port, &endpoints));
                self.chains.insert(chain.clone(), rules);
            }
        }
        for endpoint in port.reachable() {
            let (chain, rules) = endpoint_chain(port, &endpoint);
            self.chains.insert(chain, rules);
        }
    }

    fn refuse(&mut self, port: &ServicePort<'_>, chain: &str, rule: &str) {
        let target = if port.has_endpoints() { "DROP" } else { "REJECT" };
        self.filter.push(format!("{chain} {rule} -j {target}"));
    }

    fn external(&self, port: &ServicePort<'_>, service: &str, local: &str) -> Vec<String> {
        let text = |does: &str| {
            comment(&format!("{does} traffic for {} external destinations", port.name()), "")
        };
        if !port.is_external_local() {
            return vec![
                format!("{} -j KUBE-MARK-MASQ", text("masquerade")),
                format!("-j {service}"),
            ];
        }
        let mut rules = vec![
            format!("{} -s {} -j {service}", text("pod"), cluster_cidr(self.family)),
            format!("{} -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ", text("masquerade LOCAL")),
            format!("{} -m addrtype --src-type LOCAL -j {service}", text("route LOCAL")),
        ];
        if port.has_external() {
            rules.push(format!("-j {local}"));
        }
        rules
    }

    /// The whole text, with the deletion of existing chains of Services that are not wanted.
    fn finish(self, existing: &BTreeSet<String>) -> String {
        let mut text = String::from("*filter\n");
        for chain in FILTER_CHAINS {
            text += &format!(":{chain} - [0:0]\n");
        }
        text.extend(self.filter.iter().map(|rule| format!("-A {rule}\n")));
        text += "COMMIT\n*nat\n";
        let stale =
            existing.iter().filter(|name| is_of_service(name) && !self.chains.contains_key(*name));
        let stale: Vec<&str> = stale.map(String::as_str).collect();
        let wanted = self.chains.keys().map(String::as_str);
        for chain in NAT_CHAINS.into_iter().chain(wanted).chain(stale.iter().copied()) {
            text += &format!(":{chain} - [0:0]\n");
        }
        for (chain, rules) in &self.chains {
            text.extend(rules.iter().map(|rule| format!("-A {chain} {rule}\n")));
        }
        text.extend(self.nat.iter().chain(&self.tail).map(|rule| format!("-A {rule}\n")));
        text.extend(stale.iter().map(|chain| format!("-X {chain}\n")));
        text + "COMMIT\n"
    }
}

fn comment(name: &str, what: &str) -> String {
    format!("-m comment --comment \"{name}{what}\"")
}

/// Why a Service port is refused.
fn why(port: &ServicePort<'_>) -> String {
    match port.has_endpoints() {
        true => " has no local endpoints",
        false => " has no endpoints",
    }
    .to_owned()
}

fn endpoint_name(port: &ServicePort<'_>, endpoint: &Endpoint) -> String {
    format!("KUBE-SEP-{}", names::iptables_endpoint(port, endpoint.address))
}

/// Leads clients back to the endpoint that remembers them, and draws one for the others.
fn balance(port: &ServicePort<'_>, endpoints: &[Endpoint]) -> Vec<String> {
    let mut rules = Vec::new();
    let name = port.name();
    if let Some(seconds) = port.service.affinity {
        for endpoint in endpoints {
            let chain = endpoint_name(port, endpoint);
            rules.push(format!(
                "{} -m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}",
                comment(&name, "")
            ));
        }
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        let said = comment(&name, &format!(" -> {}", endpoint.address));
        let chain = endpoint_name(port, endpoint);
        let draw = match endpoints.len() - i {
            1 => String::new(),
            left => format!(
                " -m statistic --mode random --probability {:.10}",
                // There are few endpoints here.
                1.0 / left as f64
            ),
        };
        rules.push(format!("{said}{draw} -j {chain}"));
    }
    rules
}

/// Translates to an endpoint.
fn endpoint_chain(port: &ServicePort<'_>, endpoint: &Endpoint) -> (String, Vec<String>) {
    let chain = endpoint_name(port, endpoint);
    let said = comment(&port.name(), "");
    let (ip, protocol) = (endpoint.address.ip(), port.protocol());
    let remember = match port.service.affinity {
        Some(_) => format!(" -m recent --name {chain} --set"),
        None => String::new(),
    };
    let rules = vec![
        format!("{said} -s {ip} -j KUBE-MARK-MASQ"),
        format!(
            "{said}{remember} -m {protocol} -p {protocol} -j DNAT --to-destination {}",
            endpoint.address
        ),
    ];
    (chain, rules)
}
