//! The chains with their rules, and the jumps to them.

use switchyard_core::model::IpFamily;

use super::{
    super::{
        MARK,
        cluster::ServicePort,
        error::Result,
        family::cluster_cidr,
        host::{Host, jump},
    },
    sets,
};

/// The chains that iptables mode does not have.
pub const ONLY_IPVS: [&str; 5] = [
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

const PORTALS: &str = "kubernetes service portals";
const FIREWALL: &str = "kube-proxy firewall rules";
const ACCESS: &str = "kubernetes ipvs access filter";

/// Table, from, to, comment; in the order in which they are prepended.
const JUMPS: [(&str, &str, &str, &str); 9] = [
    ("nat", "OUTPUT", "KUBE-SERVICES", PORTALS),
    ("nat", "PREROUTING", "KUBE-SERVICES", PORTALS),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    ("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    ("filter", "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", FIREWALL),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL),
    ("filter", "INPUT", "KUBE-IPVS-FILTER", ACCESS),
    ("filter", "OUTPUT", "KUBE-IPVS-OUT-FILTER", ACCESS),
];

const NAT_CHAINS: [&str; 5] =
    ["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"];
const FILTER_CHAINS: [&str; 6] = [
    "KUBE-FORWARD",
    "KUBE-NODE-PORT",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
];

/// Runs the single commands that make the chains, and the jumps.
pub fn ensure_jumps(host: &Host<'_>) -> Result<()> {
    for (table, chains) in [("nat", &NAT_CHAINS[..]), ("filter", &FILTER_CHAINS)] {
        for chain in chains {
            // kube-proxy ignores the error for a chain that exists.
            let _ = host.run(table, "-N", chain, &[]);
        }
    }
    for (table, from, to, comment) in JUMPS {
        host.ensure(table, "-I", from, &jump("", comment, to))?;
    }
    Ok(())
}

/// All chains, in the language of `iptables-restore`. `has` tells whether a set has entries; `limited`
/// are the Service ports whose rules ask IPVS.
pub fn rules(family: IpFamily, has: impl Fn(&str) -> bool, limited: &[&ServicePort<'_>]) -> String {
    let mut rules = Rules { family, lines: Vec::new(), has };
    rules.nat();
    rules.filter(limited);
    rules.lines.join("\n") + "\n"
}

struct Rules<H> {
    family: IpFamily,
    lines: Vec<String>,
    has: H,
}

impl<H: Fn(&str) -> bool> Rules<H> {
    fn begin(&mut self, table: &str, chains: &[&str]) {
        self.lines.push(format!("*{table}"));
        self.lines.extend(chains.iter().map(|name| format!(":{name} - [0:0]")));
    }

    fn add(&mut self, rule: &str) {
        self.lines.push(format!("-A {rule}"));
    }

    /// Adds a rule that matches a set, if the set has entries.
    fn add_if(&mut self, before: &str, set: &str, directions: &str, after: &str) {
        if (self.has)(set) {
            let set = sets::name(self.family, set);
            self.add(&format!("{before} -m set --match-set {set} {directions} {after}"));
        }
    }

    fn nat(&mut self) {
        self.begin("nat", &NAT_CHAINS);
        let loopback = if self.family == IpFamily::V4 { "127.0.0.0/8" } else { "::1/128" };
        self.add(&format!("KUBE-SERVICES -s {loopback} -j RETURN"));
        let to = "dst,dst";
        self.add_if("KUBE-SERVICES", "KUBE-LOAD-BALANCER", to, "-j KUBE-LOAD-BALANCER");
        let outside = format!("KUBE-SERVICES ! -s {}", cluster_cidr(self.family));
        self.add_if(&outside, "KUBE-CLUSTER-IP", to, "-j KUBE-MARK-MASQ");
        for (set, marks) in [("KUBE-EXTERNAL-IP", true), ("KUBE-EXTERNAL-IP-LOCAL", false)] {
            if marks {
                self.add_if("KUBE-SERVICES", set, to, "-j KUBE-MARK-MASQ");
            }
            let remote = "-m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT";
            self.add_if("KUBE-SERVICES", set, to, remote);
            self.add_if("KUBE-SERVICES", set, to, "-m addrtype --dst-type LOCAL -j ACCEPT");
        }
        self.add("KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT");
        self.add_if("KUBE-SERVICES", "KUBE-CLUSTER-IP", to, "-j ACCEPT");
        self.add_if("KUBE-SERVICES", "KUBE-LOAD-BALANCER", to, "-j ACCEPT");
        self.add_if("KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL", to, "-j RETURN");
        self.add("KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ");
        for (protocol, directions, suffix) in
            [("tcp", "dst", "TCP"), ("udp", "dst", "UDP"), ("sctp", to, "SCTP-HASH")]
        {
            let chain = format!("KUBE-NODE-PORT -p {protocol}");
            let (local, all) =
                (format!("KUBE-NODE-PORT-LOCAL-{suffix}"), format!("KUBE-NODE-PORT-{suffix}"));
            self.add_if(&chain, &local, directions, "-j RETURN");
            self.add_if(&chain, &all, directions, "-j KUBE-MARK-MASQ");
        }
        self.add_if("KUBE-POSTROUTING", "KUBE-LOOP-BACK", "dst,dst,src", "-j MASQUERADE");
        self.add(&format!("KUBE-POSTROUTING -m mark ! --mark {MARK}/{MARK} -j RETURN"));
        self.add(&format!("KUBE-POSTROUTING -j MARK --xor-mark {MARK}"));
        self.add("KUBE-POSTROUTING -j MASQUERADE --random-fully");
        self.add(&format!("KUBE-MARK-MASQ -j MARK --or-mark {MARK}"));
        self.lines.push("COMMIT".to_owned());
    }

    fn filter(&mut self, limited: &[&ServicePort<'_>]) {
        self.begin("filter", &FILTER_CHAINS);
        self.add(&format!("KUBE-FORWARD -m mark --mark {MARK}/{MARK} -j ACCEPT"));
        self.add("KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        let health = "KUBE-HEALTH-CHECK-NODE-PORT";
        self.add_if("KUBE-NODE-PORT", health, "dst", "-j ACCEPT");
        let (to, ranges) = ("dst,dst", "KUBE-SOURCE-RANGES-FIREWALL");
        let firewall = "KUBE-LOAD-BALANCER-FW";
        self.add_if("KUBE-PROXY-FIREWALL", firewall, to, &format!("-j {ranges}"));
        for sources in ["KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-LOAD-BALANCER-SOURCE-IP"] {
            self.add_if(ranges, sources, "dst,dst,src", "-j RETURN");
        }
        self.add(&format!("{ranges} -j DROP"));
        for set in
            ["KUBE-LOAD-BALANCER", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL"]
        {
            self.add_if("KUBE-IPVS-FILTER", set, to, "-j RETURN");
        }
        self.add_if("KUBE-IPVS-FILTER", health, "dst", "-j RETURN");
        let new = "KUBE-IPVS-FILTER -m conntrack --ctstate NEW";
        self.add_if(new, "KUBE-IPVS-IPS", "dst", "-j REJECT");
        for port in limited {
            for ip in port.load_balancer_ips.iter().filter(|_| port.excludes_node()) {
                let (protocol, number) = (port.protocol(), port.port.port);
                self.add(&format!(
                    "KUBE-IPVS-OUT-FILTER -s {ip} -m ipvs --vaddr {ip} --vproto {protocol} \
                     --vport {number} -j DROP"
                ));
            }
        }
        self.lines.push("COMMIT".to_owned());
    }
}
