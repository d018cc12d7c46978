//! The manifests in `examples/` are read without a complaint, and mean what their comments say.

use std::path::Path;

use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    objects::{Event, Kind},
    state::{ResolvedServicePort, State},
    track::Tracker,
};

/// The state on node-1, configured as the demo does.
fn resolved() -> State {
    let networks = ["10.244.0.0/16", "fd00:10:244::/48"].map(|network| network.parse().unwrap());
    let mut config = NodeConfig::new("node-1");
    config.local_pods = LocalPodsConfig::ClusterCidr(networks.into());
    config.node_port_addresses = vec![NodePortAddressConfig::Primary];
    let mut tracker = Tracker::new(config);
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"));
    let (mut objects, problems) = switchyard_sources::manifests::read_dir(directory).unwrap();
    assert_eq!(problems.len(), 0, "{problems:?}");
    let counts = Kind::ALL.map(|kind| {
        let (of_kind, others) = objects.drain(..).partition(|object| object.key().kind == kind);
        objects = others;
        let count = Vec::len(&of_kind);
        let event = Event::Replace { kind, objects: of_kind, malformed: Vec::new() };
        assert_eq!(tracker.apply(event), []);
        count
    });
    assert_eq!(counts, [1, 1, 6, 7], "Nodes, ServiceCIDRs, Services, EndpointSlices");
    assert_eq!(tracker.resolve(), []);
    tracker.state().clone()
}

/// The Service ports of a Service, one for each family.
fn ports<'a>(state: &'a State, service: &str) -> Vec<&'a ResolvedServicePort> {
    let all = state.service_ports.values().map(AsRef::as_ref);
    let mut ports: Vec<_> = all.filter(|port| port.id.to_string().contains(service)).collect();
    ports.sort_by_key(|port| port.frontends.clone());
    ports
}

#[test]
fn services_mean_what_their_comments_say() {
    let state = resolved();
    assert_eq!(state.service_ports.len(), 7, "one Service has two families");
    let networks = &state.node.service_cidrs;
    assert_eq!((networks.v4.len(), networks.v6.len()), (1, 1));
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
