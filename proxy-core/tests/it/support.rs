//! A cluster in a test: a tracker, fed with builders.

use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    model::{IpFamily, Protocol, ServiceName, ServicePortId, ServicePortName},
    objects::{Event, Kind},
    state::{Frontend, FrontendAddress, Pool, ResolvedServicePort},
    testing::{
        Builder, NAMESPACE, NODE, assert_invariants, assert_least_weights, endpoint, list, service,
        slice,
    },
    track::{Problem, Tracker},
};

/// A cluster as this node sees it.
pub struct Cluster {
    pub tracker: Tracker,
}

impl Cluster {
    /// With a local detector for both families.
    pub fn new() -> Self {
        Self::with(|config| config.local_pods = Self::local_pods())
    }

    /// A local detector for both families.
    pub fn local_pods() -> LocalPodsConfig {
        let nets = vec!["10.1.0.0/16".parse().unwrap(), "fd01::/64".parse().unwrap()];
        LocalPodsConfig::ClusterCidr(nets)
    }

    /// With a node configured otherwise, and no local detector unless that says so.
    pub fn with(configure: impl FnOnce(&mut NodeConfig)) -> Self {
        let mut config = NodeConfig::new(NODE);
        configure(&mut config);
        Self { tracker: Tracker::new(config) }
    }

    /// Applies objects, resolves, and returns all problems.
    pub fn apply<'b>(&mut self, builders: impl IntoIterator<Item = &'b Builder>) -> Vec<Problem> {
        self.events(builders.into_iter().map(Builder::apply))
    }

    /// Deletes objects and resolves.
    pub fn delete<'b>(&mut self, builders: impl IntoIterator<Item = &'b Builder>) -> Vec<Problem> {
        self.events(builders.into_iter().map(Builder::delete))
    }

    /// Lists all objects of a kind, and resolves.
    pub fn replace(&mut self, kind: Kind, builders: &[&Builder]) -> Vec<Problem> {
        self.events([list(kind, builders.iter().copied())])
    }

    pub fn events(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Problem> {
        let mut problems = Vec::new();
        for event in events {
            problems.extend(self.tracker.apply(event));
        }
        problems.extend(self.tracker.resolve());
        assert_invariants(self.tracker.state());
        if self.tracker.next_step().is_none() {
            assert_least_weights(self.tracker.state());
        }
        problems
    }

    /// Returns the Service ports in the transition, and marks it as synced.
    pub fn take_changes(&mut self) -> Vec<String> {
        let changes =
            self.tracker.transition().ports().map(|change| change.id.to_string()).collect();
        self.tracker.mark_synced();
        changes
    }

    /// The IPv4 TCP port `port` of the Service.
    #[track_caller]
    pub fn port(&self, service: &str, port: &str) -> Arc<ResolvedServicePort> {
        self.find(&id(service, port))
            .unwrap_or_else(|| panic!("{service}:{port} is not programmed"))
    }

    pub fn find(&self, id: &ServicePortId) -> Option<Arc<ResolvedServicePort>> {
        self.tracker.state().service_ports.get(id).cloned()
    }

    /// The programmed Services, by name, sorted.
    pub fn programmed(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.tracker.state().service_ports.keys().map(ToString::to_string).collect();
        names.sort();
        names
    }
}

/// The Service `web` with TCP port 80, which has no name.
pub fn web() -> Builder {
    service("web", "10.0.0.1").port("", "TCP", 80)
}

/// Slice `web-{suffix}` with endpoints on this node, by the last parts of their addresses.
pub fn slice_of_web(suffix: &str, last: impl IntoIterator<Item = u8>) -> Builder {
    let made = slice("web", suffix).port("", "TCP", 80);
    last.into_iter().fold(made, |made, n| made.endpoint(endpoint(&format!("10.1.0.{n}"), NODE)))
}

/// Endpoint `10.1.0.{n}` on node `node`, hinted for zones and nodes.
pub fn hinted(n: u8, node: &str, zones: &[&str], nodes: &[&str]) -> Value {
    let named = |names: &[&str]| -> Value {
        names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>().into()
    };
    let mut made = endpoint(&format!("10.1.0.{n}"), node);
    made["hints"] = json!({"forZones": named(zones), "forNodes": named(nodes)});
    made
}

pub fn in_state(mut endpoint: Value, ready: bool, serving: bool, terminating: bool) -> Value {
    endpoint["conditions"] =
        json!({"ready": ready, "serving": serving, "terminating": terminating});
    endpoint
}

/// An endpoint that terminates and still serves.
pub fn leaving(endpoint: Value) -> Value {
    in_state(endpoint, false, true, true)
}

/// The id of an IPv4 TCP port.
pub fn id(service: &str, port: &str) -> ServicePortId {
    id_of(service, port, Protocol::Tcp, IpFamily::V4)
}

pub fn id_of(service: &str, port: &str, protocol: Protocol, family: IpFamily) -> ServicePortId {
    ServicePortId {
        name: ServicePortName {
            service: ServiceName::new(NAMESPACE, service),
            port: port.into(),
            protocol,
        },
        family,
    }
}

/// A pool as text: `address` of each endpoint, with a `*` if it is local, and `=` and its weight if
/// that is not 1.
pub fn pool(pool: &Pool) -> String {
    let endpoints: Vec<String> = pool
        .iter()
        .map(|e| {
            let weight = if e.weight == 1 { String::new() } else { format!("={}", e.weight) };
            format!("{}{}{weight}", e.address, if e.is_local { "*" } else { "" })
        })
        .collect();
    endpoints.join(" ")
}

/// Frontends as text: `clusterIP 10.0.0.1:80`, ...
pub fn frontends(port: &ResolvedServicePort) -> Vec<String> {
    port.frontends.iter().map(at).collect()
}

fn at(frontend: &Frontend) -> String {
    let kind = match frontend.at {
        FrontendAddress::ClusterIp(_) => "clusterIP",
        FrontendAddress::LoadBalancerIp(_) => "loadBalancer",
        FrontendAddress::ExternalIp(_) => "externalIP",
        FrontendAddress::NodePort => "nodePort",
    };
    match frontend.at.ip() {
        Some(ip) => format!("{kind} {}", std::net::SocketAddr::new(ip, frontend.port)),
        None => format!("{kind} {}", frontend.port),
    }
}

/// Problems as texts `object: field`.
pub fn fields(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| format!("{}: {}", problem.object, problem.field)).collect()
}
