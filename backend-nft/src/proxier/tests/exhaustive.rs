//! All ways of all packets while a sync is under way.
//!
//! Each state of a small cluster is followed by each other one. Between any two messages of the
//! sync a packet may come, and wait at any rule while the next one takes effect
//! ([`switchyard_kernel::nftables::testing::Commit`]): it goes to an endpoint of before or of after, and
//! if both serve, to no other end, and masqueraded as before or as after. An endpoint's own
//! packets that go back to the endpoint alone, before or after, are no measure of masquerading.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    thread,
};

use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    model::Protocol,
    objects::Event,
    testing::{Builder, NODE, Stepped, endpoint, service, service_cidr, slice},
};
use switchyard_kernel::nftables::{
    Element, Family, Key, Table,
    testing::{Commit, Fate, Kernel, Packet, Ruleset},
};

use super::{
    super::{NftProxier, parts::UNDIVIDED},
    judge::{self, local_addresses},
    proxier,
};
use crate::layout::{affinity::split_clients_map, lb_chains::endpoint_value, names::KUBE_PROXY};

/// A state of the Service `web`, and of what else changes.
#[derive(Clone)]
struct Shape {
    variant: &'static str,
    pool: Endpoints,
    has_rival: bool,
    config: NodeConfig,
    events: Vec<Event>,
}

impl Shape {
    fn name(&self) -> String {
        let Self { variant, pool, has_rival, config, .. } = self;
        let rival = if *has_rival { ", a rival" } else { "" };
        let node = match (config.masquerade_all, config == &self::config()) {
            (true, _) => ", all masqueraded",
            (false, true) => "",
            (false, false) => ", pods unknown",
        };
        format!("{variant} {pool:?}{rival}{node}")
    }
}

/// Endpoints by the last number of their addresses, each with a weight. 1 is on this node.
type Endpoints = &'static [(u8, u32)];

const POOLS: [Endpoints; 10] = [
    &[],
    &[(1, 1)],
    &[(1, 1), (2, 1)],
    &[(2, 1), (3, 1)],
    &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)],
    // Ten slots, which have a verdict instead of a set.
    &[(2, 1), (3, 9)],
    &[(2, 1)],
    &[(1, 1), (2, 1), (3, 1)],
    &[(2, 1), (3, 1), (4, 1), (5, 1), (6, 1)],
    &[(1, 3), (2, 1)],
];

/// A way in which the Service is served, as fields of the Service.
type Variant = (&'static str, &'static [(&'static str, &'static str)]);

const PLAIN: Variant = ("plain", &[]);
const KEPT: (&str, &str) = ("spec.sessionAffinity", r#""ClientIP""#);
const FOR_AN_HOUR: (&str, &str) =
    ("spec.sessionAffinityConfig", r#"{"clientIP": {"timeoutSeconds": 3600}}"#);
const EXTERNAL_LOCAL: (&str, &str) = ("spec.externalTrafficPolicy", r#""Local""#);
const INTERNAL_LOCAL: (&str, &str) = ("spec.internalTrafficPolicy", r#""Local""#);
const CLUSTER_IP: (&str, &str) = ("spec.type", r#""ClusterIP""#);
const ROUND_ROBIN: (&str, &str) =
    ("metadata.annotations", r#"{"switchyard/lb-algorithm": "round-robin"}"#);
const MAGLEV: (&str, &str) = ("metadata.annotations", r#"{"switchyard/lb-algorithm": "maglev"}"#);

/// The Service with these endpoints. With a rival, an older Service has its external addresses.
fn shape(pool: Endpoints, (variant, fields): Variant, has_rival: bool) -> Shape {
    let set = |made: Builder, (path, value): &(&str, &str)| {
        made.set(path, serde_json::from_str::<serde_json::Value>(value).expect("JSON"))
    };
    let mut web = service("web", "10.96.0.1").port("http", "TCP", 80);
    let is_external = !fields.contains(&CLUSTER_IP);
    if is_external {
        web = web.node_port(30080).ingress("203.0.113.1").set("spec.type", "LoadBalancer");
        web = web.set("spec.healthCheckNodePort", 31000);
    }
    web = fields.iter().fold(web, set);
    let weights: Vec<String> =
        pool.iter().map(|(number, weight)| format!("{}={weight}", ip(*number))).collect();
    let slice = pool.iter().fold(web_slice(), |slice, (number, _)| {
        let on = if *number == 1 { NODE } else { "elsewhere" };
        slice.endpoint(endpoint(&ip(*number), on))
    });
    let slice = slice.annotation("switchyard/weights", weights.join(","));
    let rival = if has_rival { rival().apply() } else { rival().delete() };
    let events = vec![web.apply(), slice.apply(), rival];
    Shape { variant, pool, has_rival, config: config(), events }
}

/// Nothing but the neighbours.
fn absent() -> Shape {
    let events = [service("web", "10.96.0.1"), web_slice(), rival()].map(|made| made.delete());
    let (variant, pool) = ("no Service", POOLS[0]);
    Shape { variant, pool, has_rival: false, config: config(), events: events.into() }
}

fn rival() -> Builder {
    service("rival", "10.96.0.4")
        .port("http", "TCP", 80)
        .node_port(30080)
        .ingress("203.0.113.1")
        .set("spec.type", "LoadBalancer")
        .set("metadata.creationTimestamp", "2025-01-01T00:00:00Z")
}

fn config() -> NodeConfig {
    let mut config = NodeConfig::new(NODE);
    let pods = "10.244.0.0/24".parse().expect("a network");
    config.local_pods = LocalPodsConfig::ClusterCidr(vec![pods]);
    config
}

fn web_slice() -> Builder {
    slice("web", "a").port("http", "TCP", 8080)
}

fn ip(number: u8) -> String {
    format!("10.244.0.{number}")
}

fn at(number: u8) -> SocketAddr {
    format!("{}:8080", ip(number)).parse().expect("an address")
}

/// Services that no change names.
fn neighbours() -> Vec<Event> {
    let made = |name: &str, ip: &str, numbers: &[u8]| {
        let slice = slice(name, "a").port("http", "TCP", 8080);
        let slice = numbers.iter().fold(slice, |slice, number| {
            slice.endpoint(endpoint(&format!("10.244.1.{number}"), "elsewhere"))
        });
        (service(name, ip).port("http", "TCP", 80), slice)
    };
    let (_, rival_slice) = made("rival", "10.96.0.4", &[8, 9]);
    let (plain, plain_slice) = made("neighbour", "10.96.0.2", &[1, 2, 3]);
    let (kept, kept_slice) = made("remembering", "10.96.0.3", &[1, 2]);
    let kept = kept.set("spec.sessionAffinity", "ClientIP");
    let cidr = service_cidr("all", &["10.96.0.0/16"]);
    [plain, plain_slice, kept, kept_slice, rival_slice, cidr]
        .iter()
        .map(|made| made.apply())
        .collect()
}

/// The packets to all frontends, from all kinds of clients, and the endpoints at which the clients
/// are remembered.
fn packets() -> Vec<(Packet, Option<SocketAddr>)> {
    let packet = |source: &str, interface, to: &str, hash| Packet {
        protocol: Protocol::Tcp,
        source: SocketAddr::new(source.parse().expect("an IP"), 40_000),
        destination: to.parse().expect("an address"),
        interface,
        hash,
    };
    let mut packets = Vec::new();
    for to in ["10.96.0.1:80", "203.0.113.1:80", "192.168.1.1:30080"] {
        let mut add = |source: &str, interface, hash, remembered| {
            packets.push((packet(source, interface, to, hash), remembered));
        };
        add("198.51.100.9", Some("eth0"), 0, None);
        add("198.51.100.9", Some("eth0"), 0xb000_0000, None);
        add("10.244.0.77", Some("veth"), 0, None);
        add("192.168.1.1", None, 0, None);
        add("10.244.0.1", Some("veth"), 0, None);
        for number in 1..=3 {
            let client = format!("198.51.100.{}", 100 + number);
            add(&client, Some("eth0"), 0, Some(at(number)));
        }
    }
    for to in ["10.96.0.1:81", "10.96.0.2:80", "10.96.0.3:80", "10.96.0.9:80"] {
        packets.push((packet("198.51.100.9", Some("eth0"), to, 0), None));
    }
    packets
}

/// Has the maps of clients of `web` remember the clients of [`packets`], and no others.
fn remember(ruleset: &mut Ruleset, table: &Table) {
    let maps: Vec<_> = ruleset.sets(table).cloned().collect();
    let of_web =
        |name: &str| split_clients_map(name).is_some_and(|(_, base)| base.contains("/web/"));
    for map in maps.iter().filter(|map| of_web(map.as_str())) {
        ruleset.set_by_packets(table, map, None);
        for number in 1..=3 {
            // The clients of the Local policy are remembered apart, at endpoints on this node.
            if number == 1 || !map.as_str().starts_with("local-") {
                let client = Key::new().address([198, 51, 100, 100 + number].into());
                let element = Element::value(client, endpoint_value(at(number)));
                ruleset.set_by_packets(table, map, Some(element));
            }
        }
    }
}

/// A node with the neighbours, on a model of the kernel.
struct Node {
    kernel: Kernel,
    node: Stepped<NftProxier>,
    table: Table,
    packets: Vec<(Packet, Option<SocketAddr>)>,
    local: BTreeSet<IpAddr>,
    failures: Vec<String>,
}

impl Node {
    fn new(undivided: usize) -> Self {
        let kernel = Kernel::default();
        let mut node = Stepped::new(config(), proxier(kernel.clone(), undivided));
        let local = local_addresses();
        node.tracker.set_interface_addresses(local.clone());
        node.sync(neighbours());
        let table = Table::new(Family::Ip, KUBE_PROXY);
        Self { kernel, node, table, packets: packets(), local, failures: Vec::new() }
    }

    /// Syncs a shape, without a look at what happens meanwhile.
    fn sync(&mut self, shape: &Shape) {
        self.node.tracker.set_config(shape.config.clone());
        for event in &shape.events {
            self.node.tracker.apply(event.clone());
        }
        // The rival's addresses are a problem.
        self.node.tracker.resolve();
        self.node.try_sync().expect("a sync");
    }

    /// Syncs a shape after another one, and follows all packets.
    fn change(&mut self, before: &Shape, after: &Shape) {
        self.kernel.alter(|ruleset| remember(ruleset, &self.table));
        self.kernel.take_history();
        self.sync(after);
        let states = self.kernel.take_history();
        let commit = |i: usize, j: usize| Commit::new(&states[i], &states[j], &self.local);
        let last = states.len() - 1;
        let commits: Vec<_> = (0..last).map(|i| commit(i, i + 1)).collect();
        let (first, last) = (commit(0, 0), commit(last, last));
        let has = |part| [before, after].iter().any(|shape| shape.variant.contains(part));
        let (is_kept, is_hashed) = (has("affinity"), has("maglev"));
        let is_same = before.variant == after.variant && before.config == after.config;
        // Rules of before may lead to endpoints that other clients have after, and masquerade.
        let of_both: Vec<SocketAddr> = match is_same {
            true => Vec::new(),
            false => before.pool.iter().chain(after.pool).map(|(number, _)| at(*number)).collect(),
        };
        let mut failures = Vec::new();
        for (packet, remembered) in &self.packets {
            if remembered.is_some() && !is_kept || packet.hash > 0 && !is_hashed {
                continue;
            }
            let mut fail = |what: String| {
                let (before, after) = (before.name(), after.name());
                failures.push(format!("{before} -> {after}\n  {packet:?}\n  {what}"));
            };
            let (was, is) = (first.fates(packet), last.fates(packet));
            let asked = judge::fates(self.node.tracker.state(), packet, &self.local, *remembered);
            // Clients stay at an endpoint that left until the map is swept, and are in no new map.
            let is_asked = remembered.is_some() || is.is_subset(&asked);
            if !is_asked || remembered.is_none() && !is_hashed && is != asked {
                fail(format!("has {is:?}, and {asked:?} is asked for"));
            }
            let known = || was.iter().chain(&is);
            let both_serve = known().all(|fate| fate.endpoint().is_some());
            for fate in commits.iter().flat_map(|commit| commit.fates(packet)) {
                let is_known = match fate {
                    // An endpoint of after may be reached with the masquerading of before.
                    Fate::Passed { to, translated: true, masqueraded } => {
                        let is_own = |to: SocketAddr| to.ip() == packet.source.ip();
                        let others = |known: &BTreeSet<Fate>| -> Vec<Fate> {
                            let is_other = |fate: &&Fate| !fate.endpoint().is_some_and(is_own);
                            known.iter().filter(is_other).copied().collect()
                        };
                        let is_so = |known: &BTreeSet<Fate>| {
                            let others = others(known);
                            let is_it = |fate: &Fate| fate.is_masqueraded() == Some(masqueraded);
                            others.is_empty() || others.iter().any(is_it)
                        };
                        let is_masqueraded_so = match is_own(to) {
                            true => masqueraded,
                            false => !both_serve || is_so(&was) || is_so(&is),
                        };
                        let is_endpoint = known().any(|known| known.endpoint() == Some(to));
                        (is_endpoint || of_both.contains(&to)) && is_masqueraded_so
                    }
                    _ => !both_serve,
                };
                if !is_known {
                    fail(format!("has {fate:?}, before {was:?}, after {is:?}"));
                }
            }
        }
        self.failures.extend(failures);
    }

    /// Has each shape followed by each other one: with elements that are committed at once, and
    /// with those that are divided if they are more than `undivided`.
    fn change_all(shapes: &[Shape], undivided: usize) {
        thread::scope(|scope| {
            for undivided in [UNDIVIDED, undivided] {
                scope.spawn(move || Self::new(undivided).follow_all(shapes));
            }
        });
    }

    fn follow_all(mut self, shapes: &[Shape]) {
        let mut present = absent();
        let mut go = |node: &mut Self, to: &Shape| {
            node.change(&present, to);
            present = to.clone();
        };
        for (number, shape) in shapes.iter().enumerate() {
            go(&mut self, shape);
            for other in &shapes[number + 1..] {
                go(&mut self, other);
                go(&mut self, shape);
            }
        }
        let first: Vec<_> = self.failures.iter().take(8).map(String::as_str).collect();
        let count = self.failures.len();
        assert!(first.is_empty(), "{count} ways are wrong, the first:\n{}", first.join("\n"));
    }
}

/// All pools served in all of these ways, and no Service.
fn shapes(pools: &[Endpoints], variants: &[Variant]) -> Vec<Shape> {
    let made =
        variants.iter().flat_map(|variant| pools.iter().map(|pool| shape(pool, *variant, false)));
    made.chain([absent()]).collect()
}

#[test]
fn plain_pools() {
    let rivals = POOLS[..6].iter().map(|pool| shape(pool, PLAIN, true));
    let shapes: Vec<Shape> = shapes(&POOLS, &[PLAIN]).into_iter().chain(rivals).collect();
    Node::change_all(&shapes, 0);
}

#[test]
fn affinity() {
    let variants: [Variant; 5] = [
        PLAIN,
        ("affinity", &[KEPT]),
        ("affinity for an hour", &[KEPT, FOR_AN_HOUR]),
        ("affinity, external Local", &[KEPT, EXTERNAL_LOCAL]),
        ("affinity, internal Local", &[KEPT, INTERNAL_LOCAL]),
    ];
    Node::change_all(&shapes(&POOLS[1..6], &variants), 0);
}

#[test]
fn policies_and_frontends() {
    let variants: [Variant; 4] = [
        PLAIN,
        ("external Local", &[EXTERNAL_LOCAL]),
        ("both Local", &[EXTERNAL_LOCAL, INTERNAL_LOCAL]),
        ("cluster IP alone", &[CLUSTER_IP]),
    ];
    Node::change_all(&shapes(&POOLS[..6], &variants), 0);
}

#[test]
fn algorithms() {
    let variants: [Variant; 4] = [
        PLAIN,
        ("round robin", &[ROUND_ROBIN]),
        ("maglev", &[MAGLEV]),
        ("round robin, affinity", &[ROUND_ROBIN, KEPT]),
    ];
    Node::change_all(&shapes(&POOLS[2..5], &variants), 600);
}

#[test]
fn settings_of_the_node() {
    let made = shapes(&POOLS[1..4], &[PLAIN, ("affinity", &[KEPT])]);
    let changes = [
        |_: &mut NodeConfig| {},
        |config: &mut NodeConfig| config.local_pods = LocalPodsConfig::default(),
        |config: &mut NodeConfig| config.masquerade_all = true,
    ];
    let changed = changes.iter().flat_map(|change| {
        let mut shapes = made.clone();
        shapes.iter_mut().for_each(|shape| change(&mut shape.config));
        shapes
    });
    Node::change_all(&changed.collect::<Vec<_>>(), 0);
}
