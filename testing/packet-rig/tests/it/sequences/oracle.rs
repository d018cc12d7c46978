//! The explanation of each way, as probes.
//!
//! `switchyard_core::explain` answers what happens to a packet from a place to a target, from a new
//! tracker, and packets must agree. What a packet meets where no Service has the address follows
//! from the network.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use packet_rig::{
    Place, Protocol, Target, Topology,
    backend::USERSPACE,
    case::{Expectation, Failure, ProbePlan, Reaches},
};
use switchyard_core::{
    explain::{Known, Question, RouteEnd, Sees, Verdict, explain},
    model::{self, IpFamily},
    state::PoolKind,
    track::Tracker,
};

use super::world::OTHER_PORT;

/// The suffix of the names of the servers on the second port.
pub const OTHER_SUFFIX: &str = "-other";

/// The places of the clients. The pods of the other node are not among them: the answers of their
/// neighbours would not come back through this node.
const PLACES: [&str; 5] = ["a", "b", "node-1", "node-2", "client"];

/// Addresses of the node.
const NODE: &str = Topology::NODE;

/// The explanations that packets must agree with, in a network.
#[derive(Clone, Copy)]
pub struct Oracle<'a> {
    pub known: &'a Tracker,
    pub topology: &'a Topology,
}

impl Oracle<'_> {
    /// The probes that show whether packets agree: from every place to every target.
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
        let (ip, protocol) = (target.address.ip(), protocol(target));
        let id = self.known.owner(Some(ip), IpFamily::of(&ip), protocol, target.address.port())?;
        let port = self.known.state().service_ports.get(&id)?;
        let serving = port.reachable().chain(&*port.draining);
        Some(serving.map(|endpoint| self.server(endpoint.address)).collect())
    }

    /// Whether the mode leaves UDP flows alone while nobody serves their Service port.
    pub fn leaves_unserved_flows(&self) -> bool {
        matches!(Known::node(self.known).mode.as_deref(), Some("nftables" | "iptables"))
    }

    /// The expected outcome of a request from `place` to `target`, by the explanation.
    pub fn expected(&self, place: &Place, target: Target) -> Expectation {
        let ip = target.address.ip();
        let client = Some(place.addresses[0].of_family(ip));
        let question = Question::Address { client, to: target.address, protocol: protocol(target) };
        let answer = explain(&question, self.known);
        match answer.verdict {
            Verdict::Refuses => Expectation::Fails(Failure::Refused),
            Verdict::Drops => Expectation::Fails(Failure::TimedOut),
            // The node refuses what no server of its own listens at.
            Verdict::Unknown if self.topology.node().has(ip) => {
                Expectation::Fails(Failure::Refused)
            }
            Verdict::Unknown => Expectation::Fails(Failure::Unrouted),
            // The model alone is asked, so that the kernel never differs.
            Verdict::Serves | Verdict::Impaired | Verdict::Differs => {
                let servers = answer.reached().map(|endpoint| self.server(endpoint.address));
                let mut reaches = Reaches::all_of(servers);
                reaches.all = answer.frontends.iter().all(|line| line.affinity_seconds.is_none());
                let sees = answer.route.and_then(|route| route.pod_sees);
                let source = if sees == Some(Sees::Node) { NODE } else { "own" };
                let end = answer.route.map(|route| route.to);
                // A proxy in user space does not know that these are at a cluster IP, if node ports
                // have the same policy; and shows clients of UDP once it has shown one of TCP.
                let is_relayed = Known::node(self.known).mode.as_deref() == Some(USERSPACE);
                let may_differ = is_relayed
                    && (source == NODE || target.protocol == Protocol::Udp)
                    && end == Some(RouteEnd::Pool(PoolKind::Local));
                reaches.source = (!may_differ).then(|| source.to_owned());
                reaches.kept = true;
                reaches.hairpin = Some(NODE.to_owned());
                Expectation::Reaches(reaches)
            }
        }
    }

    /// The name of the server at an endpoint.
    fn server(&self, address: SocketAddr) -> String {
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

fn protocol(target: Target) -> model::Protocol {
    match target.protocol {
        Protocol::Tcp => model::Protocol::Tcp,
        Protocol::Udp => model::Protocol::Udp,
        Protocol::Sctp => model::Protocol::Sctp,
    }
}
