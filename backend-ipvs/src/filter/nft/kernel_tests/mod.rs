//! The table on a real kernel, in network namespaces. Needs root, and the programs `nft`, `ip`, `ipset` and
//! `iptables`.

mod packets;
mod ranges;

use std::{
    net::{IpAddr, SocketAddr},
    process::Command,
};

use ipnet::IpNet;
use switchyard_core::{
    model::{PerFamily, Protocol, ServiceName, ServicePortName},
    state::{LocalPods, NodePortAddresses, NodeState},
};
use switchyard_netlink::ipset::{Entry, SetType};
use switchyard_xtables::{InstalledPrograms, ProgramOptions};
use test_netns::in_namespace;

use super::*;
use crate::{
    filter::{Filter, xtables::Xtables},
    layout::exceptions::{Detour, Exceptions},
};

const TCP: u8 = 6;
const UDP: u8 = 17;

fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The lines of both tables as nft lists them, sorted: the order of elements, and of what was made anew, is
/// another.
fn tables() -> Vec<String> {
    let families = ["ip", "ip6"].map(|family| {
        let listed = run(&format!("nft -s list table {family} switchyard-ipvs"));
        let line = |line: &str| {
            let line = line.trim().trim_start_matches("elements = { ");
            format!("{family} {}", line.trim_end_matches([',', ' ', '}']))
        };
        listed.lines().map(line).collect::<Vec<_>>()
    });
    let mut lines = families.concat();
    lines.sort_unstable();
    lines
}

/// What a filter is given.
struct Fixture {
    filter: NftFilter,
    node: NodeState,
    exceptions: PerFamily<Exceptions>,
    wanted: HashSet<FamilyEntry>,
}

impl Fixture {
    fn new() -> Self {
        let node = NodeState {
            local_pods: PerFamily {
                v4: Some(LocalPods::Source(net("10.244.0.0/16"))),
                v6: Some(LocalPods::InterfacePrefix("cali".into())),
            },
            node_ports: PerFamily {
                v4: NodePortAddresses::Only([ip("192.0.2.1"), ip("192.0.2.2")].into()),
                v6: NodePortAddresses::Only([ip("2001:db8::1")].into()),
            },
            ..NodeState::default()
        };
        let exceptions = PerFamily::default();
        let filter = NftFilter::open().unwrap();
        Self { filter, node, exceptions, wanted: HashSet::new() }
    }

    /// With an entry of every set, in both families, and detours.
    fn with_everything() -> Self {
        let mut fixture = Self::new();
        for (family, ip, net) in [
            (IpFamily::V4, ip("10.96.0.1"), net("10.0.0.0/8")),
            (IpFamily::V6, ip("fd00:96::1"), net("fd00::/16")),
        ] {
            for set in Set::ALL {
                let (protocol, port) = (TCP, 80);
                let entry = match set.kind() {
                    SetType::HashIp => Entry::Ip(ip),
                    SetType::HashIpPort => Entry::IpPort { ip, protocol, port },
                    SetType::HashIpPortIp => Entry::IpPortIp { ip, protocol, port, second: ip },
                    SetType::HashIpPortNet => Entry::IpPortNet { ip, protocol, port, net },
                    SetType::BitmapPort => Entry::Port(30_080),
                };
                fixture.wanted.insert((family, set, entry));
            }
            let detours = &mut fixture.exceptions.get_mut(family).detours;
            detours.push(detour(Some(ip), 80, &[(SocketAddr::new(ip, 8080), 1)]));
            let [one, other] = [1000, 2000].map(|port| SocketAddr::new(ip, port));
            detours.push(detour(None, 30_080, &[(one, 20), (other, 10)]));
        }
        fixture
    }

    fn inputs(&self) -> Vec<RuleInputs<'_>> {
        let inputs = |family| RuleInputs {
            family,
            mark: 0x4000,
            node: &self.node,
            exceptions: self.exceptions.get(family),
        };
        IpFamily::ALL.map(inputs).into()
    }

    fn compare(&mut self) -> Compared {
        let Self { filter, node, exceptions, wanted } = self;
        let inputs = IpFamily::ALL.map(|family| RuleInputs {
            family,
            mark: 0x4000,
            node,
            exceptions: exceptions.get(family),
        });
        filter.compare(wanted, &inputs).unwrap()
    }

    /// Compares again, which must change nothing.
    fn expect_in_order(&mut self) {
        let Compared { done, missing, stale, chains, .. } = self.compare();
        assert_eq!((missing, stale, chains), Default::default());
        assert_eq!((done.added, done.removed, done.messages), (0, 0, 0));
    }

    fn write_exceptions(&mut self) -> Done {
        let mut done = Done::default();
        let Self { filter, node, exceptions, .. } = self;
        for family in IpFamily::ALL {
            let exceptions = exceptions.get(family);
            let inputs = RuleInputs { family, mark: 0x4000, node, exceptions };
            filter.write_exceptions(&inputs, &mut done).unwrap();
        }
        done
    }

    fn commit(&mut self, add: &[FamilyEntry], delete: &[FamilyEntry]) {
        self.filter.commit(&mut Done::default(), add, delete).unwrap();
        self.wanted.extend(add);
        self.wanted.retain(|entry| !delete.contains(entry));
    }
}

fn detour(ip: Option<IpAddr>, port: u16, targets: &[(SocketAddr, u32)]) -> Detour {
    let service = ServiceName { namespace: "ns".into(), name: "web".into() };
    let name = ServicePortName { service, port: "http".into(), protocol: Protocol::Tcp };
    Detour { name, ip, port, targets: targets.to_vec() }
}

fn at(address: &str, port: u16) -> Entry {
    Entry::IpPort { ip: ip(address), protocol: UDP, port }
}

fn allowed(address: &str, port: u16, nets: &[&str]) -> Vec<FamilyEntry> {
    let entry =
        |text: &&str| Entry::IpPortNet { ip: ip(address), protocol: UDP, port, net: net(text) };
    nets.iter().map(|net| (IpFamily::V4, Set::LoadBalancerSources, entry(net))).collect()
}

#[test]
fn nft_lists_the_table_and_a_second_comparison_finds_nothing() {
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        let compared = fixture.compare();
        assert_eq!(compared.missing.len(), 2 * Set::ALL.len());
        assert!(compared.stale.is_empty());
        let listed = run("nft -s list table ip switchyard-ipvs");
        for line in [
            "type ipv4_addr . inet_proto . inet_service . ipv4_addr",
            "elements = { 10.96.0.1 . tcp . 80 . 10.0.0.0/8 }",
            "elements = { 10.96.0.1 . tcp . 80 . 10.96.0.1 }",
            "elements = { tcp . 30080 }",
            "10.96.0.1 . tcp . 80 comment \"ns/web:http\" : goto draw-tcp-1",
            "192.0.2.2 . tcp . 30080 comment \"ns/web:http\" : goto draw-tcp-3",
            "type nat hook prerouting priority dstnat - 1; policy accept;",
            "type filter hook output priority mangle; policy accept;",
            "ct state new ip daddr . meta l4proto . th dport @limited-ips jump source-ranges",
            "ip saddr != 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ips \
             meta mark set meta mark | 0x00004000",
            "ip daddr 192.0.2.1 jump node-ports",
            "fib saddr type local ip daddr . meta l4proto . th dport vmap @detours",
            "ip daddr . meta l4proto . th dport @cluster-ips dnat to ip daddr",
            "meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 \
             masquerade fully-random",
            "ip daddr @service-ips reject",
        ] {
            assert!(listed.contains(line), "{line}\n{listed}");
        }
        let listed = run("nft -s list table ip6 switchyard-ipvs");
        for line in [
            "elements = { fd00:96::1 . tcp . 80 . fd00::/16 }",
            "iifname \"cali*\" ip6 daddr . meta l4proto . th dport vmap @detours",
            "ip6 daddr . tcp dport . numgen random mod 3 map @detour-targets-tcp",
        ] {
            assert!(listed.contains(line), "{line}\n{listed}");
        }
        fixture.expect_in_order();
        // A program that starts again takes the tables over.
        fixture.filter = NftFilter::open().unwrap();
        fixture.expect_in_order();
    });
}

#[test]
fn what_other_programs_change_is_found_and_repaired() {
    let everything: Vec<String> = Set::ALL
        .into_iter()
        .map(layout::name)
        .filter(|name| !name.starts_with("allowed"))
        .map(|name| format!("nft flush set ip switchyard-ipvs {name}"))
        .collect();
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        let expected = tables();
        let mut expect = |change: &str, missing: usize, altered: &[&str]| {
            run(change);
            let compared = fixture.compare();
            assert_eq!(compared.missing.len(), missing, "{change}: {compared:?}");
            assert!(compared.stale.is_empty(), "{change}: {compared:?}");
            let in_table = |name: &&str| (IpFamily::V4, format!("{name} in switchyard-ipvs"));
            let altered: Vec<_> = altered.iter().map(in_table).collect();
            assert_eq!(compared.chains, altered, "{change}");
            fixture.expect_in_order();
            assert_eq!(tables(), expected, "{change}");
        };
        for flush in &everything {
            // Two sets of node ports have the entries of two protocols.
            let entries =
                if flush.ends_with("node-ports") || flush.ends_with("ports-local") { 2 } else { 1 };
            expect(flush, entries, &[]);
        }
        let table = "ip switchyard-ipvs";
        expect(&format!("nft flush set {table} allowed-sources"), 1, &[]);
        expect(&format!("nft flush chain {table} access"), 0, &["chain access"]);
        expect(&format!("nft add rule {table} services accept"), 0, &["chain services"]);
        expect(&format!("nft flush map {table} detours"), 0, &["map detours"]);
        let foreign = "{ 10.96.0.9 . gre . 80 }";
        let change = format!("nft add element {table} cluster-ips {foreign}");
        expect(&change, 0, &["set cluster-ips"]);
        let foreign = "{ 10.96.0.1 . tcp . 81 . 10.0.0.1-10.0.0.6 }";
        let change = format!("nft add element {table} allowed-sources {foreign}");
        expect(&change, 0, &["set allowed-sources"]);
        let change = format!("nft delete chain {table} filter-forward");
        expect(&change, 0, &["chain filter-forward"]);
    });
}

#[test]
fn a_table_that_cannot_be_repaired_is_made_anew_with_the_entries_that_it_has() {
    for change in [
        "add chain ip switchyard-ipvs foreign { type filter hook input priority 0; policy drop; }",
        "add chain ip switchyard-ipvs foreign",
        "add set ip switchyard-ipvs foreign { type mark; }",
    ] {
        in_namespace(|| {
            let mut fixture = Fixture::with_everything();
            fixture.compare();
            let expected = tables();
            let stale = (IpFamily::V4, Set::ClusterIp, at("10.96.0.7", 53));
            fixture.filter.commit(&mut Done::default(), &[stale], &[]).unwrap();
            let status = Command::new("nft").arg(change).status().unwrap();
            assert!(status.success());
            let compared = fixture.compare();
            assert!(compared.missing.is_empty(), "{compared:?}");
            assert_eq!(compared.stale, [stale]);
            assert_eq!(compared.chains, [(IpFamily::V4, "table switchyard-ipvs".to_owned())]);
            assert!(run("nft list ruleset").contains("10.96.0.7 . udp . 53"));
            fixture.commit(&[], &[stale]);
            assert_eq!(tables(), expected);
            fixture.expect_in_order();
        });
    }
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        let expected = tables();
        run("nft delete table ip switchyard-ipvs");
        assert_eq!(fixture.compare().missing.len(), Set::ALL.len());
        assert_eq!(tables(), expected);
        fixture.expect_in_order();
    });
}

#[test]
fn entries_come_and_go() {
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        let all: Vec<FamilyEntry> = fixture.wanted.drain().collect();
        fixture.compare();
        fixture.commit(&all, &[]);
        fixture.expect_in_order();
        // Again, with what is there already, and without what is gone already.
        fixture.commit(&all, &[]);
        let gone = (IpFamily::V4, Set::Silent, at("10.96.0.8", 53));
        fixture.commit(&[], &[all[0], gone]);
        fixture.commit(&[], &[all[0], all[1]]);
        fixture.expect_in_order();
        fixture.commit(&[], &all);
        fixture.expect_in_order();
        for set in layout::definitions(IpFamily::V6) {
            let listed = run(&format!("nft list set ip6 switchyard-ipvs {}", set.name));
            assert!(!listed.contains("elements"), "{listed}");
        }
    });
}

#[test]
fn stale_entries_are_reported_and_stay() {
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        let all: HashSet<FamilyEntry> = fixture.wanted.drain().collect();
        let stale = fixture.compare().stale;
        assert_eq!(stale.iter().copied().collect::<HashSet<_>>(), all);
        assert!(run("nft list ruleset").contains("10.96.0.1 . tcp . 80 . 10.0.0.0/8"));
        fixture.commit(&[], &stale);
        assert!(!run("nft list ruleset").contains("10.96.0.1 . tcp . 80 . 10.0.0.0/8"));
        fixture.expect_in_order();
    });
}

#[test]
fn detours_are_written_when_services_change() {
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        let done = fixture.write_exceptions();
        assert_eq!((done.added, done.removed), (0, 0));
        let detours = &mut fixture.exceptions.v4.detours;
        let [one, other] = ["10.244.1.1:80", "10.244.1.2:80"].map(|at| at.parse().unwrap());
        detours[0].targets = vec![(one, 1), (other, 1)];
        detours.remove(1);
        let done = fixture.write_exceptions();
        assert!(done.added > 0 && done.removed > 0);
        let listed = run("nft list map ip switchyard-ipvs detours");
        assert!(listed.contains("10.96.0.1 . tcp . 80") && listed.contains("draw-tcp-2"));
        assert!(!listed.contains("30080"), "{listed}");
        let targets = run("nft list map ip switchyard-ipvs detour-targets-tcp");
        assert!(targets.contains("10.96.0.1 . 80 . 1 : 10.244.1.2 . 80"), "{targets}");
        fixture.expect_in_order();
    });
}

#[test]
fn an_address_of_the_node_comes_before_its_node_ports() {
    let mut fixture = Fixture::new();
    let to = |port| [(SocketAddr::new(ip("10.244.1.1"), port), 1)];
    fixture.exceptions.v4.detours =
        vec![detour(Some(ip("192.0.2.1")), 80, &to(1)), detour(None, 80, &to(2))];
    let detours = Detours::new(&fixture.inputs()[0]);
    let values: Vec<String> = detours
        .elements
        .iter()
        .filter(|((map, _), _)| map.as_str() == "detour-targets-tcp")
        .map(|(_, element)| format!("{:?} {:?}", element.key, element.data))
        .collect();
    assert_eq!(values.len(), 2);
    assert!(values[0].starts_with("c0000201") && values[0].contains("0af4010100010000"));
    assert!(values[1].starts_with("c0000202") && values[1].contains("0af4010100020000"));
}

#[test]
fn removal_leaves_other_tables() {
    in_namespace(|| {
        assert_eq!(remove().unwrap(), 0);
        run("nft add table ip kube-proxy");
        let before = run("nft list ruleset");
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        assert_eq!(remove().unwrap(), 2);
        assert_eq!(run("nft list ruleset"), before);
        assert_eq!(remove().unwrap(), 0);
    });
}

#[test]
fn the_other_packet_filter_is_removed_once_the_table_serves() {
    in_namespace(|| {
        run("ipset create KUBE-CLUSTER-IP hash:ip,port");
        run("iptables-nft -w -t nat -N KUBE-SERVICES");
        run("iptables-nft -w -t nat -A OUTPUT -j KUBE-SERVICES");
        run(
            "iptables-nft -w -t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
        );
        let fixture = Fixture::with_everything();
        let mut filter = Filter::Nft(NftFilter::open().unwrap());
        let compared = filter.compare(&fixture.wanted, &fixture.inputs()).unwrap();
        filter.finish(&compared.late, &mut Done::default()).unwrap();
        filter.remove_other();
        assert!(!run("iptables-nft-save").contains("KUBE-"));
        assert_eq!(run("ipset list -n"), "");
        assert!(run("nft list tables").contains("ip switchyard-ipvs"));
    });
}

#[test]
fn the_table_is_removed_once_iptables_serves() {
    in_namespace(|| {
        let mut fixture = Fixture::with_everything();
        fixture.compare();
        let programs = InstalledPrograms::find(&ProgramOptions::default());
        let tools = programs.choose(None, PerFamily { v4: true, v6: true }).unwrap();
        let mut filter = Filter::Xtables(Xtables::open(tools).unwrap());
        let compared = filter.compare(&HashSet::new(), &fixture.inputs()).unwrap();
        filter.finish(&compared.late, &mut Done::default()).unwrap();
        filter.remove_other();
        assert!(run("iptables-save").contains("KUBE-SERVICES"));
        assert_eq!(remove().unwrap(), 0);
    });
}

/// The rules of iptables mode go on translating until virtual servers serve. Its jumps go, too.
#[test]
fn rules_of_iptables_mode_stay_until_the_end() {
    in_namespace(|| {
        for command in [
            "-t nat -N KUBE-SERVICES",
            "-t nat -N KUBE-SVC-NPX46M4PTMTKRN6Y",
            "-t nat -A KUBE-SERVICES -d 10.96.0.1 -j KUBE-SVC-NPX46M4PTMTKRN6Y",
            "-N KUBE-PROXY-FIREWALL",
            "-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL",
            "-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL",
        ] {
            run(&format!("iptables-nft -w {command}"));
        }
        run("ipset create KUBE-LOAD-BALANCER-SOURCE-IP hash:ip,port,ip");
        let fixture = Fixture::with_everything();
        let programs = InstalledPrograms::find(&ProgramOptions::default());
        let tools = programs.choose(None, PerFamily { v4: true, v6: true }).unwrap();
        let mut filter = Filter::Xtables(Xtables::open(tools).unwrap());
        let compared = filter.compare(&fixture.wanted, &fixture.inputs()).unwrap();
        assert!(run("iptables-save").contains("-j KUBE-SVC-NPX46M4PTMTKRN6Y"));
        filter.finish(&compared.late, &mut Done::default()).unwrap();
        let rules = run("iptables-save");
        assert!(
            !rules.contains("-j KUBE-SVC-NPX46M4PTMTKRN6Y") && rules.contains("KUBE-CLUSTER-IP")
        );
        let is_jump = |line: &&str| line.ends_with("-j KUBE-PROXY-FIREWALL");
        let jumps: Vec<&str> = rules.lines().filter(is_jump).collect();
        assert!(jumps.len() == 2 && jumps.iter().all(|jump| !jump.contains("NEW")), "{jumps:?}");
        assert!(!run("ipset list -n").contains("KUBE-LOAD-BALANCER-SOURCE-IP"));
    });
}
