//! The cluster of these tests, its traffic, and the expected outcomes.

use std::{collections::BTreeMap, fmt::Debug, net::IpAddr, thread, time::Duration};

use packet_rig::{
    Case, LoadGenerator, LoadPlan, NetNs, Protocol, Rig, Target, binary,
    case::{Expectation, Failure, ProbePlan, Reaches},
    wait::until_ok,
};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Cluster, IptablesMode, IpvsMode, Listing, NftablesMode, Port, Service};

fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn port(name: &str, protocol: Protocol, node_port: u16) -> Port {
    Port { name: name.to_owned(), protocol, port: 80, node_port }
}

/// A Service of both families, by the end of its cluster IPs, its node port and its pods.
fn service(name: &str, number: u8, node_port: u16, pods: &[&str]) -> Service {
    Service {
        name: name.to_owned(),
        ports: vec![port("t", Protocol::Tcp, node_port), port("u", Protocol::Udp, node_port)],
        cluster_ips: ips(&[&format!("10.96.0.{number}"), &format!("fd00:10:96::{number}")]),
        pods: pods.iter().map(|&pod| pod.to_owned()).collect(),
        ..Service::default()
    }
}

/// Every kind of Service.
pub fn cluster() -> Cluster {
    let services = vec![
        Service {
            external_ips: ips(&["198.51.100.1", "2001:db8:100::1"]),
            ..service("web", 10, 30080, &["a", "c"])
        },
        Service {
            load_balancer_ips: ips(&["203.0.113.1", "2001:db8:113::1"]),
            source_ranges: ["192.168.10.100/32", "10.244.0.0/16", "fd00:192:168:10::100/128"]
                .map(str::to_owned)
                .to_vec(),
            ..service("ranges", 20, 30081, &["b", "d"])
        },
        Service {
            load_balancer_ips: ips(&["203.0.113.2", "2001:db8:113::2"]),
            external_local: true,
            ..service("local", 30, 30082, &["a", "c", "d"])
        },
        Service {
            load_balancer_ips: ips(&["203.0.113.3"]),
            external_local: true,
            ..service("elsewhere", 40, 30083, &["c", "d"])
        },
        // Its port has no name.
        Service {
            ports: vec![port("", Protocol::Tcp, 30084)],
            affinity: Some(10800),
            ..service("sticky", 50, 0, &["a", "c", "d"])
        },
        service("empty", 60, 30085, &[]),
        Service { internal_local: true, ..service("internal", 70, 0, &["b", "d"]) },
        Service {
            load_balancer_ips: ips(&["203.0.113.8"]),
            external_local: true,
            affinity: Some(3600),
            ..service("sticky-local", 80, 30086, &["b", "c"])
        },
    ];
    Cluster { services }
}

/// The cluster before the change: with a Service and endpoints that are gone in [`cluster`]. There is
/// no UDP traffic to these endpoints meanwhile: such flows are ended, with the packets on their way.
pub fn cluster_before() -> Cluster {
    let mut before = cluster();
    before.services.push(Service {
        load_balancer_ips: ips(&["203.0.113.9"]),
        source_ranges: vec!["192.168.10.0/24".to_owned()],
        affinity: Some(60),
        ..service("gone", 90, 30087, &["a", "b"])
    });
    before.service_mut("local").unwrap().pods.push("b".to_owned());
    before.service_mut("ranges").unwrap().pods.push("a".to_owned());
    before
}

fn targets(list: &[&str]) -> Vec<Target> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn reach(from: &[&str], to: &[&str], pods: &[&str], seen: &str) -> ProbePlan {
    let mut reaches = Reaches::all_of(pods.iter().copied());
    if !seen.is_empty() {
        reaches.source = Some(seen.to_owned());
        reaches.hairpin = Some("node-1".to_owned());
    }
    ProbePlan::new(from, &targets(to), Expectation::Reaches(reaches))
}

fn fail(from: &[&str], to: &[&str], failure: Failure) -> ProbePlan {
    ProbePlan::new(from, &targets(to), Expectation::Fails(failure))
}

/// The expected outcomes for every frontend of [`cluster`], with any proxy.
pub fn probes() -> Vec<ProbePlan> {
    let web = [
        "tcp://10.96.0.10:80",
        "udp://10.96.0.10:80",
        "tcp://[fd00:10:96::10]:80",
        "udp://[fd00:10:96::10]:80",
    ];
    let web_outside = [
        "tcp://192.168.10.1:30080",
        "udp://[fd00:192:168:10::1]:30080",
        "tcp://198.51.100.1:80",
        "tcp://[2001:db8:100::1]:80",
    ];
    let ranges = ["tcp://203.0.113.1:80", "udp://[2001:db8:113::1]:80"];
    let local = [
        "tcp://203.0.113.2:80",
        "tcp://[2001:db8:113::2]:80",
        "tcp://192.168.10.1:30082",
        "udp://192.168.10.1:30082",
    ];
    let elsewhere = ["tcp://203.0.113.3:80", "tcp://192.168.10.1:30083"];
    let sticky = ["tcp://10.96.0.50:80", "tcp://192.168.10.1:30084"];
    let empty = ["tcp://10.96.0.60:80", "udp://[fd00:10:96::60]:80", "tcp://192.168.10.1:30085"];
    let mut probes = vec![
        reach(&["client", "node-1"], &web, &["a", "c"], "node-1"),
        // Pod `a` may reach itself.
        reach(&["a", "b"], &web[..3], &["a", "c"], "own"),
        reach(&["client"], &web_outside, &["a", "c"], "node-1"),
        reach(&["client"], &ranges, &["b", "d"], "node-1"),
        reach(&["node-2"], &["tcp://192.168.10.1:30081"], &["b", "d"], "node-1"),
        reach(&["client"], &local, &["a"], "own"),
        reach(&["b"], &local[..2], &["a", "c", "d"], "own"),
        reach(&["node-1"], &local[..3], &["a", "c", "d"], ""),
        reach(&["b"], &elsewhere, &["c", "d"], "own"),
        reach(&["client"], &["tcp://10.96.0.70:80"], &["b"], "node-1"),
        reach(&["client"], &["tcp://192.168.10.1:30086", "tcp://203.0.113.8:80"], &["b"], "own"),
        fail(&["node-2"], &ranges, Failure::TimedOut),
        fail(&["client"], &elsewhere, Failure::TimedOut),
        fail(&["client"], &empty, Failure::Refused),
    ];
    let mut one = Reaches::all_of(["a", "c", "d"]);
    one.same_endpoint = true;
    let plan = ProbePlan::new(&["client"], &targets(&sticky), Expectation::Reaches(one));
    probes.push(ProbePlan { sources: 8, ..plan });
    probes
}

/// The expected outcome for the Service that is gone.
pub fn nothing_of_gone() -> ProbePlan {
    let to = targets(&["tcp://192.168.10.1:30087"]);
    ProbePlan::new(&["client"], &to, Expectation::Fails(Failure::Refused))
}

/// 8 clients of the Service with affinity, whose endpoint is remembered or compared.
pub fn sticky_clients(change: impl FnOnce(&mut Reaches)) -> [ProbePlan; 1] {
    let mut reaches = Reaches::all_of(["a", "b", "c", "d"]);
    reaches.same_endpoint = true;
    change(&mut reaches);
    let to = targets(&["tcp://10.96.0.50:80", "tcp://192.168.10.1:30084"]);
    let plan = ProbePlan::new(&["client"], &to, Expectation::Reaches(reaches));
    [ProbePlan { sources: 8, ..plan }]
}

/// A rig with the manifests of `cluster`, in which no proxy runs yet.
pub fn prepare(mode: &str, cluster: &Cluster) -> Rig {
    let case = Case {
        name: "swap".to_owned(),
        cluster_cidr: true,
        manifests: cluster.manifests(),
        files: BTreeMap::new(),
        ..Case::default()
    };
    Rig::prepare(&case, mode, &binary::find().unwrap()).unwrap()
}

pub fn node(rig: &Rig) -> NetNs {
    rig.topology.node().namespace.clone()
}

/// The traffic while a proxy takes over: the place of the clients, and their target.
const LOAD: [(&str, &str); 9] = [
    ("client", "tcp://10.96.0.10:80"),
    ("client", "udp://192.168.10.1:30080"),
    ("client", "tcp://203.0.113.1:80"),
    ("client", "tcp://203.0.113.2:80"),
    ("b", "udp://10.96.0.10:80"),
    ("b", "tcp://[fd00:10:96::10]:80"),
    ("b", "tcp://203.0.113.3:80"),
    ("node-1", "tcp://192.168.10.1:30080"),
    ("client", "tcp://10.96.0.50:80"),
];

/// Traffic to many frontends: some hundred new connections in a second, and some that are kept.
pub struct Load(Vec<(&'static str, &'static str, LoadGenerator)>);

impl Load {
    pub fn start(rig: &Rig) -> Self {
        let start = |(from, to): (&'static str, &'static str)| {
            let plan = LoadPlan {
                workers: 1,
                persistent: 2,
                pause: Duration::from_millis(8),
                // A busy machine must not look like a lost connection.
                timeout: Duration::from_secs(5),
                ..LoadPlan::new(&rig.place(from).unwrap().namespace, to.parse().unwrap())
            };
            (from, to, LoadGenerator::start(&plan))
        };
        let load = Self(LOAD.into_iter().map(start).collect());
        thread::sleep(Duration::from_millis(400));
        load
    }

    /// Goes on for a moment, and then nothing may have failed.
    pub fn assert_nothing_lost(self) {
        thread::sleep(Duration::from_millis(400));
        let (mut connections, mut requests) = (0, 0);
        for (from, to, load) in self.0 {
            let report = load.finish().unwrap();
            let (new, kept) = (&report.new_connections, &report.persistent);
            assert_eq!(new.failed() + kept.failed(), 0, "{from} to {to}: {new:?} {kept:?}");
            assert!(new.attempts > 10 && kept.attempts > 10, "{from} to {to}: hardly any traffic");
            connections += new.attempts;
            requests += kept.attempts;
        }
        println!("{connections} connections, {requests} requests over kept ones, none lost");
    }
}

/// kube-proxy, in one of its modes.
pub enum KubeProxy {
    Nftables(NftablesMode),
    Iptables(IptablesMode),
}

impl KubeProxy {
    pub fn nftables() -> Self {
        Self::Nftables(NftablesMode::default())
    }

    pub fn iptables(flavour: Flavour) -> Self {
        Self::Iptables(IptablesMode { flavour })
    }

    pub fn sync(&mut self, node: &NetNs, cluster: &Cluster) {
        match self {
            Self::Nftables(mode) => mode.sync(node, cluster).unwrap(),
            Self::Iptables(mode) => mode.sync(node, cluster).unwrap(),
        }
    }
}

/// Waits until there is no table of nftables mode.
#[track_caller]
pub fn until_no_tables(node: &NetNs) {
    for family in IpFamily::ALL {
        until_ok(|| match Listing::read(node, family) {
            Ok(listing) if listing.is_empty() => Ok(()),
            other => Err(format!("{other:#?}")),
        });
    }
}

/// Waits until there is nothing of iptables mode that its clean-up would have removed.
#[track_caller]
pub fn until_no_chains(node: &NetNs, flavour: Flavour) {
    until_empty(flavour, || IptablesMode { flavour }.leftovers(node));
}

/// Waits until there is nothing of ipvs mode alone.
#[track_caller]
pub fn until_nothing_of_ipvs(node: &NetNs, flavour: Flavour) {
    until_empty(flavour, || IpvsMode { flavour }.leftovers(node));
}

#[track_caller]
fn until_empty<E: Debug>(flavour: Flavour, leftovers: impl Fn() -> Result<Vec<String>, E>) {
    until_ok(|| match leftovers() {
        Ok(left) if left.is_empty() => Ok(()),
        other => Err(format!("{flavour}: {other:#?}")),
    });
}
