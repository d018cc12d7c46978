//! What a resolved state means for a packet, in the words of probes.
//!
//! It follows from the documentation of [`proxy_core::state`] and from the network, and knows
//! nothing about backends but that only nftables refuses and drops what no Service has.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use packet_rig::{
    Place, Protocol, Target, Topology,
    case::{Expectation, Failure, ProbePlan, Reaches},
};
use proxy_core::{
    model::IpFamily,
    state::{
        Endpoint, Frontend, FrontendAddress, LocalPods, Masquerade, NodePortAddresses,
        ResolvedServicePort, Route, State,
    },
};

use crate::{backend, world::OTHER_PORT};

/// What the names of the servers on the second port end with.
pub const OTHER_SUFFIX: &str = "-other";

/// Who asks. Not the pods of the other node: the answers of their neighbours would not come back
/// through this one.
const PLACES: [&str; 5] = ["a", "b", "node-1", "node-2", "client"];

/// Addresses of the node.
const NODE: &str = Topology::NODE;

/// The probes that show whether packets go where `state` says: from every place to every target.
pub fn probes(state: &State, topology: &Topology, targets: &[Target]) -> Vec<ProbePlan> {
    let mut failing: BTreeMap<(Failure, Vec<&str>), Vec<Target>> = BTreeMap::new();
    let mut plans = Vec::new();
    for target in targets {
        let mut failures: BTreeMap<Failure, Vec<&str>> = BTreeMap::new();
        for place in PLACES.map(|name| topology.place(name).unwrap()) {
            match expected(state, topology, place, *target) {
                Expectation::Fails(failure) => {
                    failures.entry(failure).or_default().push(&place.name);
                }
                reaches => {
                    let plan = ProbePlan::new(&[&place.name], &[*target], reaches);
                    plans.push(ProbePlan { count: Some(6), ..plan });
                }
            }
        }
        for key in failures {
            failing.entry(key).or_default().push(*target);
        }
    }
    plans.extend(failing.into_iter().map(|((failure, places), targets)| ProbePlan {
        count: Some(1),
        ..ProbePlan::new(&places, &targets, Expectation::Fails(failure))
    }));
    plans
}

/// How many requests must come to what.
pub fn summary(plans: &[ProbePlan]) -> String {
    let count = |is_meant: &dyn Fn(&Expectation) -> bool| -> usize {
        let meant = plans.iter().filter(|plan| is_meant(&plan.expect));
        meant.map(|plan| plan.from.len() * plan.to.len()).sum()
    };
    let fails = |failure| count(&|expect| *expect == Expectation::Fails(failure));
    format!(
        "routes probed: {} answered, {} refused, {} dropped, {} left alone",
        count(&|expect| matches!(expect, Expectation::Reaches(_))),
        fails(Failure::Refused),
        fails(Failure::TimedOut),
        fails(Failure::Unrouted)
    )
}

/// The servers that an old flow to `target` may still have, if somebody listens there.
pub fn serving(state: &State, topology: &Topology, target: Target) -> Option<BTreeSet<String>> {
    let (port, _) = find(state, topology, target)?;
    let serving = port.reachable().chain(&*port.draining);
    Some(serving.map(|endpoint| server(topology, endpoint)).collect())
}

/// What must come of a request from `place` to `target`.
pub fn expected(state: &State, topology: &Topology, place: &Place, target: Target) -> Expectation {
    let ip = target.address.ip();
    let family = IpFamily::of(&ip);
    let from = place.addresses[0].of_family(ip);
    let Some((port, frontend)) = find(state, topology, target) else {
        return Expectation::Fails(unserved(state, topology, ip));
    };
    if let Some(allowed) = &frontend.allowed_sources
        && !allowed.iter().any(|net| net.contains(&from))
    {
        return Expectation::Fails(Failure::TimedOut);
    }
    let is_local_pod = match state.node.local_pods.of(family) {
        Some(LocalPods::Source(net)) => net.contains(&from),
        other => panic!("the proxy was not told so: {other:?}"),
    };
    let (pool, masqueraded) = match frontend.route {
        Route::Reject => return Expectation::Fails(Failure::Refused),
        Route::Drop => return Expectation::Fails(Failure::TimedOut),
        Route::Pool { pool, masquerade } => {
            let masqueraded = match masquerade {
                Masquerade::Never => false,
                Masquerade::ExceptLocalPods => !is_local_pod,
                Masquerade::Always => true,
            };
            (port.pool(pool), masqueraded)
        }
        Route::ExternalLocal if is_local_pod => (&port.cluster, false),
        Route::ExternalLocal if place.name == NODE => (&port.cluster, true),
        Route::ExternalLocal if port.local.is_empty() => {
            return Expectation::Fails(Failure::TimedOut);
        }
        Route::ExternalLocal => (&port.local, false),
    };
    let mut reaches = Reaches::all_of(pool.iter().map(|endpoint| server(topology, endpoint)));
    reaches.all = port.affinity.is_none();
    reaches.source = Some(if masqueraded { NODE } else { "own" }.to_owned());
    reaches.hairpin = Some(NODE.to_owned());
    Expectation::Reaches(reaches)
}

/// The frontend that a packet to `target` meets.
fn find<'a>(
    state: &'a State,
    topology: &Topology,
    target: Target,
) -> Option<(&'a ResolvedServicePort, &'a Frontend)> {
    let ip = target.address.ip();
    let family = IpFamily::of(&ip);
    let is_node_port_address = match state.node.node_ports.of(family) {
        NodePortAddresses::AllLocal => topology.node().has(ip),
        NodePortAddresses::Only(addresses) => addresses.contains(&ip),
    };
    let listens = |frontend: &Frontend| {
        let here = match frontend.at {
            FrontendAddress::NodePort => is_node_port_address,
            other => other.ip() == Some(ip),
        };
        here && frontend.port == target.address.port()
    };
    state
        .service_ports
        .values()
        .filter(|port| port.id.family == family && protocol(port) == target.protocol)
        .find_map(|port| {
            let frontend = port.frontends.iter().find(|frontend| listens(frontend))?;
            Some((&**port, frontend))
        })
}

/// What becomes of a packet that no frontend is for.
fn unserved(state: &State, topology: &Topology, ip: IpAddr) -> Failure {
    let is_cluster_ip = state
        .service_ports
        .values()
        .flat_map(|port| &port.frontends)
        .any(|frontend| frontend.at == FrontendAddress::ClusterIp(ip));
    // The others have no rules for what no Service has.
    let is_guarded = backend() == "nftables";
    if topology.node().has(ip) || (is_cluster_ip && is_guarded) {
        return Failure::Refused;
    }
    let ranges = state.node.service_cidrs.of(IpFamily::of(&ip));
    match is_guarded && ranges.iter().any(|net| net.contains(&ip)) {
        true => Failure::TimedOut,
        false => Failure::Unrouted,
    }
}

fn protocol(port: &ResolvedServicePort) -> Protocol {
    match port.id.name.protocol {
        proxy_core::model::Protocol::Tcp => Protocol::Tcp,
        proxy_core::model::Protocol::Udp => Protocol::Udp,
        proxy_core::model::Protocol::Sctp => Protocol::Sctp,
    }
}

/// The name of the server at an endpoint.
fn server(topology: &Topology, endpoint: &Endpoint) -> String {
    let address: SocketAddr = endpoint.address;
    let place = topology.owner(address).expect("an endpoint of the network");
    let suffix = if address.port() == OTHER_PORT { OTHER_SUFFIX } else { "" };
    format!("{}{suffix}", place.name)
}
