//! The rules for a sample cluster, word for word. `UPDATE_GOLDEN=1` writes the files anew.

use std::{env, fs, path::Path, sync::Arc};

use crate::common::{Tables, in_namespace, start};
use serde_json::json;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    model::IpFamily,
    objects::Event,
    state::{Action, State},
    testing::{NODE, endpoint, node, service, slice},
    track::Tracker,
};
use switchyard_iptables::{Flavour, IptablesConfig, render};

/// One Service of each kind that makes a difference.
fn cluster() -> Vec<Event> {
    let ports = json!([{"name": "http", "port": 8080}]);
    let two = |name: &str| {
        slice(name, "4")
            .set("ports", ports.clone())
            .endpoint(endpoint("10.1.0.5", NODE))
            .endpoint(endpoint("10.1.1.5", "elsewhere"))
            .endpoint(endpoint("10.1.1.6", "elsewhere"))
    };
    let elsewhere = |name: &str| {
        slice(name, "4").set("ports", ports.clone()).endpoint(endpoint("10.1.1.7", "elsewhere"))
    };
    let six = slice("plain", "6")
        .set("addressType", "IPv6")
        .set("ports", ports.clone())
        .endpoint(endpoint("fd01::5", NODE))
        .endpoint(endpoint("fd01:1::5", "elsewhere"));
    vec![
        node(NODE, "192.168.0.1").apply(),
        service("plain", "10.96.0.1,fd00::1").port("http", "TCP", 80).apply(),
        two("plain").apply(),
        six.apply(),
        service("sticky", "10.96.0.2,fd00::2")
            .port("http", "UDP", 80)
            .node_port(30002)
            .set("spec.type", "NodePort")
            .set("spec.sessionAffinity", "ClientIP")
            .apply(),
        two("sticky").set("ports.0.protocol", "UDP").apply(),
        service("guarded", "10.96.0.3")
            .port("http", "TCP", 80)
            .node_port(30003)
            .set("spec.type", "LoadBalancer")
            .set("spec.externalTrafficPolicy", "Local")
            .set("spec.loadBalancerSourceRanges", json!(["203.0.113.0/24"]))
            .set("spec.externalIPs", json!(["198.51.100.3"]))
            .set("spec.healthCheckNodePort", 31003)
            .ingress("192.0.2.3")
            .apply(),
        two("guarded").apply(),
        service("far", "10.96.0.4")
            .port("http", "TCP", 80)
            .node_port(30004)
            .set("spec.type", "NodePort")
            .set("spec.externalTrafficPolicy", "Local")
            .set("spec.internalTrafficPolicy", "Local")
            .apply(),
        elsewhere("far").apply(),
        service("none", "10.96.0.5,fd00::5")
            .port("http", "TCP", 80)
            .node_port(30005)
            .set("spec.type", "LoadBalancer")
            .set("spec.loadBalancerSourceRanges", json!(["203.0.113.0/24"]))
            .ingress("192.0.2.5")
            .apply(),
    ]
}

/// The sample, resolved.
pub fn state() -> State {
    let pods = LocalPodsConfig::ClusterCidr(vec![
        "10.1.0.0/16".parse().expect("a network"),
        "fd01::/16".parse().expect("a network"),
    ]);
    let mut tracker = Tracker::new({
        let mut made = NodeConfig::new(NODE);
        made.local_pods = pods;
        made.localhost_node_ports = true;
        made
    });
    for event in cluster() {
        assert_eq!(tracker.apply(event), []);
    }
    assert_eq!(tracker.resolve(), []);
    tracker.state().clone()
}

/// Renders the sample, without the rule that depends on a sysctl of the host.
fn rendered(family: IpFamily) -> String {
    let text = render(&IptablesConfig::default(), &state(), family);
    text.replace("-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n", "")
}

fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name)
}

#[test]
fn rules_are_word_for_word() {
    for (family, name) in [(IpFamily::V4, "v4.rules"), (IpFamily::V6, "v6.rules")] {
        let (text, file) = (rendered(family), golden(name));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, &text).expect("the file can be written");
        }
        let expected = fs::read_to_string(&file).expect("the file is there");
        assert_eq!(text, expected, "{name}");
    }
}

/// The first packets of all connections pass the chains that Services share, so that the ranges of
/// one Service, with and without endpoints, are not there.
#[test]
fn source_ranges_are_in_chains_of_their_own() {
    let [mut state, mut delivered] = [state(), state()];
    let ranges = (0..=255).map(|n| format!("203.0.{n}.0/24").parse().expect("a range"));
    let ranges: Arc<[_]> = ranges.collect();
    let limited = |state: &mut State, by_ipvs| {
        for port in state.service_ports.values_mut() {
            for frontend in &mut Arc::make_mut(port).frontends {
                let Some(sources) = &mut frontend.allowed_sources else { continue };
                *sources = ranges.clone();
                if by_ipvs && frontend.action == Action::ExternalLocal {
                    frontend.action = Action::DeliveredLocal;
                }
            }
        }
    };
    limited(&mut state, false);
    limited(&mut delivered, true);
    let mut beneath_ipvs = IptablesConfig::default();
    beneath_ipvs.beneath_ipvs = true;
    // By IPVS, clients on the node are told apart in the nat table as well.
    for (config, state, chains) in
        [(IptablesConfig::default(), state, 2), (beneath_ipvs, delivered, 3)]
    {
        let rules = render(&config, &state, IpFamily::V4);
        let (own, shared): (Vec<_>, Vec<_>) = rules
            .lines()
            .filter(|line| line.contains("203.0."))
            .partition(|line| line.starts_with("-A KUBE-FW-"));
        assert_eq!((own.len(), shared), (chains * ranges.len(), Vec::new()));
    }
}

/// After any program has restored the rules, the backend has nothing to change.
#[test]
fn both_flavours_print_the_rules_as_they_are_written() {
    for flavour in Flavour::ALL {
        in_namespace(move || {
            for (tables, family) in Tables::both(flavour).iter().zip(IpFamily::ALL) {
                tables.restore(&render(&IptablesConfig::default(), &state(), family));
            }
            let mut node = start(flavour, NodeConfig::new(NODE));
            let report = switchyard_core::testing::sync_first(&mut node.proxier, &state());
            assert_eq!(report.expect("a sync").bytes, 0, "{flavour}");
        });
    }
}

/// Where the kernel takes such packets for valid, there is nothing to drop.
#[test]
fn invalid_packets_are_dropped_unless_the_kernel_is_liberal() {
    in_namespace(|| {
        let rules = || render(&IptablesConfig::default(), &state(), IpFamily::V4);
        // Rules about connections load the kernel's connection tracking.
        Tables::v4(Flavour::Nft).restore(&rules());
        for (liberal, drops) in [("0", true), ("1", false), ("0", true)] {
            let setting = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
            fs::write(setting, liberal).expect("the setting is there");
            assert_eq!(rules().contains("--ctstate INVALID -j DROP"), drops, "{liberal}");
        }
    });
}
