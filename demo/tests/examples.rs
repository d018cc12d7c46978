//! Every manifest in `examples/` is read without a complaint, and means what its comment says.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{fs, path::Path};

use ipnet::IpNet;
use serde::Deserialize;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    objects::{EndpointSlice, Event, Kind, Node, Object, Service, ServiceCidr},
    state::{ResolvedServicePort, State},
    track::Tracker,
};

/// What says which kind a document is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: String,
    kind: String,
}

/// All manifests: name and text. Programs are beside them.
fn files() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn decode(document: &str) -> Object {
    let header: Header = serde_saphyr::from_str(document).unwrap();
    match (header.api_version.as_str(), header.kind.as_str()) {
        ("v1", "Service") => Object::Service(serde_saphyr::from_str::<Service>(document).unwrap()),
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            Object::EndpointSlice(serde_saphyr::from_str::<EndpointSlice>(document).unwrap())
        }
        ("v1", "Node") => Object::Node(serde_saphyr::from_str::<Node>(document).unwrap()),
        ("networking.k8s.io/v1", "ServiceCIDR") => {
            Object::ServiceCidr(serde_saphyr::from_str::<ServiceCidr>(document).unwrap())
        }
        (version, kind) => panic!("{version} {kind}"),
    }
}

fn objects() -> Vec<Object> {
    files()
        .iter()
        .flat_map(|(_, text)| text.split("\n---\n").map(decode).collect::<Vec<_>>())
        .collect()
}

/// The state on node-1, configured as the demo does.
fn resolved() -> State {
    let networks: [IpNet; 2] =
        ["10.244.0.0/16".parse().unwrap(), "fd00:10:244::/48".parse().unwrap()];
    let mut tracker = Tracker::new({
        let mut made = NodeConfig::new("node-1");
        made.local_pods = LocalPodsConfig::ClusterCidr(networks.into());
        made.node_port_addresses = vec![NodePortAddressConfig::Primary];
        made
    });
    let mut objects = objects();
    for kind in Kind::ALL {
        let (of_kind, others) = objects.into_iter().partition(|object| object.key().kind == kind);
        objects = others;
        let event = Event::Replace { kind, objects: of_kind, malformed: Vec::new() };
        assert_eq!(tracker.apply(event), []);
    }
    assert_eq!(tracker.resolve(), []);
    tracker.state().clone()
}

/// The Service ports of a Service, one for each family.
fn ports<'a>(state: &'a State, service: &str) -> Vec<&'a ResolvedServicePort> {
    let mut ports: Vec<_> = state
        .service_ports
        .values()
        .map(AsRef::as_ref)
        .filter(|port| port.id.to_string().contains(service))
        .collect();
    ports.sort_by_key(|port| port.frontends.clone());
    ports
}

#[test]
fn every_file_begins_with_what_it_shows() {
    for (name, text) in files() {
        assert!(text.starts_with("# "), "{name}");
        assert!(text.contains("\n#\n# "), "{name}: a title, a blank line, and more");
    }
}

#[test]
fn nothing_is_left_out() {
    let kinds: Vec<Kind> = objects().iter().map(|object| object.key().kind).collect();
    let count = |kind| kinds.iter().filter(|other| **other == kind).count();
    assert_eq!(Kind::ALL.map(count), [1, 1, 6, 7], "Nodes, ServiceCIDRs, Services, EndpointSlices");
    let state = resolved();
    assert_eq!(state.service_ports.len(), 7, "one Service has two families");
    let networks = &state.node.service_cidrs;
    assert_eq!((networks.v4.len(), networks.v6.len()), (1, 1));
}

#[test]
fn services_mean_what_their_comments_say() {
    let state = resolved();
    for (service, endpoints, frontends) in
        [("web", 3, 1), ("dns", 2, 1), ("shop", 2, 3), ("cart", 2, 1), ("idle", 0, 1)]
    {
        let [port] = ports(&state, service)[..] else { panic!("{service}") };
        assert_eq!(port.cluster.len(), endpoints, "{service}");
        assert_eq!(port.frontends.len(), frontends, "{service}");
        assert_eq!(port.affinity.is_some(), service == "cart", "{service}");
    }
    let [v4, v6] = ports(&state, "api")[..] else { panic!("api") };
    assert!(v4.cluster.iter().all(|endpoint| endpoint.address.is_ipv4()));
    assert!(v6.cluster.iter().all(|endpoint| endpoint.address.is_ipv6()));
    assert_eq!((v4.cluster.len(), v6.cluster.len()), (2, 2));
}
