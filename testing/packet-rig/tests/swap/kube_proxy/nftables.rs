//! The syncs and the clean-up of kube-proxy's nftables mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::{Duration, Instant},
};

use packet_rig::{NetNs, chain};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{
    Cluster, Listing, MARK,
    cluster::{Endpoint, ServicePort},
    error::Result,
    family::{cluster_cidr, nft_family, node_ip},
    genuine::Genuine,
    listing, names,
};

/// The time after which a chain that nothing leads to is deleted.
const STALE_FOR: Duration = Duration::from_secs(1);

/// Name, type, hook, priority.
const BASE_CHAINS: [(&str, &str, &str, &str); 8] = [
    ("filter-prerouting-pre-dnat", "filter", "prerouting", "-110"),
    ("filter-output-pre-dnat", "filter", "output", "-110"),
    ("filter-input", "filter", "input", "0"),
    ("filter-forward", "filter", "forward", "0"),
    ("filter-output", "filter", "output", "0"),
    ("nat-prerouting", "nat", "prerouting", "-100"),
    ("nat-output", "nat", "output", "-100"),
    ("nat-postrouting", "nat", "postrouting", "100"),
];

/// From, condition, to. The chains they lead to are emptied before.
const JUMPS: [(&str, &str, &str); 12] = [
    ("filter-prerouting-pre-dnat", "ct state new", "firewall-check"),
    ("filter-output-pre-dnat", "ct state new", "firewall-check"),
    ("filter-input", "ct state new", "nodeport-endpoints-check"),
    ("filter-input", "ct state new", "service-endpoints-check"),
    ("filter-forward", "ct state new", "service-endpoints-check"),
    ("filter-forward", "ct state new", "cluster-ips-check"),
    ("filter-output", "ct state new", "service-endpoints-check"),
    ("filter-output", "ct state new", "cluster-ips-check"),
    ("nat-prerouting", "", "services"),
    ("nat-output", "", "services"),
    ("nat-postrouting", "", "masquerading"),
    // Not a jump: only emptied. Verdicts of maps lead there.
    ("", "", "reject-chain"),
];

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

/// kube-proxy in nftables mode.
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
    pub fn sync(&mut self, node: &NetNs, cluster: &Cluster) -> Result<()> {
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
    pub fn write(&mut self, node: &NetNs, cluster: &Cluster) -> Result<()> {
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

    fn script(&mut self, node: &NetNs, family: IpFamily, cluster: &Cluster) -> Result<String> {
        let listing = Listing::read(node, family)?;
        let mut script = Script::new(family);
        script.fixed(self);
        let mut elements = BTreeMap::new();
        for (kind, name) in DYNAMIC {
            let is_there = listing.sets.contains(name) || listing.maps.contains(name);
            let known = match is_there && !self.reads_no_elements {
                true => listing::elements(node, family, kind, name)?,
                false => None,
            };
            if is_there && known.is_none() {
                self.unreadable.push(name);
            }
            if known.is_none() {
                script.line(&format!("flush {kind} %T {name}"));
            }
            elements.insert(
                name,
                Elements { known: known.unwrap_or_default(), wanted: BTreeMap::new() },
            );
        }
        script.elements = elements;
        for port in cluster.service_ports(family) {
            script.service_port(&port);
        }
        let now = Instant::now();
        for chain in listing.chains.iter().filter(|chain| chain.contains('/')) {
            let key = (family, chain.clone());
            if script.chains.contains(chain) {
                self.stale.remove(&key);
            } else {
                script.line(&format!("flush chain %T {chain}"));
                self.stale.insert(key, now);
            }
        }
        for set in listing.sets.iter().filter(|set| set.starts_with("affinity-")) {
            if !script.affinity_sets.contains(set) {
                script.line(&format!("delete set %T {set}"));
            }
        }
        Ok(script.finish())
    }
}

#[derive(Debug, Default)]
struct Elements {
    known: BTreeMap<String, String>,
    wanted: BTreeMap<String, (String, Option<String>)>,
}

/// One transaction, in nft's language. `%T` stands for the family and name of the table, `%IP` for
/// `ip` or `ip6`.
struct Script {
    family: IpFamily,
    text: String,
    /// Chains of Services and endpoints that are in use.
    chains: BTreeSet<String>,
    affinity_sets: BTreeSet<String>,
    elements: BTreeMap<&'static str, Elements>,
}

impl Script {
    fn new(family: IpFamily) -> Self {
        Self {
            family,
            text: String::new(),
            chains: BTreeSet::new(),
            affinity_sets: BTreeSet::new(),
            elements: BTreeMap::new(),
        }
    }

    fn line(&mut self, line: &str) {
        let family = nft_family(self.family);
        for (i, word) in line.split(' ').enumerate() {
            if i > 0 {
                self.text.push(' ');
            }
            // Writing to a string cannot fail.
            let _ = match word {
                "%T" => write!(self.text, "{family} kube-proxy"),
                "%IP" => write!(self.text, "{family}"),
                other => write!(self.text, "{other}"),
            };
        }
        self.text.push('\n');
    }

    fn rule(&mut self, chain: &str, rule: &str) {
        self.line(&format!("add rule %T {chain} {rule}"));
    }

    /// Makes the chain of a Service or endpoint, without rules.
    fn chain(&mut self, name: &str) {
        if self.chains.insert(name.to_owned()) {
            self.line(&format!("add chain %T {name}"));
            self.line(&format!("flush chain %T {name}"));
        }
    }

    fn element(&mut self, set: &str, key: String, value: &str, comment: Option<String>) {
        if let Some(elements) = self.elements.get_mut(set) {
            elements.wanted.insert(key, (value.to_owned(), comment));
        }
    }

    /// Declares everything that does not depend on Services.
    fn fixed(&mut self, mode: &NftablesMode) {
        let (address, loopback, service_cidr) = match self.family {
            IpFamily::V4 => ("ipv4_addr", "127.0.0.0/8", "10.96.0.0/16"),
            IpFamily::V6 => ("ipv6_addr", "::1", "fd00:10:96::/112"),
        };
        let (cidr, node) = (cluster_cidr(self.family), node_ip(self.family));
        self.line("add table %T { comment \"rules for kube-proxy\" ; }");
        if !mode.has_base_chains {
            // Declared without a hook: that fits whatever is there.
            for (name, ..) in BASE_CHAINS {
                self.line(&format!("add chain %T {name}"));
                self.line(&format!("delete chain %T {name}"));
            }
        }
        for (name, kind, hook, priority) in BASE_CHAINS {
            self.line(&format!(
                "add chain %T {name} {{ type {kind} hook {hook} priority {priority} ; }}"
            ));
            self.line(&format!("flush chain %T {name}"));
        }
        let mut made = BTreeSet::new();
        for (from, condition, to) in JUMPS {
            if made.insert(to) {
                self.line(&format!("add chain %T {to}"));
                self.line(&format!("flush chain %T {to}"));
            }
            if !from.is_empty() {
                self.rule(from, format!("{condition} jump {to}").trim_start());
            }
        }
        self.rule(
            "masquerading",
            &format!("meta mark and {MARK} != 0 meta mark set meta mark xor {MARK} masquerade fully-random"),
        );
        self.line(&format!(
            "add set %T cluster-ips {{ type {address} ; comment \"Active ClusterIPs\" ; }}"
        ));
        self.line(&format!(
            "add set %T hairpin-connections \
             {{ type {address} . {address} . inet_proto . inet_service ; }}"
        ));
        self.rule(
            "masquerading",
            "ct status dnat %IP saddr . %IP daddr . meta l4proto . th dport @hairpin-connections \
             masquerade fully-random",
        );
        self.rule(
            "cluster-ips-check",
            "%IP daddr @cluster-ips reject comment \"Reject traffic to invalid ports of ClusterIPs\"",
        );
        self.rule(
            "cluster-ips-check",
            &format!(
                "%IP daddr {{ {service_cidr} }} drop \
                 comment \"Drop traffic to unallocated ClusterIPs\""
            ),
        );
        self.line(&format!(
            "add set %T nodeport-ips \
             {{ type {address} ; comment \"IPs that accept NodePort traffic\" ; }}"
        ));
        if mode.all_node_addresses {
            self.line("delete set %T nodeport-ips");
        } else {
            self.line("flush set %T nodeport-ips");
            self.line(&format!("add element %T nodeport-ips {{ {node} }}"));
        }
        let by_ip = format!("{address} . inet_proto . inet_service : verdict");
        let by_port = "inet_proto . inet_service : verdict";
        for (map, types, comment) in [
            (
                "no-endpoint-services",
                &*by_ip,
                "vmap to drop or reject packets to services with no endpoints",
            ),
            (
                "no-endpoint-nodeports",
                by_port,
                "vmap to drop or reject packets to service nodeports with no endpoints",
            ),
            ("firewall-ips", &by_ip, "destinations that are subject to LoadBalancerSourceRanges"),
            ("service-ips", &by_ip, "ClusterIP, ExternalIP and LoadBalancer IP traffic"),
            ("service-nodeports", by_port, "NodePort traffic"),
        ] {
            self.line(&format!("add map %T {map} {{ type {types} ; comment \"{comment}\" ; }}"));
        }
        self.rule("reject-chain", "reject");
        let lookup = |map| format!("%IP daddr . meta l4proto . th dport vmap @{map}");
        let node_ports =
            |matching: &str, map| format!("{matching} meta l4proto . th dport vmap @{map}");
        self.rule("service-endpoints-check", &lookup("no-endpoint-services"));
        let at_node = match mode.all_node_addresses {
            true => format!("%IP daddr != {loopback}"),
            false => "%IP daddr @nodeport-ips".to_owned(),
        };
        self.rule("nodeport-endpoints-check", &node_ports(&at_node, "no-endpoint-nodeports"));
        self.rule("firewall-check", &lookup("firewall-ips"));
        self.rule(
            "services",
            &format!(
                "%IP daddr @cluster-ips %IP saddr != {cidr} meta mark set meta mark or {MARK}"
            ),
        );
        self.rule("services", &lookup("service-ips"));
        let at_node = match mode.all_node_addresses {
            true => format!("fib daddr type local {at_node}"),
            false => at_node,
        };
        self.rule("services", &node_ports(&at_node, "service-nodeports"));
    }

    fn service_port(&mut self, port: &ServicePort<'_>) {
        let (name, protocol, number) = (port.name(), port.protocol(), port.port.port);
        let base = names::nft_service(port);
        let (service, local) = (format!("service-{base}"), format!("local-{base}"));
        let (external, firewall) = (format!("external-{base}"), format!("firewall-{base}"));
        let key = |ip: &std::net::IpAddr| format!("{ip} . {protocol} . {number}");
        let goto = |chain: &str| format!("goto {chain}");
        let refused = match port.has_endpoints() {
            true => "drop",
            false => "goto reject-chain",
        };

        self.element("cluster-ips", port.cluster_ip.to_string(), "", None);
        if port.has_internal() {
            let to = if port.service.internal_local { &local } else { &service };
            self.element("service-ips", key(&port.cluster_ip), &goto(to), None);
        } else {
            let comment = Some(name.clone());
            self.element("no-endpoint-services", key(&port.cluster_ip), refused, comment);
        }
        for ip in port.external_ips.iter().chain(&port.load_balancer_ips) {
            if port.has_endpoints() {
                self.element("service-ips", key(ip), &goto(&external), None);
            }
            if !port.has_external() {
                self.element("no-endpoint-services", key(ip), refused, Some(name.clone()));
            }
        }
        if port.port.node_port != 0 {
            let key = format!("{protocol} . {}", port.port.node_port);
            if port.has_endpoints() {
                self.element("service-nodeports", key.clone(), &goto(&external), None);
            }
            if !port.has_external() {
                self.element("no-endpoint-nodeports", key, refused, Some(name.clone()));
            }
        }
        if let Some(sources) = port.allowed_sources() {
            for ip in &port.load_balancer_ips {
                self.element("firewall-ips", key(ip), &goto(&firewall), None);
            }
            self.chain(&firewall);
            self.rule(&firewall, &format!("%IP saddr != {{ {} }} drop", sources.join(", ")));
        }
        for endpoint in port.reachable().iter().filter(|endpoint| endpoint.is_local) {
            let (ip, number) = (endpoint.address.ip(), endpoint.address.port());
            let key = format!("{ip} . {ip} . {protocol} . {number}");
            self.element("hairpin-connections", key, "", None);
        }
        if port.service.affinity.is_some() {
            for endpoint in port.reachable() {
                self.endpoint(port, endpoint);
            }
        }
        for (chain, endpoints) in [(&service, port.cluster()), (&local, port.local())] {
            if !endpoints.is_empty() {
                self.chain(chain);
                self.balance(port, chain, &endpoints);
            }
        }
        if port.uses_external_chain() {
            self.external(port, &external, &service, &local);
        }
    }

    /// Writes the chain for traffic from outside.
    fn external(&mut self, port: &ServicePort<'_>, external: &str, service: &str, local: &str) {
        self.chain(external);
        if port.is_external_local() {
            let cidr = cluster_cidr(self.family);
            for rule in [
                &*format!("%IP saddr {cidr} goto {service} comment \"short-circuit pod traffic\""),
                &format!(
                    "fib saddr type local meta mark set meta mark or {MARK} \
                     comment \"masquerade local traffic\""
                ),
                &format!(
                    "fib saddr type local goto {service} comment \"short-circuit local traffic\""
                ),
            ] {
                self.rule(external, rule);
            }
            if port.has_external() {
                self.rule(external, &format!("goto {local}"));
            }
        } else {
            self.rule(external, &format!("meta mark set meta mark or {MARK}"));
            self.rule(external, &format!("goto {service}"));
        }
    }

    /// The set and the chain of an endpoint that remembers its clients.
    fn endpoint(&mut self, port: &ServicePort<'_>, endpoint: Endpoint) {
        let base = names::nft_endpoint(port, endpoint.address);
        let (chain, set) = (format!("endpoint-{base}"), format!("affinity-{base}"));
        let address = match self.family {
            IpFamily::V4 => "ipv4_addr",
            IpFamily::V6 => "ipv6_addr",
        };
        let timeout = port.service.affinity.unwrap_or_default();
        self.line(&format!(
            "add set %T {set} {{ type {address} ; flags dynamic,timeout ; timeout {timeout}s ; }}"
        ));
        self.chain(&chain);
        self.rule(&chain, &format!("update @{set} {{ %IP saddr }}"));
        self.rule(
            &chain,
            &format!("meta l4proto {} dnat to {}", port.protocol(), endpoint.address),
        );
        self.affinity_sets.insert(set);
    }

    /// Draws an endpoint.
    fn balance(&mut self, port: &ServicePort<'_>, chain: &str, endpoints: &[Endpoint]) {
        let count = endpoints.len();
        let list = |value: &dyn Fn(&Endpoint) -> String| {
            let numbered = endpoints
                .iter()
                .enumerate()
                .map(|(i, endpoint)| format!("{i} : {}", value(endpoint)));
            numbered.collect::<Vec<_>>().join(" , ")
        };
        if port.service.affinity.is_some() {
            let base = |endpoint: &Endpoint| names::nft_endpoint(port, endpoint.address);
            for endpoint in endpoints {
                let base = base(endpoint);
                self.rule(chain, &format!("%IP saddr @affinity-{base} goto endpoint-{base}"));
            }
            let chains = list(&|endpoint| format!("goto endpoint-{}", base(endpoint)));
            self.rule(chain, &format!("numgen random mod {count} vmap {{ {chains} }}"));
        } else {
            let addresses = list(&|endpoint| {
                format!("{} . {}", endpoint.address.ip(), endpoint.address.port())
            });
            self.rule(
                chain,
                &format!(
                    "meta l4proto {} dnat %IP to numgen random mod {count} map {{ {addresses} }}",
                    port.protocol()
                ),
            );
        }
    }

    /// Appends the changes of elements, and returns the whole text.
    fn finish(mut self) -> String {
        for (set, Elements { mut known, wanted }) in std::mem::take(&mut self.elements) {
            for (key, (value, comment)) in wanted {
                let is_there = known.remove(&key);
                if is_there.as_ref() == Some(&value) {
                    continue;
                }
                if is_there.is_some() {
                    self.line(&format!("delete element %T {set} {{ {key} }}"));
                }
                let comment =
                    comment.map(|comment| format!(" comment \"{comment}\"")).unwrap_or_default();
                let value = if value.is_empty() { String::new() } else { format!(" : {value}") };
                self.line(&format!("add element %T {set} {{ {key}{comment}{value} }}"));
            }
            for key in known.into_keys() {
                self.line(&format!("delete element %T {set} {{ {key} }}"));
            }
        }
        self.text
    }
}
