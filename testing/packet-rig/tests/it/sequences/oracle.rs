//! The meaning of a resolved state for a packet, as probes.
//!
//! The expectations follow from the documentation of [`switchyard_core::state`] and from the
//! network. The backend counts only where no Service has the address: only rules of nftables refuse
//! and drop there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use packet_rig::{
    Place, Protocol, Target, Topology, backend,
    case::{Expectation, Failure, ProbePlan, Reaches},
};
use switchyard_core::{
    model::IpFamily,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, LocalPods, Masquerade, NodePortAddresses,
        ResolvedServicePort, State,
    },
};

use super::world::OTHER_PORT;

/// The suffix of the names of the servers on the second port.
pub const OTHER_SUFFIX: &str = "-other";

/// The places of the clients. The pods of the other node are not among them: the answers of their
/// neighbours would not come back through this node.
const PLACES: [&str; 5] = ["a", "b", "node-1", "node-2", "client"];

/// Addresses of the node.
const NODE: &str = Topology::NODE;

/// The state that packets must follow, in a network, with a backend.
#[derive(Clone, Copy)]
pub struct Oracle<'a> {
    pub state: &'a State,
    pub topology: &'a Topology,
    pub backend: &'a str,
}

impl Oracle<'_> {
    /// The probes that show whether packets follow the state: from every place to every target.
    pub fn probes(&self, targets: &[Target]) -> Vec<ProbePlan> {
        let mut failing: BTreeMap<(Failure, Vec<&str>), Vec<Target>> = BTreeMap::new();
        let mut plans = Vec::new();
        for target in targets {
            let mut failures: BTreeMap<Failure, Vec<&str>> = BTreeMap::new();
            for place in PLACES.map(|name| self.topology.place(name).unwrap()) {
                match self.expected(place, *target) {
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

    /// The servers that may answer an old flow to `target`; `None` if the target is not served.
    pub fn serving(&self, target: Target) -> Option<BTreeSet<String>> {
        let (port, _) = self.find(target)?;
        let serving = port.reachable().chain(&*port.draining);
        Some(serving.map(|endpoint| self.server(endpoint)).collect())
    }

    /// The expected outcome of a request from `place` to `target`.
    pub fn expected(&self, place: &Place, target: Target) -> Expectation {
        let ip = target.address.ip();
        let family = IpFamily::of(&ip);
        let from = place.addresses[0].of_family(ip);
        let Some((port, frontend)) = self.find(target) else {
            return Expectation::Fails(self.unserved(ip));
        };
        if let Some(allowed) = &frontend.allowed_sources
            && !allowed.iter().any(|net| net.contains(&from))
        {
            return Expectation::Fails(Failure::TimedOut);
        }
        let is_local_pod = match self.state.node.local_pods.get(family) {
            Some(LocalPods::Source(net)) => net.contains(&from),
            other => panic!("the proxy was not told so: {other:?}"),
        };
        let (pool, masqueraded) = match frontend.action {
            Action::Reject => return Expectation::Fails(Failure::Refused),
            Action::Drop => return Expectation::Fails(Failure::TimedOut),
            Action::Pool { pool, masquerade } => {
                let masqueraded = match masquerade {
                    Masquerade::Never => false,
                    Masquerade::ExceptLocalPods => !is_local_pod,
                    Masquerade::Always => true,
                };
                (port.pool(pool), masqueraded)
            }
            Action::ExternalLocal if is_local_pod => (&port.cluster, false),
            Action::ExternalLocal if place.name == NODE => (&port.cluster, true),
            Action::ExternalLocal if port.local.is_empty() => {
                return Expectation::Fails(Failure::TimedOut);
            }
            Action::ExternalLocal => (&port.local, false),
            Action::Delivered { .. } | Action::DeliveredLocal => panic!("{} is derived", port.id),
        };
        let mut reaches = Reaches::all_of(pool.iter().map(|endpoint| self.server(endpoint)));
        reaches.all = port.affinity.is_none();
        reaches.source = Some(if masqueraded { NODE } else { "own" }.to_owned());
        reaches.hairpin = Some(NODE.to_owned());
        Expectation::Reaches(reaches)
    }

    /// The frontend that a packet to `target` meets.
    fn find(&self, target: Target) -> Option<(&ResolvedServicePort, &Frontend)> {
        let ip = target.address.ip();
        let family = IpFamily::of(&ip);
        let is_node_port_address = match self.state.node.node_ports.get(family) {
            NodePortAddresses::Only(addresses) => addresses.contains(&ip),
            _ => self.topology.node().has(ip),
        };
        let listens = |frontend: &Frontend| {
            let here = match frontend.at {
                FrontendAddress::NodePort => is_node_port_address,
                other => other.ip() == Some(ip),
            };
            here && frontend.port == target.address.port()
        };
        self.state
            .service_ports
            .values()
            .filter(|port| port.id.family == family && protocol(port) == target.protocol)
            .find_map(|port| {
                let frontend = port.frontends.iter().find(|frontend| listens(frontend))?;
                Some((&**port, frontend))
            })
    }

    /// The outcome of a packet to an address that no frontend has.
    fn unserved(&self, ip: IpAddr) -> Failure {
        let mode = backend::mode(self.backend);
        // All addresses of Services are the node's in ipvs mode.
        let is_guarded_at = |at: FrontendAddress| {
            at == FrontendAddress::ClusterIp(ip) || (mode == "ipvs" && at.ip() == Some(ip))
        };
        let mut frontends = self.state.service_ports.values().flat_map(|port| &port.frontends);
        // Userspace and ipvs mode have rules of nftables mode beneath; those of iptables mode know
        // nothing of addresses that no Service has.
        let is_guarded = mode != "iptables";
        let is_own = is_guarded && frontends.any(|frontend| is_guarded_at(frontend.at));
        if self.topology.node().has(ip) || is_own {
            return Failure::Refused;
        }
        let ranges = self.state.node.service_cidrs.get(IpFamily::of(&ip));
        match is_guarded && ranges.iter().any(|net| net.contains(&ip)) {
            true => Failure::TimedOut,
            false => Failure::Unrouted,
        }
    }

    /// The name of the server at an endpoint.
    fn server(&self, endpoint: &Endpoint) -> String {
        let address: SocketAddr = endpoint.address;
        let place = self.topology.owner(address).expect("an endpoint of the network");
        let suffix = if address.port() == OTHER_PORT { OTHER_SUFFIX } else { "" };
        format!("{}{suffix}", place.name)
    }
}

/// The numbers of requests by their expected outcomes.
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

fn protocol(port: &ResolvedServicePort) -> Protocol {
    match port.id.name.protocol {
        switchyard_core::model::Protocol::Tcp => Protocol::Tcp,
        switchyard_core::model::Protocol::Udp => Protocol::Udp,
        switchyard_core::model::Protocol::Sctp => Protocol::Sctp,
    }
}
