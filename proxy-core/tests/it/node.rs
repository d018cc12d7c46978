//! Settings of the whole node: local detection, node port addresses, ranges of cluster IPs.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::json;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::{IpFamily, PerFamily, parse_cidr},
    objects::Kind,
    proxier::{Capabilities, Mode},
    state::{Action, LocalPods, Masquerade, NodePortAddresses},
    testing::{Builder, endpoint, node, service, service_cidr, slice},
};

use crate::support::{Cluster, fields};

fn net(text: &str) -> IpNet {
    parse_cidr(text).unwrap()
}

fn this(ips: &[&str]) -> Builder {
    let addresses: Vec<_> =
        ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    node("node-1", "").set("status.addresses", addresses)
}

fn local_pods(cluster: &Cluster) -> [Option<LocalPods>; 2] {
    let of = &cluster.tracker.state().node.local_pods;
    [of.v4.clone(), of.v6.clone()]
}

#[test]
fn local_pods_are_told_by_the_first_network_of_each_family() {
    let of = |nets: &[&str]| {
        let nets = nets.iter().map(|text| net(text)).collect();
        let mut cluster =
            Cluster::with(|config| config.local_pods = LocalPodsConfig::ClusterCidr(nets));
        cluster.events([]);
        local_pods(&cluster)
    };
    let source = |text: &str| Some(LocalPods::Source(net(text)));
    assert_eq!(of(&[]), [None, None]);
    assert_eq!(of(&["10.1.0.0/16", "10.2.0.0/16"]), [source("10.1.0.0/16"), None]);
    let mixed = ["fd01::/64", "10.1.0.0/16", "fd02::/64"];
    assert_eq!(of(&mixed), [source("10.1.0.0/16"), source("fd01::/64")]);
}

#[test]
fn the_nodes_pod_networks_come_and_change_with_the_node() {
    let mut cluster = Cluster::with(|config| config.local_pods = LocalPodsConfig::NodeCidr);
    let web = service("web", "10.0.0.1").port("", "TCP", 80);
    let of_web = slice("web", "1").port("", "TCP", 80).endpoint(endpoint("10.1.0.1", "node-2"));
    cluster.apply(&[web, of_web]);
    let masquerade = |cluster: &Cluster| match cluster.port("web", "").frontends[0].action {
        Action::Pool { masquerade, .. } => masquerade,
        other => panic!("{other:?}"),
    };
    assert_eq!(local_pods(&cluster), [None, None]);
    assert_eq!(masquerade(&cluster), Masquerade::Never);
    cluster.tracker.mark_synced();
    let with = |cidrs: &[&str]| this(&["192.0.2.1"]).set("spec.podCIDRs", json!(cidrs));
    let problems = cluster.apply(&[with(&["x", "010.1.2.3/24", "10.1.1.0/24", "fd01::/64"])]);
    assert_eq!(fields(&problems), ["Node node-1: spec.podCIDRs[0]"]);
    let source = |text: &str| Some(LocalPods::Source(net(text)));
    assert_eq!(local_pods(&cluster), [source("10.1.2.0/24"), source("fd01::/64")]);
    assert_eq!(masquerade(&cluster), Masquerade::ExceptLocalPods);
    assert!(cluster.tracker.state().node.pod_networks.is_empty(), "the kernel needs none");
    assert!(cluster.tracker.transition().node_changed());
    assert_eq!(cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
    // Other pod networks: the node changes, no Service does.
    cluster.apply(&[with(&["10.1.9.0/24"])]);
    assert!(cluster.tracker.transition().node_changed());
    assert_eq!(cluster.take_changes(), [""; 0]);
    // A family that the Node has none of for now keeps the last one.
    let both = [source("10.1.9.0/24"), source("fd01::/64")];
    assert_eq!(local_pods(&cluster), both);
    cluster.delete(&[with(&[])]);
    assert_eq!(local_pods(&cluster), both);
    cluster.apply(&[with(&[])]);
    assert_eq!(local_pods(&cluster), both, "created anew");
    cluster.apply(&[with(&["fd09::/64"])]);
    assert_eq!(local_pods(&cluster), [source("10.1.9.0/24"), source("fd09::/64")]);
}

#[test]
fn node_ports_stay_where_they_are_while_the_node_has_no_address() {
    let mut cluster = Cluster::with(|config| configure(config, &["primary"]));
    cluster.apply(&[this(&[])]);
    assert_eq!(addresses(&cluster), [None, None], "no address was ever known");
    cluster.apply(&[this(&["192.0.2.1", "2001:db8::1"])]);
    let both = [only(&["192.0.2.1"]), only(&["2001:db8::1"])];
    assert_eq!(addresses(&cluster), both);
    // The Node is created anew, and its controller fills in the addresses later, one by one.
    cluster.delete(&[this(&[])]);
    assert_eq!(cluster.tracker.node(), None);
    for ips in [&[][..], &["2001:db8::1"]] {
        cluster.apply(&[this(ips)]);
        assert_eq!(addresses(&cluster), both, "{ips:?}");
    }
    cluster.apply(&[this(&["192.0.2.9"])]);
    assert_eq!(addresses(&cluster), [only(&["192.0.2.9"]), only(&["2001:db8::1"])]);
    assert_eq!(cluster.tracker.node().unwrap().addresses.len(), 2);
}

const INTERFACES: [&str; 6] =
    ["127.0.0.1", "::1", "192.0.2.1", "192.0.2.200", "10.9.0.1", "2001:db8::1"];

/// Where node ports are served in each family, on a node with these interfaces, by a backend with
/// these capabilities.
fn served_by(
    capabilities: Capabilities,
    configure: impl FnOnce(&mut NodeConfig),
    node_ips: &[&str],
    interfaces: Option<&[&str]>,
) -> [Option<Vec<String>>; 2] {
    let mut cluster = Cluster::with(configure);
    cluster.tracker.set_capabilities(capabilities, Mode::IPVS);
    cluster.apply(&[this(node_ips)]);
    if let Some(interfaces) = interfaces {
        cluster.tracker.set_interface_addresses(interfaces.iter().map(|ip| ip.parse().unwrap()));
        cluster.events([]);
    }
    addresses(&cluster)
}

/// Where node ports are served in each family, on a node with [`INTERFACES`].
fn served(configured: &[&str], node_ips: &[&str]) -> [Option<Vec<String>>; 2] {
    let configure = |config: &mut NodeConfig| configure(config, configured);
    served_by(Capabilities::KUBE_PROXY, configure, node_ips, Some(&INTERFACES))
}

/// Configures these node port addresses, and permits node ports on loopback addresses.
fn configure_with_localhost(config: &mut NodeConfig, configured: &[&str]) {
    configure(config, configured);
    config.localhost_node_ports = true;
}

#[test]
fn node_ports_stay_at_the_internal_address_while_only_an_external_one_is_stated() {
    let mut cluster = Cluster::with(|config| configure(config, &["primary"]));
    let stated = |addresses: &[(&str, &str)]| {
        let address = |(kind, ip): &(&str, &str)| json!({"type": kind, "address": ip});
        let addresses: Vec<_> = addresses.iter().map(address).collect();
        node("node-1", "").set("status.addresses", addresses)
    };
    let external = ("ExternalIP", "203.0.113.1");
    for (now, v4, v6) in [
        // Nothing else is known yet.
        (vec![external], "203.0.113.1", None),
        (vec![("InternalIP", "192.0.2.1"), external], "192.0.2.1", None),
        (vec![external], "192.0.2.1", None),
        (vec![external, ("ExternalIP", "2001:db8::e")], "192.0.2.1", Some("2001:db8::e")),
        (vec![("InternalIP", "2001:db8::1"), external], "192.0.2.1", Some("2001:db8::1")),
        (vec![], "192.0.2.1", Some("2001:db8::1")),
        (vec![("InternalIP", "192.0.2.9"), external], "192.0.2.9", Some("2001:db8::1")),
    ] {
        cluster.apply(&[stated(&now)]);
        assert_eq!(addresses(&cluster), [only(&[v4]), v6.and_then(|ip| only(&[ip]))], "{now:?}");
    }
}

fn configure(config: &mut NodeConfig, configured: &[&str]) {
    config.node_port_addresses = configured
        .iter()
        .map(|text| match *text {
            "primary" => NodePortAddressConfig::Primary,
            "localhost" => NodePortAddressConfig::Localhost,
            cidr => NodePortAddressConfig::Cidr(net(cidr)),
        })
        .collect();
}

/// `None` for all local addresses but loopback.
fn addresses(cluster: &Cluster) -> [Option<Vec<String>>; 2] {
    IpFamily::ALL.map(|family| match cluster.tracker.state().node.node_ports.get(family) {
        NodePortAddresses::AllLocal => None,
        NodePortAddresses::AllWithLoopback => only(&["all"]),
        NodePortAddresses::Only(ips) => Some(ips.iter().map(IpAddr::to_string).collect()),
    })
}

fn only(ips: &[&str]) -> Option<Vec<String>> {
    Some(ips.iter().map(ToString::to_string).collect())
}

#[test]
fn node_ports_are_served_where_configured() {
    let dual = ["192.0.2.1", "2001:db8::1"];
    assert_eq!(served(&[], &dual), [None, None]);
    assert_eq!(served(&["primary"], &dual), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    // A family that nothing is left for serves everywhere, as upstream does.
    assert_eq!(served(&["primary"], &["192.0.2.1"]), [only(&["192.0.2.1"]), None]);
    assert_eq!(served(&["primary"], &[]), [None, None]);
    assert_eq!(served(&["primary"], &["127.0.0.1", "::1"]), [None, None]);
    assert_eq!(served(&["192.0.2.0/24"], &dual), [only(&["192.0.2.1", "192.0.2.200"]), None]);
    assert_eq!(served(&["192.0.2.0/24", "::/0"], &dual)[1], None);
    assert_eq!(served(&["192.0.2.0/24", "0.0.0.0/0"], &dual), [None, None]);
    assert_eq!(served(&["2001:db8::/64", "0.0.0.0/0"], &dual), [None, only(&["2001:db8::1"])]);
    // Loopback never, and addresses the node does not have neither.
    assert_eq!(served(&["127.0.0.0/8"], &dual), [only(&[]), None]);
    assert_eq!(served(&["198.51.100.0/24"], &dual), [only(&[]), None]);
    assert_eq!(
        served(&["primary", "10.9.0.0/16"], &["192.0.2.1"]),
        [only(&["10.9.0.1", "192.0.2.1"]), None]
    );
}

#[test]
fn localhost_serves_node_ports_in_ipv4() {
    let at = |configured: &[&str], node_ips: &[&str], interfaces| {
        let configure = |config: &mut NodeConfig| configure_with_localhost(config, configured);
        served_by(Capabilities::KUBE_PROXY, configure, node_ips, interfaces)
    };
    let dual = ["192.0.2.1", "2001:db8::1"];
    let served = |configured: &[&str]| at(configured, &dual, Some(&INTERFACES));
    assert_eq!(served(&[]), [only(&["all"]), None]);
    assert_eq!(served(&["0.0.0.0/0", "::/0"]), [only(&["all"]), None]);
    assert_eq!(served(&["primary"]), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    let both = only(&["127.0.0.1", "192.0.2.1"]);
    assert_eq!(served(&["primary", "localhost"]), [both.clone(), only(&["2001:db8::1"])]);
    assert_eq!(served(&["192.0.2.1/32", "127.0.0.0/8"]), [both, None]);
    assert_eq!(served(&["127.9.0.0/16"]), [only(&[]), None], "no interface has such an address");
    // Alone, it closes all other addresses of both families; IPv6 cannot serve its own.
    assert_eq!(served(&["localhost"]), [only(&["127.0.0.1"]), only(&[])]);
    assert_eq!(served(&["localhost", "2001:db8::/64"])[0], only(&["127.0.0.1"]));
    // Unless the address that was asked for is not known.
    assert_eq!(at(&["primary", "localhost"], &[], Some(&INTERFACES)), [only(&["all"]), None]);
    assert_eq!(at(&["primary"], &[], Some(&INTERFACES)), [None, None]);
    // Before the interfaces are known.
    assert_eq!(
        at(&["primary", "localhost"], &dual, None),
        [only(&["127.0.0.1", "192.0.2.1"]), only(&["2001:db8::1"])]
    );
    // The permission counts.
    let off = |configured: &[&str]| self::served(configured, &dual);
    assert_eq!(off(&["primary", "localhost"]), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    assert_eq!(off(&["localhost"]), [only(&[]), only(&[])]);
}

const LISTED: Capabilities = Capabilities::KUBE_PROXY.with_listed_node_ports();

#[test]
fn node_ports_are_listed_for_a_backend_that_has_to_know_them() {
    let dual = ["192.0.2.1", "2001:db8::1"];
    let interfaces = [&INTERFACES[..], &["fe80::1", "169.254.0.1", "127.0.0.53"]].concat();
    let with = |configured: &[&str]| {
        served_by(LISTED, |config| configure(config, configured), &dual, Some(&interfaces))
    };
    let all =
        [only(&["10.9.0.1", "169.254.0.1", "192.0.2.1", "192.0.2.200"]), only(&["2001:db8::1"])];
    assert_eq!(with(&[]), all);
    assert_eq!(with(&["0.0.0.0/0", "::/0"]), all);
    // A family that nothing is left for.
    assert_eq!(with(&["192.0.2.0/24"]), [only(&["192.0.2.1", "192.0.2.200"]), all[1].clone()]);
    assert_eq!(with(&["primary"]), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    // Addresses that reach no other node.
    assert_eq!(with(&["fe80::/64", "127.0.0.0/8"]), [only(&[]), only(&[])]);
    let with_localhost = |configured: &[&str]| {
        let localhost = |config: &mut NodeConfig| configure_with_localhost(config, configured);
        served_by(LISTED, localhost, &dual, Some(&interfaces))
    };
    assert_eq!(with_localhost(&[]), all);
    assert_eq!(with_localhost(&["127.0.0.0/8", "192.0.2.1/32"])[0], only(&["192.0.2.1"]));
}

#[test]
fn node_ports_are_listed_before_the_interfaces_are_known() {
    let unknown =
        |configure: fn(&mut NodeConfig), node_ips| served_by(LISTED, configure, node_ips, None);
    let dual = ["192.0.2.1", "2001:db8::1"];
    assert_eq!(unknown(|_| {}, &dual), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    assert_eq!(unknown(|_| {}, &["192.0.2.1"]), [only(&["192.0.2.1"]), only(&[])]);
    assert_eq!(unknown(|_| {}, &["127.0.0.1", "fe80::1"]), [only(&[]), only(&[])]);
    let bound = |config: &mut NodeConfig| config.bind_address = "192.0.2.7".parse().ok();
    assert_eq!(unknown(bound, &dual), [only(&["192.0.2.7"]), only(&["2001:db8::1"])]);
}

#[test]
fn health_checks_are_served_as_configured_though_node_ports_are_listed() {
    let mut cluster = Cluster::with(|config| configure(config, &["192.0.2.0/24"]));
    cluster.tracker.set_interface_addresses(INTERFACES.iter().map(|ip| ip.parse().unwrap()));
    cluster.events([]);
    let configured = cluster.tracker.state().node.node_ports.clone();
    assert_eq!(configured.v6, NodePortAddresses::AllLocal);
    assert_eq!(cluster.tracker.state().node.health_check_addresses, configured);
    cluster.tracker.mark_synced();
    cluster.tracker.set_capabilities(LISTED, Mode::IPVS);
    cluster.events([]);
    assert!(cluster.tracker.transition().node_changed());
    assert_eq!(addresses(&cluster)[1], only(&["2001:db8::1"]));
    assert_eq!(cluster.tracker.state().node.addresses.len(), INTERFACES.len());
    assert_eq!(cluster.tracker.state().node.health_check_addresses, configured);

    let mut cluster = Cluster::with(|config| {
        configure(config, &["primary"]);
        config.health_checks_everywhere = true;
    });
    cluster.apply(&[this(&["192.0.2.1"])]);
    assert_eq!(addresses(&cluster)[0], only(&["192.0.2.1"]));
    let everywhere = PerFamily::from_fn(|_| NodePortAddresses::AllLocal);
    assert_eq!(cluster.tracker.state().node.health_check_addresses, everywhere);

    // Loopback addresses as any others, where they are named.
    for names in [&["127.0.0.0/8", "::1/128"][..], &["localhost"]] {
        for interfaces in [Some(INTERFACES), None] {
            let mut cluster = Cluster::with(|config| configure(config, names));
            let known = interfaces.into_iter().flatten().map(|ip| ip.parse().unwrap());
            if interfaces.is_some() {
                cluster.tracker.set_interface_addresses(known);
            }
            cluster.events([]);
            assert_eq!(addresses(&cluster), [only(&[]), only(&[])]);
            let only = |ip: &str| NodePortAddresses::Only([ip.parse().unwrap()].into());
            let loopback = PerFamily { v4: only("127.0.0.1"), v6: only("::1") };
            let found = &cluster.tracker.state().node.health_check_addresses;
            assert_eq!(*found, loopback, "{names:?} {interfaces:?}");
        }
    }
}

#[test]
fn internal_addresses_come_before_external_ones() {
    let mut cluster = Cluster::with(|config| configure(config, &["primary"]));
    let node = node("node-1", "x").set(
        "status.addresses",
        json!([
            {"type": "Hostname", "address": "node-1"},
            {"type": "ExternalIP", "address": "192.0.2.200"},
            {"type": "ExternalIP", "address": "2001:db8::1"},
            {"type": "InternalIP", "address": "x"},
            {"type": "InternalIP", "address": "192.000.002.001"},
            {"type": "InternalIP", "address": "10.9.0.1"},
        ]),
    );
    assert_eq!(fields(&cluster.apply(&[node])), ["Node node-1: status.addresses[3].address"]);
    // No one says what is on the interfaces: single addresses are taken at their word.
    assert_eq!(addresses(&cluster), [only(&["192.0.2.1"]), only(&["2001:db8::1"])]);
    // The order of the families is that of the Node.
    let both = ["2001:db8::1", "2001:db8::2", "192.0.2.1"];
    cluster.apply(&[this(&both)]);
    let stated = cluster.tracker.node().unwrap().addresses.iter().map(IpAddr::to_string);
    assert_eq!(stated.collect::<Vec<_>>(), [both[0], both[2]]);
    // bindAddress replaces the address of its family.
    for (bind, v4) in [("10.9.0.1", &["10.9.0.1"][..]), ("0.0.0.0", &["192.0.2.1"])] {
        let mut cluster = Cluster::with(|config| {
            configure(config, &["primary"]);
            config.bind_address = bind.parse().ok();
        });
        cluster.apply(&[this(&["192.0.2.1", "2001:db8::1"])]);
        assert_eq!(addresses(&cluster), [only(v4), only(&["2001:db8::1"])]);
    }
}

#[test]
fn interface_addresses_change_the_node_and_no_service() {
    let mut cluster = Cluster::with(|config| configure(config, &["192.0.2.0/24"]));
    cluster.apply(&[service("web", "10.0.0.1").port("", "TCP", 80).node_port(30080)]);
    cluster.tracker.mark_synced();
    cluster.tracker.set_interface_addresses(["192.0.2.5".parse().unwrap()]);
    cluster.events([]);
    assert_eq!(addresses(&cluster)[0], only(&["192.0.2.5"]));
    assert!(cluster.tracker.transition().node_changed());
    assert_eq!(cluster.take_changes(), [""; 0]);
    // The same again, in another order, and one outside.
    let same = ["10.0.0.7".parse().unwrap(), "192.0.2.5".parse().unwrap()];
    cluster.tracker.set_interface_addresses(same);
    cluster.events([]);
    assert!(cluster.tracker.transition().is_empty());
}

#[test]
fn ranges_of_cluster_ips_are_a_union() {
    let mut cluster = Cluster::new();
    let ranges = |cluster: &Cluster| {
        let of = &cluster.tracker.state().node.service_cidrs;
        let all: Vec<String> = of.v4.iter().chain(&of.v6).map(ToString::to_string).collect();
        all.join(" ")
    };
    let one = service_cidr("kubernetes", &["010.96.1.0/12", "fd00::/108"]);
    assert_eq!(cluster.apply([&one]), []);
    assert_eq!(ranges(&cluster), "10.96.0.0/12 fd00::/108");
    assert!(cluster.tracker.transition().node_changed());
    cluster.tracker.mark_synced();
    // The same one, one within, a neighbour, and nonsense.
    let two = service_cidr("more", &["10.96.0.0/12", "10.97.0.0/16", "10.112.0.0/12", "x"]);
    assert_eq!(fields(&cluster.apply([&two])), ["ServiceCIDR more: spec.cidrs[3]"]);
    assert_eq!(ranges(&cluster), "10.96.0.0/11 fd00::/108");
    cluster.tracker.mark_synced();
    cluster.apply([&two]);
    assert!(cluster.tracker.transition().is_empty());
    // What another object lists too stays when one goes.
    cluster.delete(&[one]);
    assert_eq!(ranges(&cluster), "10.96.0.0/11");
    cluster.replace(Kind::ServiceCidr, &[&service_cidr("other", &["10.4.0.0/16"])]);
    assert_eq!(ranges(&cluster), "10.4.0.0/16");
}

#[test]
fn the_node_is_eligible_until_it_is_about_to_go() {
    let mut cluster = Cluster::new();
    let eligible = |cluster: &mut Cluster, node: Builder| {
        cluster.apply(&[node]);
        cluster.tracker.is_node_eligible()
    };
    assert!(!cluster.tracker.is_node_eligible(), "unknown");
    assert!(eligible(&mut cluster, this(&[])));
    let taint = |key: &str| this(&[]).set("spec.taints", json!([{"key": key}]));
    assert!(eligible(&mut cluster, taint("node.kubernetes.io/not-ready")));
    assert!(!eligible(&mut cluster, taint("ToBeDeletedByClusterAutoscaler")));
    assert!(eligible(&mut cluster, this(&[])));
    let leaving = this(&[]).set("metadata.deletionTimestamp", "2026-01-01T00:00:00Z");
    // A Node that is gone leaves the node as its last state has it.
    for (last, is_eligible) in [(leaving, false), (this(&[]), true)] {
        assert_eq!(eligible(&mut cluster, last), is_eligible);
        cluster.replace(Kind::Node, &[&node("node-2", "192.0.2.2")]);
        assert_eq!(cluster.tracker.is_node_eligible(), is_eligible);
    }
}
