//! The cluster of these tests, its traffic, and the expected outcomes.

use std::{collections::BTreeMap, fmt::Debug, thread, time::Duration};

use packet_rig::{
    Case, LoadGenerator, LoadPlan, LoadReport, NetNs, Rig, Target, backend, binary,
    case::{Expectation, Failure, ProbePlan, Reaches},
    kube_proxy::{self, Release},
    wait::{scaled, until_ok},
};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Cluster, IptablesMode, IpvsMode, Listing, NftablesMode, programs};

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

/// The frontends of the Service with affinity: clients keep their endpoint at all of them.
const STICKY: [&str; 2] = ["tcp://10.96.0.50:80", "tcp://192.168.10.1:30084"];

/// All pods, and those of them that are endpoints of that Service after the change.
const PODS: [&str; 4] = ["a", "b", "c", "d"];
const KEPT: [&str; 3] = ["a", "c", "d"];

/// The expected outcomes for every frontend of [`Cluster::After`], with any proxy but one in ipvs
/// mode.
pub fn probes() -> Vec<ProbePlan> {
    [common_probes(), policy_probes(), vec![keeps_one_of(&KEPT, &STICKY, |_| {})]].concat()
}

/// The same with Switchyard in ipvs mode: each frontend remembers clients by itself.
pub fn probes_in_ipvs() -> Vec<ProbePlan> {
    let sticky = STICKY.map(|to| keeps_one_of(&KEPT, &[to], |_| {}));
    [common_probes(), policy_probes(), sticky.into()].concat()
}

/// The same with kube-proxy in ipvs mode: for the policy `Local`, clients on the node are as
/// others, and endpoints of other nodes are used where there are none on the node.
pub fn probes_in_kube_proxys_ipvs() -> Vec<ProbePlan> {
    let sticky = STICKY.map(|to| keeps_one_of(&KEPT, &[to], |_| {}));
    let local = vec![
        reach(&["b"], &LOCAL[..2], &["a"], "own"),
        reach(&["node-1"], &LOCAL[..3], &["a"], ""),
        reach(&["b"], &["tcp://203.0.113.3:80"], &["c", "d"], "own"),
    ];
    let common = common_probes().into_iter().flat_map(from_any_address);
    common.chain(local).chain(sticky).collect()
}

/// The same plan, but what servers see of masqueraded packets of IPv6 may be any address of a
/// Service: all are on a device of the node.
fn from_any_address(plan: ProbePlan) -> impl Iterator<Item = ProbePlan> {
    let (v4, v6) = plan.to.iter().copied().partition(|target: &Target| target.address.is_ipv4());
    let mut any = ProbePlan { to: v6, ..plan.clone() };
    if let Expectation::Reaches(reaches) = &mut any.expect {
        (reaches.source, reaches.hairpin) = (None, None);
    }
    [ProbePlan { to: v4, ..plan }, any].into_iter().filter(|plan| !plan.to.is_empty())
}

/// The probes of a mode of Switchyard.
pub fn probes_in(mode: &str) -> Vec<ProbePlan> {
    if mode == "ipvs" { probes_in_ipvs() } else { probes() }
}

const LOCAL: [&str; 4] = [
    "tcp://203.0.113.2:80",
    "tcp://[2001:db8:113::2]:80",
    "tcp://192.168.10.1:30082",
    "udp://192.168.10.1:30082",
];

fn common_probes() -> Vec<ProbePlan> {
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
    let empty = ["tcp://10.96.0.60:80", "udp://[fd00:10:96::60]:80", "tcp://192.168.10.1:30085"];
    vec![
        reach(&["client", "node-1"], &web, &["a", "c"], "node-1"),
        // Pod `a` may reach itself.
        reach(&["a", "b"], &web[..3], &["a", "c"], "own"),
        reach(&["client"], &web_outside, &["a", "c"], "node-1"),
        reach(&["client"], &ranges, &["b", "d"], "node-1"),
        reach(&["node-2"], &["tcp://192.168.10.1:30081"], &["b", "d"], "node-1"),
        reach(&["client"], &LOCAL, &["a"], "own"),
        reach(&["client"], &["tcp://10.96.0.70:80"], &["b"], "node-1"),
        reach(&["client"], &["tcp://192.168.10.1:30086", "tcp://203.0.113.8:80"], &["b"], "own"),
        fail(&["node-2"], &ranges, Failure::TimedOut),
        fail(&["client"], &empty, Failure::Refused),
    ]
}

/// The outcomes by the policy `Local` that kube-proxy's ipvs mode does not have.
fn policy_probes() -> Vec<ProbePlan> {
    let elsewhere = ["tcp://203.0.113.3:80", "tcp://192.168.10.1:30083"];
    vec![
        reach(&["b"], &LOCAL[..2], &["a", "c", "d"], "own"),
        reach(&["node-1"], &LOCAL[..3], &["a", "c", "d"], ""),
        reach(&["b"], &elsewhere, &["c", "d"], "own"),
        fail(&["client"], &elsewhere, Failure::TimedOut),
    ]
}

/// 8 clients, each of which keeps to one of these pods at all of these targets.
fn keeps_one_of(pods: &[&str], to: &[&str], change: impl FnOnce(&mut Reaches)) -> ProbePlan {
    let mut reaches = Reaches::all_of(pods.iter().copied());
    reaches.same_endpoint = true;
    change(&mut reaches);
    let plan = ProbePlan::new(&["client"], &targets(to), Expectation::Reaches(reaches));
    ProbePlan { sources: 8, ..plan }
}

/// The expected outcome for the Service that is gone.
pub fn nothing_of_gone() -> ProbePlan {
    let to = targets(&["tcp://192.168.10.1:30087"]);
    ProbePlan::new(&["client"], &to, Expectation::Fails(Failure::Refused))
}

/// 8 clients of the Service with affinity, whose endpoint is remembered or compared; with ipvs mode
/// on either side at the cluster IP alone.
pub fn sticky_clients(is_ipvs: bool, change: impl FnOnce(&mut Reaches)) -> [ProbePlan; 1] {
    let frontends = if is_ipvs { &STICKY[..1] } else { &STICKY };
    [keeps_one_of(&PODS, frontends, change)]
}

/// Whether the kernel has IPVS, for tests that need it: as in the virtual machine of
/// `make test-ipvs`. What needs it is recorded as skipped otherwise.
pub fn has_ipvs() -> bool {
    let has = backend::selected().unwrap().contains(&"ipvs");
    if !has {
        test_netns::skipped("ipvs is no selected backend");
    }
    has
}

/// Whether genuine kube-proxy is of release 1.30, whose nftables mode, an alpha, has older base
/// chains, and ends the UDP flows of all Services at its start; and which leaves, in another mode
/// than iptables mode, chains of that.
pub fn is_1_30() -> bool {
    kube_proxy::release().unwrap() == Some(Release::V1_30)
}

/// A rig with the manifests of `cluster`, in which no proxy runs yet.
pub fn prepare(mode: &str, cluster: Cluster) -> Rig {
    let case = Case {
        name: "swap".to_owned(),
        cluster_cidr: true,
        manifests: cluster.manifests().to_owned(),
        files: BTreeMap::new(),
        ..Case::default()
    };
    Rig::prepare(&case, mode, &binary::find().unwrap()).unwrap()
}

pub fn node(rig: &Rig) -> NetNs {
    rig.topology.node().namespace.clone()
}

/// The traffic while a proxy takes over: the place of the clients, which of its addresses they
/// have, and their target.
///
/// IPVS takes the answers of an endpoint to one port of a client for those of one connection, so
/// clients of several Services must not share an address by chance.
const LOAD: [(&str, usize, &str); 9] = [
    ("client", 1, "tcp://10.96.0.10:80"),
    ("client", 0, "udp://192.168.10.1:30080"),
    // Allowed by the source ranges.
    ("client", 0, "tcp://203.0.113.1:80"),
    ("client", 2, "tcp://203.0.113.2:80"),
    ("b", 0, "udp://10.96.0.10:80"),
    ("b", 0, "tcp://[fd00:10:96::10]:80"),
    ("b", 0, "tcp://203.0.113.3:80"),
    ("node-1", 0, "tcp://192.168.10.1:30080"),
    ("client", 3, "tcp://10.96.0.50:80"),
];

/// Traffic to many frontends: some hundred new connections in a second, and some that are kept.
pub struct Load(Vec<(&'static str, &'static str, LoadGenerator)>);

impl Load {
    pub fn start(rig: &Rig) -> Self {
        let start = |(from, address, to): (&'static str, usize, &'static str)| {
            let place = rig.place(from).unwrap();
            let target: Target = to.parse().unwrap();
            let plan = LoadPlan {
                workers: 1,
                persistent: 2,
                // A machine that is busy with the load alone would not get to the take-over.
                pause: scaled(Duration::from_millis(20)),
                interval: scaled(Duration::from_millis(50)),
                // A busy machine must not look like a lost connection.
                timeout: scaled(Duration::from_secs(5)),
                // Longer than any take-over.
                duration: scaled(Duration::from_secs(60)),
                source: Some(place.addresses[address].of_family(target.address.ip())),
                ..LoadPlan::new(&place.namespace, target)
            };
            (from, to, LoadGenerator::start(&plan))
        };
        let load = Self(LOAD.into_iter().map(start).collect());
        thread::sleep(scaled(Duration::from_millis(400)));
        load
    }

    /// Goes on for a moment, and then nothing may have failed.
    pub fn assert_nothing_lost(self) {
        let (mut connections, mut requests) = (0, 0);
        for (what, report) in self.finish() {
            let (new, kept) = (&report.new_connections, &report.persistent);
            assert_eq!(new.failed() + kept.failed(), 0, "{what}: {new:?} {kept:?}");
            assert!(new.attempts > 10 && kept.attempts > 10, "{what}: hardly any traffic");
            connections += new.attempts;
            requests += kept.attempts;
        }
        println!("{connections} connections, {requests} requests over kept ones, none lost");
    }

    /// Goes on for a moment, and then only connections that were open at one moment may have
    /// failed: the kept ones, and the one that each worker had just opened.
    pub fn assert_only_open_ones_lost(self) {
        let (mut connections, mut ended) = (0, 0);
        for (what, report) in self.finish() {
            let (new, kept) = (&report.new_connections, &report.persistent);
            assert!(new.failed() <= 1, "{what}: {new:?} {kept:?}");
            assert!(new.attempts > 10, "{what}: hardly any traffic");
            connections += new.attempts;
            ended += kept.failed();
        }
        assert!(ended > 0, "no connection ended: docs/swap.md is wrong");
        println!("{connections} connections; {ended} kept ones ended");
    }

    fn finish(self) -> Vec<(String, LoadReport)> {
        thread::sleep(scaled(Duration::from_millis(400)));
        let finish = |(from, to, load): (&str, &str, LoadGenerator)| {
            (format!("{from} to {to}"), load.finish().unwrap())
        };
        self.0.into_iter().map(finish).collect()
    }
}

/// kube-proxy, in one of its modes.
pub enum KubeProxy {
    Nftables(NftablesMode),
    Iptables(IptablesMode),
    Ipvs(IpvsMode),
}

impl KubeProxy {
    pub fn nftables() -> Self {
        Self::Nftables(NftablesMode::default())
    }

    pub fn iptables(flavour: Flavour) -> Self {
        Self::Iptables(IptablesMode { flavour })
    }

    pub fn ipvs(flavour: Flavour) -> Self {
        Self::Ipvs(IpvsMode { flavour })
    }

    pub fn sync(&mut self, node: &NetNs, cluster: Cluster) {
        match self {
            Self::Nftables(mode) => mode.sync(node, cluster).unwrap(),
            Self::Iptables(mode) => mode.sync(node, cluster).unwrap(),
            Self::Ipvs(mode) => mode.sync(node, cluster).unwrap(),
        }
    }
}

/// Switchyard's rules and whatever else it makes in a mode, in a form that can be compared.
pub fn contents(node: &NetNs, mode: &str, flavour: Flavour) -> Vec<String> {
    let mut contents: Vec<String> = match mode {
        "nftables" => IpFamily::ALL
            .iter()
            .map(|family| format!("{:#?}", Listing::read(node, *family).unwrap()))
            .collect(),
        // Jumps stand in the order of their insertion.
        _ => IpFamily::ALL
            .iter()
            .flat_map(|family| programs::save(flavour, node, *family).unwrap())
            .collect(),
    };
    if mode == "ipvs" {
        contents.extend(IpvsMode::contents(node).unwrap());
    }
    contents.sort();
    contents
}

/// Fails with the lines that only one of two lists has, if they differ.
#[track_caller]
pub fn assert_same(before: &[String], after: &[String]) {
    if let Err(difference) = compare(before, after) {
        panic!("{difference}");
    }
}

/// Returns the lines that only one of two lists has; an error if they differ.
pub fn compare(before: &[String], after: &[String]) -> Result<(), String> {
    let only_in = |these: &[String], others: &[String]| {
        these.iter().filter(|line| !others.contains(line)).cloned().collect::<Vec<_>>()
    };
    match before == after {
        true => Ok(()),
        false => Err(format!(
            "only before: {:#?}\nonly after: {:#?}",
            only_in(before, after),
            only_in(after, before)
        )),
    }
}

/// Runs `switchyard --cleanup` with a mode that may be configured.
pub fn clean_up(rig: &Rig, mode: &str) {
    let arguments = ["--cleanup".to_owned(), format!("--proxy-mode={mode}")];
    let output = rig.proxy.command(&arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{mode}: {}: {said}", output.status);
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
