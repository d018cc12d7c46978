//! A small cluster that changes at random, as files of manifests and as objects.

use std::{collections::BTreeMap, net::IpAddr};

use packet_rig::{Protocol, Target, backend, objects};
use serde_json::{Value, json};
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    objects::{Event, Kind, Object},
    proxier::{Capabilities, Mode},
    track::Tracker,
};

use super::random::Random;

/// The port of the second server in every pod.
pub const OTHER_PORT: u16 = 8081;

/// Services that change.
const SERVICES: u64 = 4;

/// Names of files that hold the Node and the ServiceCIDR.
const NODE: &str = "node.yaml";
const CIDR: &str = "cidr.yaml";

/// The Service that never changes, with its endpoints.
pub fn steady() -> String {
    let spec = "clusterIP: 10.96.0.50, clusterIPs: [10.96.0.50, \"fd00:10:96::50\"], \
                ipFamilies: [IPv4, IPv6], \
                ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]";
    let ports = "{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}";
    let slice = |addresses: &[&str]| objects::slice("steady", ports, addresses);
    objects::service("steady", "", spec)
        + &slice(&["10.244.1.10", "10.244.2.10"])
        + &slice(&["fd00:10:244:1::10"])
}

/// The objects that change, by the names of their files.
pub struct World {
    objects: BTreeMap<String, Value>,
}

impl World {
    pub fn new(random: &mut Random) -> Self {
        let mut world = Self { objects: BTreeMap::new() };
        world.objects.insert(NODE.to_owned(), node(random));
        for number in 0..SERVICES {
            let (name, object) = service(number, random);
            world.put(name, object);
            for _ in 0..2 {
                let (name, object) = slice(number, random);
                world.put(name, object);
            }
        }
        world
    }

    fn put(&mut self, name: String, object: Option<Value>) {
        match object {
            Some(object) => self.objects.insert(name, object),
            None => self.objects.remove(&name),
        };
    }

    pub fn files(&self) -> BTreeMap<String, String> {
        self.objects.iter().map(|(name, object)| (name.clone(), object.to_string())).collect()
    }

    /// Changes up to four objects, and returns the files that have new contents or are gone.
    pub fn change(&mut self, random: &mut Random) -> Vec<(String, Option<String>)> {
        let before = self.files();
        for _ in 0..=random.below(4) {
            let (name, object) = match random.below(20) {
                0 => (NODE.to_owned(), Some(node(random))),
                1 => (CIDR.to_owned(), service_cidr(random)),
                2..8 => service(random.below(SERVICES), random),
                _ => slice(random.below(SERVICES), random),
            };
            self.put(name, object);
        }
        let after = self.files();
        let gone = before.keys().filter(|name| !after.contains_key(*name));
        let gone = gone.map(|name| (name.clone(), None));
        let changed = after.iter().filter(|(name, text)| before.get(*name) != Some(*text));
        gone.chain(changed.map(|(name, text)| (name.clone(), Some(text.clone())))).collect()
    }

    /// A new tracker of the objects that change, for a backend.
    pub fn resolve(&self, backend: &str) -> Tracker {
        let cidrs = packet_rig::address::CLUSTER_CIDR.split(',');
        let mut tracker = Tracker::new({
            let mut made = NodeConfig::new("node-1");
            made.local_pods =
                LocalPodsConfig::ClusterCidr(cidrs.map(|net| net.parse().unwrap()).collect());
            made.node_port_addresses = vec![NodePortAddressConfig::Primary];
            made
        });
        tracker.set_interface_addresses(
            ["192.168.10.1", "192.168.10.11", "fd00:192:168:10::1", "fd00:192:168:10::11"]
                .map(|address| address.parse().unwrap()),
        );
        for object in self.objects.values() {
            tracker.apply(Event::Apply(decode(object)));
        }
        for kind in Kind::ALL {
            tracker.apply(Event::Listed(kind));
        }
        let mode = [Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS, Mode::USERSPACE]
            .into_iter()
            .find(|mode| mode.as_str() == backend::mode(backend))
            .unwrap();
        let rules_of = match backend {
            backend::USERSPACE => Some(Mode::NFTABLES),
            backend::USERSPACE_IPTABLES => Some(Mode::IPTABLES),
            _ => None,
        };
        let known = Capabilities::KUBE_PROXY;
        let capabilities = rules_of.map_or(known, |mode| known.with_rules_of(mode));
        tracker.set_capabilities(capabilities, mode);
        tracker.resolve();
        tracker
    }
}

fn decode(object: &Value) -> Object {
    let copy = object.clone();
    match object["kind"].as_str().unwrap() {
        "Service" => Object::Service(serde_json::from_value(copy).unwrap()),
        "EndpointSlice" => Object::EndpointSlice(serde_json::from_value(copy).unwrap()),
        "Node" => Object::Node(serde_json::from_value(copy).unwrap()),
        "ServiceCIDR" => Object::ServiceCidr(serde_json::from_value(copy).unwrap()),
        other => panic!("unknown kind {other}"),
    }
}

/// All targets of requests: addresses of Services, of the node, and of no host.
pub fn targets() -> Vec<Target> {
    let ports = |ip: &str, ports: &[(Protocol, u16)]| -> Vec<Target> {
        let ip: IpAddr = ip.parse().unwrap();
        let target = |&(protocol, port)| Target { protocol, address: (ip, port).into() };
        ports.iter().map(target).collect()
    };
    let usual = [(Protocol::Tcp, 80), (Protocol::Udp, 80), (Protocol::Tcp, 443)];
    let addresses = ["203.0.113.1", "203.0.113.2", "198.51.100.1", "198.51.100.2", "10.96.0.99"];
    let mut targets: Vec<Target> = addresses.iter().flat_map(|ip| ports(ip, &usual)).collect();
    targets.extend(ports("2001:db8:113::1", &usual[..2]));
    for number in 0..SERVICES {
        targets.extend(ports(&cluster_ip(number), &usual));
        targets.extend(ports(&cluster_ip6(number), &usual[..2]));
        for port in [node_port(number, false), node_port(number, true)] {
            let both = [(Protocol::Tcp, port), (Protocol::Udp, port)];
            targets.extend(ports("192.168.10.1", &both));
            targets.extend(ports("192.168.10.11", &both[..1]));
            targets.extend(ports("fd00:192:168:10::1", &both[..1]));
        }
    }
    targets
}

fn cluster_ip(number: u64) -> String {
    format!("10.96.0.{}", 10 + number)
}

fn cluster_ip6(number: u64) -> String {
    format!("fd00:10:96::{}", 10 + number)
}

fn node_port(number: u64, moved: bool) -> u16 {
    30080 + number as u16 + if moved { 100 } else { 0 }
}

fn node(random: &mut Random) -> Value {
    let mut labels = json!({});
    if let Some(zone) = random.one_of([None, Some("zone-1"), Some("zone-2")]) {
        labels["topology.kubernetes.io/zone"] = json!(zone);
    }
    let primary = if random.percent(75) { "192.168.10.1" } else { "192.168.10.11" };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1", "labels": labels},
        "status": {"addresses": [
            {"type": "InternalIP", "address": primary},
            {"type": "InternalIP", "address": "fd00:192:168:10::1"},
        ]},
    })
}

fn service_cidr(random: &mut Random) -> Option<Value> {
    let cidrs = random.one_of([
        None,
        Some(json!(["10.96.0.0/24"])),
        Some(json!(["10.96.0.0/26", "fd00:10:96::/112"])),
    ]);
    cidrs.map(|cidrs| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": cidrs},
        })
    })
}

fn service(number: u64, random: &mut Random) -> (String, Option<Value>) {
    let name = format!("service-{number}");
    let file = format!("{name}.json");
    if random.percent(10) {
        return (file, None);
    }
    let mut labels = json!({});
    if random.percent(6) {
        labels["service.kubernetes.io/service-proxy-name"] = json!("other");
    }
    let kind = random.one_of(["ClusterIP", "NodePort", "NodePort", "LoadBalancer", "LoadBalancer"]);
    let policy = |random: &mut Random| if random.percent(35) { "Local" } else { "Cluster" };
    let mut spec = json!({
        "type": kind,
        "clusterIP": cluster_ip(number),
        "clusterIPs": [cluster_ip(number)],
        "ipFamilies": ["IPv4"],
        "ports": service_ports(number, kind, random),
        "externalTrafficPolicy": policy(random),
        "internalTrafficPolicy": policy(random),
    });
    if random.percent(50) {
        spec["clusterIPs"] = json!([cluster_ip(number), cluster_ip6(number)]);
        spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
    }
    match random.below(16) {
        0 => spec["clusterIP"] = json!("None"),
        1 => spec["type"] = json!("ExternalName"),
        _ => {}
    }
    if random.percent(15) {
        spec["sessionAffinity"] = json!("ClientIP");
    }
    if random.percent(30) {
        spec["externalIPs"] = json!([random.one_of(["198.51.100.1", "198.51.100.2"])]);
    }
    if random.percent(30) {
        spec["loadBalancerSourceRanges"] = random.one_of([
            json!(["192.168.10.100/32", "10.99.0.0/16"]),
            json!(["10.244.1.0/24", "192.168.10.0/31"]),
            json!(["fd00:192:168:10::/64"]),
            json!(["10.99.0.0/16", "0.0.0.0/0"]),
        ]);
    }
    let mut ingress = Vec::new();
    if kind == "LoadBalancer" {
        ingress.push(json!({"ip": random.one_of(["203.0.113.1", "203.0.113.2"])}));
        if random.percent(15) {
            ingress[0]["ipMode"] = json!("Proxy");
        }
        if random.percent(40) {
            ingress.push(json!({"ip": "2001:db8:113::1", "ipMode": "VIP"}));
        }
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "labels": labels,
            // The oldest Service has an address that several claim.
            "creationTimestamp": format!("2026-01-0{}T00:00:00Z", 1 + random.below(3)),
        },
        "spec": spec,
        "status": {"loadBalancer": {"ingress": ingress}},
    });
    (file, Some(object))
}

fn service_ports(number: u64, kind: &str, random: &mut Random) -> Vec<Value> {
    let moved = random.percent(25);
    let mut ports = vec![
        json!({"name": "t", "port": 80, "protocol": "TCP", "nodePort": node_port(number, moved)}),
        json!({"name": "u", "port": 80, "protocol": "UDP", "nodePort": node_port(number, moved)}),
        json!({"name": "s", "port": 443, "protocol": "TCP", "nodePort": node_port(number, !moved)}),
    ];
    if kind == "ClusterIP" {
        for port in &mut ports {
            port["nodePort"] = json!(0);
        }
    }
    if random.percent(35) {
        let gone = random.below(3) as usize;
        ports.remove(gone);
    }
    ports
}

/// A slice of a Service, which has two slices of IPv4 and one of IPv6.
fn slice(number: u64, random: &mut Random) -> (String, Option<Value>) {
    let which = random.below(3);
    let name = format!("service-{number}-{which}");
    let file = format!("slice-{number}-{which}.json");
    if random.percent(10) {
        return (file, None);
    }
    let pods: &[(&str, &str)] = match which {
        2 => &[
            ("fd00:10:244:1::10", "node-1"),
            ("fd00:10:244:1::11", "node-1"),
            ("fd00:10:244:2::10", "node-2"),
        ],
        _ => &[
            ("10.244.1.10", "node-1"),
            ("10.244.1.11", "node-1"),
            ("10.244.2.10", "node-2"),
            ("10.244.2.11", "node-2"),
        ],
    };
    let hinted = random.one_of(["", "", "zones", "some zones", "nodes"]);
    let mut endpoints = Vec::new();
    for (address, node) in pods {
        if random.percent(45) {
            endpoints.push(endpoint(address, node, hinted, random));
        }
    }
    let mut ports = Vec::new();
    for (name, protocol) in [("t", "TCP"), ("u", "UDP"), ("s", "TCP")] {
        if random.percent(85) {
            let port = if random.percent(75) { 8080 } else { OTHER_PORT };
            ports.push(json!({"name": name, "protocol": protocol, "port": port}));
        }
    }
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": format!("service-{number}")},
        },
        "addressType": if which == 2 { "IPv6" } else { "IPv4" },
        "ports": ports,
        "endpoints": endpoints,
    });
    (file, Some(object))
}

fn endpoint(address: &str, node: &str, hinted: &str, random: &mut Random) -> Value {
    let conditions = random.one_of([
        json!({}),
        json!({}),
        json!({"ready": true}),
        json!({"ready": true, "serving": true, "terminating": false}),
        json!({"ready": false}),
        json!({"ready": false, "serving": true, "terminating": true}),
        json!({"ready": false, "serving": false, "terminating": true}),
    ]);
    let mut endpoint = json!({"addresses": [address], "nodeName": node, "conditions": conditions});
    let zones = random.one_of([
        json!([{"name": "zone-1"}]),
        json!([{"name": "zone-2"}]),
        json!([{"name": "zone-1"}, {"name": "zone-2"}]),
    ]);
    match hinted {
        "zones" => endpoint["hints"] = json!({"forZones": zones}),
        "some zones" if random.percent(60) => endpoint["hints"] = json!({"forZones": zones}),
        "nodes" => endpoint["hints"] = json!({"forNodes": [{"name": node}], "forZones": zones}),
        _ => {}
    }
    endpoint
}
