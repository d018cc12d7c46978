//! Random clusters: small and crowded, so that objects get into each other's way.

use std::net::IpAddr;

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{Builder, NODE, builders, endpoint, node, service, service_cidr, slice};
use crate::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::LbAlgorithm,
    objects::{Event, Kind, Object, ObjectKey},
    proxier::Capabilities,
};

/// Names of Services; slices belong to one of them, or to none.
const SERVICES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Cluster IPs of Services; several may name the same one.
const CLUSTER_IPS: [&str; 7] = [
    "10.0.0.1",
    "10.0.0.2",
    "010.0.0.003",
    "fd00::1",
    "10.0.0.4,fd00::4",
    "fd00::2,10.0.0.2",
    "10.0.0.6",
];
/// External and load balancer addresses; some are Services' cluster IPs.
const EXTERNAL_IPS: [&str; 6] =
    ["192.0.2.1", "192.0.2.2", "10.0.0.1", "2001:db8::1", "fd00::1", "127.0.0.1"];
const PORT_NAMES: [&str; 3] = ["", "http", "dns"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
const ZONES: [&str; 2] = ["east", "west"];
const NODES: [&str; 2] = [NODE, "node-2"];
const SOURCE_RANGES: [&str; 8] = [
    "198.51.100.0/24",
    "198.51.100.128/25",
    "198.51.101.0/24",
    "10.1.0.0/16",
    "0.0.0.0/0",
    "2001:db8:1::/64",
    "::/0",
    "nonsense",
];
const SERVICE_CIDRS: [&str; 5] =
    ["10.0.0.0/24", "10.0.0.0/16", "10.0.1.0/24", "fd00::/112", "nonsense"];

/// The annotations of Services about their connections.
const LB_ALGORITHMS: [(&str, &str); 8] = [
    ("switchyard/lb-algorithm", "round-robin"),
    ("switchyard/lb-algorithm", "source-hash"),
    ("switchyard/lb-algorithm", "maglev"),
    ("switchyard/lb-algorithm", " least-connections "),
    ("switchyard/lb-algorithm", "nonsense"),
    ("service.cilium.io/lb-algorithm", "Maglev"),
    ("lb.projectcalico.org/external-traffic-strategy", "maglev"),
    ("kube-router.io/service.scheduler", "sh"),
];
/// The annotations of slices about the weights of their endpoints.
const WEIGHTS: [(&str, &str); 8] = [
    ("switchyard/weight", "0"),
    ("switchyard/weight", "2"),
    ("switchyard/weight", "6"),
    ("switchyard/weight", "nonsense"),
    ("service.cilium.io/weight", "4"),
    ("switchyard/weights", "10.1.0.1=0, 10.1.0.2=3, fd01::1=3, fd01::2=0"),
    ("switchyard/weights", "10.1.0.3=40000,fd01::3=65535"),
    ("switchyard/weights", "10.1.0.3=1,=,10.1.0.4=nonsense,fd01::5=4"),
];

/// Sequences of one to `most` events, of all kinds, about a few objects.
pub fn arbitrary_events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    vec(arbitrary_event(), 1..=most.max(1))
}

/// An event.
pub fn arbitrary_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => arbitrary_builder().prop_map(|made| made.apply()),
        3 => arbitrary_builder().prop_map(|made| made.delete()),
        1 => arbitrary_builder().prop_map(|made| Event::Malformed {
            object: made.key(),
            field: "spec".to_owned(),
            message: "cannot be read".to_owned(),
        }),
        1 => select(&Kind::ALL).prop_map(Event::Listed),
        1 => arbitrary_replace(),
    ]
}

/// A list of all objects of one kind.
fn arbitrary_replace() -> impl Strategy<Value = Event> {
    let of_one_kind = prop_oneof![
        (Just(Kind::Service), vec(services().boxed(), 0..5)),
        (Just(Kind::EndpointSlice), vec(slices().boxed(), 0..8)),
        (Just(Kind::Node), vec(nodes().boxed(), 0..2)),
        (Just(Kind::ServiceCidr), vec(service_cidrs().boxed(), 0..2)),
    ];
    (of_one_kind, 0..3usize).prop_map(|((kind, made), unreadable)| {
        let mut objects: Vec<Object> = made.iter().map(Builder::object).collect();
        // A list has each object once, and the unreadable ones apart.
        let mut seen = std::collections::HashSet::new();
        objects.retain(|object| seen.insert(object.key()));
        let rest = objects.split_off(unreadable.min(objects.len()));
        let malformed: Vec<ObjectKey> = objects.iter().map(Object::key).collect();
        Event::Replace { kind, objects: rest, malformed }
    })
}

/// An object of any kind, in the making.
pub fn arbitrary_builder() -> impl Strategy<Value = Builder> {
    prop_oneof![5 => services(), 6 => slices(), 1 => nodes(), 1 => service_cidrs()]
}

fn services() -> impl Strategy<Value = Builder> {
    let port = (select(&PORT_NAMES), select(&PROTOCOLS), 80..83i64, option::of(30000..30003i64));
    let identity = (select(&SERVICES), select(&CLUSTER_IPS), 1..4u8, select(&KINDS));
    let policies = (any::<bool>(), any::<bool>(), option::weighted(0.3, 1..5i64));
    let addresses = (
        vec(select(&EXTERNAL_IPS), 0..3),
        vec((select(&EXTERNAL_IPS), select(&["VIP", "VIP", "Proxy"])), 0..3),
        vec(select(&SOURCE_RANGES), 0..4),
    );
    let health_check = select(&[0, 31000, 31001, 70000]);
    let lb_algorithm = option::weighted(0.3, select(&LB_ALGORITHMS));
    (identity, vec(port, 0..4), policies, addresses, health_check, lb_algorithm).prop_map(
        |(identity, ports, policies, (ips, ingress, ranges), health_check, lb_algorithm)| {
            let (name, ip, day, kind) = identity;
            let (external, internal, affinity) = policies;
            let mut made = service(name, ip)
                .set("spec.type", kind)
                .set("metadata.creationTimestamp", format!("2026-01-0{day}T00:00:00Z"))
                .set("spec.externalIPs", json!(ips))
                .set("spec.loadBalancerSourceRanges", json!(ranges))
                .set("spec.externalTrafficPolicy", policy(external))
                .set("spec.internalTrafficPolicy", policy(internal))
                .set("spec.healthCheckNodePort", health_check);
            if let Some((annotation, value)) = lb_algorithm {
                made = made.annotation(annotation, value);
            }
            for (name, protocol, port, node_port) in ports {
                made = made.port(name, protocol, port);
                if let Some(number) = node_port {
                    made = made.node_port(number);
                }
            }
            let ingress: Vec<Value> =
                ingress.iter().map(|(ip, mode)| json!({"ip": ip, "ipMode": mode})).collect();
            made = made.set("status.loadBalancer.ingress", json!(ingress));
            if let Some(seconds) = affinity {
                made = made
                    .set("spec.sessionAffinity", "ClientIP")
                    .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds);
            }
            made
        },
    )
}

/// Some Services of the kinds that proxies leave alone are among them.
const KINDS: [&str; 6] =
    ["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ClusterIP", "ExternalName"];

fn policy(is_local: bool) -> &'static str {
    if is_local { "Local" } else { "Cluster" }
}

/// EndpointSlices of the Services that [`services`] makes; which one may change while the slice
/// keeps its name.
fn slices() -> impl Strategy<Value = Builder> {
    let port = (option::weighted(0.9, select(&PORT_NAMES)), select(&PROTOCOLS), 8080..8082i64);
    let identity = (select(&SERVICES), select(&SERVICES), 0..2u8, any::<bool>());
    let weights = prop_oneof![2 => Just(Vec::new()), 1 => vec(select(&WEIGHTS), 1..3)];
    (identity, any::<bool>(), vec(port, 1..5), vec(arbitrary_endpoint(), 0..6), weights).prop_map(
        |((file, owner, suffix, moves), is_v6, ports, endpoints, weights)| {
            let owner = if moves { owner } else { file };
            let mut made = slice(file, &suffix.to_string())
                .label("kubernetes.io/service-name", owner)
                .set("addressType", if is_v6 { "IPv6" } else { "IPv4" });
            let ports: Vec<Value> = ports
                .iter()
                .map(|(name, protocol, port)| {
                    json!({"name": name, "protocol": protocol, "port": port})
                })
                .collect();
            made = made.set("ports", json!(ports));
            for (annotation, value) in weights {
                made = made.annotation(annotation, value);
            }
            for (number, mut endpoint) in endpoints {
                let ip = if is_v6 { format!("fd01::{number}") } else { format!("10.1.0.{number}") };
                endpoint["addresses"] = json!([ip]);
                made = made.endpoint(endpoint);
            }
            made
        },
    )
}

/// The last part of an endpoint's address, and the endpoint.
fn arbitrary_endpoint() -> impl Strategy<Value = (u8, Value)> {
    let conditions = (
        option::of(prop::bool::weighted(0.7)),
        option::of(any::<bool>()),
        option::weighted(0.4, any::<bool>()),
    );
    let hints = (
        option::weighted(0.6, vec(select(&ZONES), 0..3)),
        option::weighted(0.4, vec(select(&NODES), 0..3)),
    );
    (1..7u8, select(&NODES), conditions, hints).prop_map(
        |(number, node, (ready, serving, terminating), (zones, nodes))| {
            let named = |names: Option<Vec<&str>>| {
                json!(names.map(|names| {
                    names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()
                }))
            };
            let mut made = endpoint("", node);
            made["conditions"] =
                json!({"ready": ready, "serving": serving, "terminating": terminating});
            made["hints"] = json!({"forZones": named(zones), "forNodes": named(nodes)});
            (number, made)
        },
    )
}

/// This node's Node, now and then another's.
fn nodes() -> impl Strategy<Value = Builder> {
    let zone = option::of(select(&["", "east", "west"]));
    let ips = select(&["10.1.2.3", "192.0.2.9", "fd02::1", "127.0.0.1", "nonsense"]);
    let pod_cidrs = vec(select(&["10.1.0.0/24", "fd01::/64", "nonsense"]), 0..3);
    (select(&[NODE, NODE, NODE, "node-2"]), zone, ips, pod_cidrs, any::<bool>()).prop_map(
        |(name, zone, ip, pod_cidrs, is_leaving)| {
            let mut made = node(name, ip).set("spec.podCIDRs", json!(pod_cidrs));
            if let Some(zone) = zone {
                made = made.label("topology.kubernetes.io/zone", zone);
            }
            if is_leaving {
                let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler"}]);
                made = made.set("spec.taints", taint);
            }
            made
        },
    )
}

fn service_cidrs() -> impl Strategy<Value = Builder> {
    (select(&["kubernetes", "more"]), vec(select(&SERVICE_CIDRS), 0..3))
        .prop_map(|(name, cidrs)| service_cidr(name, &cidrs))
}

/// A configuration of the node called [`NODE`].
pub fn arbitrary_config() -> impl Strategy<Value = NodeConfig> {
    let net = |text: &str| builders::net(text);
    let local_pods = prop_oneof![
        Just(LocalPodsConfig::default()),
        Just(LocalPodsConfig::ClusterCidr(vec![net("10.1.0.0/16"), net("10.2.0.0/16")])),
        Just(LocalPodsConfig::ClusterCidr(vec![net("fd01::/64"), net("10.1.0.0/16")])),
        Just(LocalPodsConfig::NodeCidr),
        Just(LocalPodsConfig::BridgeInterface("cni0".to_owned())),
        Just(LocalPodsConfig::InterfaceNamePrefix("veth".to_owned())),
    ];
    let node_ports = vec(
        prop_oneof![
            Just(NodePortAddressConfig::Primary),
            Just(NodePortAddressConfig::Localhost),
            Just(NodePortAddressConfig::Cidr(net("192.0.2.0/24"))),
            Just(NodePortAddressConfig::Cidr(net("10.1.2.3/32"))),
            Just(NodePortAddressConfig::Cidr(net("fd02::/64"))),
            Just(NodePortAddressConfig::Cidr(net("::/0"))),
        ],
        0..3,
    );
    let bind = option::weighted(
        0.3,
        select(vec![IpAddr::from([192, 0, 2, 9]), IpAddr::from([0, 0, 0, 0])]),
    );
    let gates = (any::<bool>(), prop::bool::weighted(0.8), any::<bool>());
    let lb_algorithm = option::weighted(0.3, select(&LbAlgorithm::ALL));
    (gates, local_pods, node_ports, bind, lb_algorithm).prop_map(
        |(
            (masquerade_all, external_ips, localhost_node_ports),
            local_pods,
            node_port_addresses,
            bind_address,
            lb_algorithm,
        )| {
            NodeConfig {
                masquerade_all,
                local_pods,
                node_port_addresses,
                localhost_node_ports,
                bind_address,
                external_ips,
                lb_algorithm,
                ..NodeConfig::new(NODE)
            }
        },
    )
}

/// Capabilities of a backend: connections at random, and other algorithms for pools of some sizes,
/// of which any may be the default.
pub fn arbitrary_capabilities() -> impl Strategy<Value = Capabilities> {
    let lb_algorithm = (select(&LbAlgorithm::ALL), select(&[1, 3, usize::MAX]));
    let flags = (any::<bool>(), prop::bool::weighted(0.3));
    (vec(lb_algorithm, 0..8), select(&LbAlgorithm::ALL), flags).prop_map(
        |(algorithms, default, flags)| {
            let (weights, listed) = flags;
            let add = |capabilities: Capabilities, (lb_algorithm, most)| {
                capabilities.with_at_most(lb_algorithm, most)
            };
            let capabilities = algorithms
                .into_iter()
                .fold(Capabilities::KUBE_PROXY, add)
                .with(LbAlgorithm::Random);
            let capabilities = capabilities.with_default_algorithm(default);
            let capabilities =
                if listed { capabilities.with_listed_node_ports() } else { capabilities };
            // A backend that drains connections has weights.
            if weights { capabilities.with_weights().with_draining_tcp() } else { capabilities }
        },
    )
}
