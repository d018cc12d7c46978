//! Comparison of what probes observe with what a case expects.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::RangeInclusive,
    thread,
};

use crate::{
    case::{Expectation, Failure, ProbePlan, Reaches},
    error::{Result, RigError},
    outcome::Outcome,
    probe::Probe,
    protocol::Target,
    topology::{Place, Topology},
};

/// Requests to a target of which every one must be answered, if the case gives no number.
/// One of two endpoints that should not be there is missed once in 65,000 times.
const ANSWERS: usize = 16;

/// Requests after which an endpoint that has not answered counts as missing. One of four is
/// missed by chance once in 30 million times.
const PATIENCE: usize = 60;

/// Requests that must be refused, if the case gives no number.
const REFUSALS: usize = 2;

/// The ports that Services have on nodes.
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// A client: the place, the source address if the case chose one, and the source port if each port
/// is its own client.
type Client = (String, Option<IpAddr>, u16);

/// The endpoint that answered each client, by the name under which the answers are remembered.
#[derive(Debug, Default)]
pub struct Memory(BTreeMap<String, BTreeMap<Client, String>>);

/// A description of an observation that is not as expected.
pub type Mismatch = String;

/// The clients that servers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// All clients, unless they are masqueraded.
    Clients,
    /// The node, whose connections to servers are its own, except for clients that are
    /// [kept](Reaches::kept).
    Kept,
    Node,
}

/// The one host that servers see instead of the clients of this target: the node, if the proxy is
/// one in user space. `None` if the target is a server itself.
fn seen_instead(topology: &Topology, seen: Seen, target: Target) -> Option<&'static str> {
    let is_proxied = match topology.owner(target.address) {
        Some(place) => place.name == Topology::NODE && NODE_PORTS.contains(&target.address.port()),
        None => true,
    };
    (seen != Seen::Clients && is_proxied).then_some(Topology::NODE)
}

/// Makes the requests of a plan once, and compares. The outer error is
/// the rig's.
pub fn check(
    topology: &Topology,
    seen: Seen,
    plan: &ProbePlan,
    memory: &mut Memory,
) -> Result<Result<(), Mismatch>> {
    let places =
        plan.from.iter().map(|name| topology.place(name)).collect::<Result<Vec<&Place>>>()?;
    match &plan.expect {
        Expectation::Fails(failure) => check_failures(&places, plan, *failure),
        Expectation::Reaches(reaches) => {
            Answers { topology, seen, plan, reaches, clients: BTreeMap::new() }
                .check(&places, memory)
        }
    }
}

/// Whether a server (its name is its place's, perhaps with a suffix) is at this place.
fn is_at(server: &str, place: &Place) -> bool {
    server.strip_prefix(&place.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Makes all requests at the same time, because waiting for a timeout takes long.
fn check_failures(
    places: &[&Place],
    plan: &ProbePlan,
    failure: Failure,
) -> Result<Result<(), Mismatch>> {
    let (expected, count) = match failure {
        Failure::Refused => (Outcome::Refused, REFUSALS),
        Failure::TimedOut => (Outcome::TimedOut, 1),
        Failure::Unrouted => (Outcome::Unrouted, REFUSALS),
    };
    let count = plan.count.unwrap_or(count);
    let outcomes: Vec<(&Place, Target, Result<Vec<Outcome>>)> = thread::scope(|scope| {
        let running: Vec<_> = places
            .iter()
            .flat_map(|place| plan.to.iter().map(|target| (*place, *target)))
            .map(|(place, target)| {
                let probe = match failure {
                    Failure::Refused | Failure::Unrouted => Probe::new(target),
                    Failure::TimedOut => Probe::expecting_silence(target),
                };
                let probe = Probe { source_port: plan.source_port, ..probe };
                let thread = scope.spawn(move || probe.run_many(&place.namespace, count));
                (place, target, thread)
            })
            .collect();
        running
            .into_iter()
            .map(|(place, target, thread)| {
                let panicked =
                    |_| Err(RigError::Setup(format!("the thread that probes {target} panicked")));
                (place, target, thread.join().unwrap_or_else(panicked))
            })
            .collect()
    });
    for (place, target, outcomes) in outcomes {
        if let Some(other) = outcomes?.into_iter().find(|outcome| *outcome != expected) {
            let message = format!("{} to {target}: expected {expected}, got {other}", place.name);
            return Ok(Err(message));
        }
    }
    Ok(Ok(()))
}

/// The check of a plan that expects answers.
struct Answers<'a> {
    topology: &'a Topology,
    seen: Seen,
    plan: &'a ProbePlan,
    reaches: &'a Reaches,
    /// The endpoints that answered each client, in the order of their first answers.
    clients: BTreeMap<Client, Vec<String>>,
}

impl Answers<'_> {
    fn check(mut self, places: &[&Place], memory: &mut Memory) -> Result<Result<(), Mismatch>> {
        for place in places {
            for target in &self.plan.to {
                if let Err(mismatch) = self.check_target(place, *target)? {
                    return Ok(Err(format!("{} to {target}: {mismatch}", place.name)));
                }
            }
        }
        Ok(self.check_clients(memory))
    }

    /// Whether a client that asks often may see several endpoints.
    fn is_spread(&self) -> bool {
        let Reaches { same_endpoint, same_as, changed_since, .. } = self.reaches;
        self.plan.sources == 0
            && self.plan.source_ports == 0
            && !same_endpoint
            && same_as.is_none()
            && changed_since.is_none()
            && self.reaches.all
    }

    fn check_target(&mut self, place: &Place, target: Target) -> Result<Result<(), Mismatch>> {
        let sources: Vec<Option<IpAddr>> = match self.plan.sources {
            0 => vec![None],
            count => place
                .addresses
                .iter()
                .take(count)
                .map(|addresses| Some(addresses.of_family(target.address.ip())))
                .collect(),
        };
        // With several ports, each is its own client.
        let ports =
            self.plan.source_port..=self.plan.source_port + self.plan.source_ports.max(1) - 1;
        let is_one = self.plan.sources == 0 && self.plan.source_ports == 0;
        let default = if is_one { ANSWERS } else { 1 };
        let count = self.plan.count.unwrap_or(default);
        let mut missing: BTreeSet<&str> = match self.is_spread() {
            true => self.reaches.reaches.iter().map(String::as_str).collect(),
            false => BTreeSet::new(),
        };
        let clients =
            sources.into_iter().flat_map(|source| ports.clone().map(move |port| (source, port)));
        for (source, source_port) in clients {
            let probe = Probe { source, source_port, ..Probe::new(target) };
            let port = if self.plan.source_ports > 0 { source_port } else { 0 };
            let mut asked = 0;
            while asked < count || (!missing.is_empty() && asked < PATIENCE) {
                let outcome = probe.run(&place.namespace)?;
                let endpoint = match self.check_answer(place, source, target, &outcome) {
                    Ok(endpoint) => endpoint,
                    Err(mismatch) => return Ok(Err(mismatch)),
                };
                missing.remove(endpoint.as_str());
                let seen = self.clients.entry((place.name.clone(), source, port)).or_default();
                if !seen.contains(&endpoint) {
                    seen.push(endpoint);
                }
                asked += 1;
            }
        }
        Ok(match missing.is_empty() {
            true => Ok(()),
            false => Err(format!("never reached {missing:?} in {PATIENCE} attempts")),
        })
    }

    /// The endpoint that answered, if it is among the expected ones and saw the expected source.
    fn check_answer(
        &self,
        place: &Place,
        source: Option<IpAddr>,
        target: Target,
        outcome: &Outcome,
    ) -> Result<String, Mismatch> {
        let Outcome::Reached { endpoint, seen } = outcome else {
            return Err(format!("expected one of {:?}, got {outcome}", self.reaches.reaches));
        };
        if !self.reaches.reaches.contains(endpoint) {
            return Err(format!("expected one of {:?}, got {outcome}", self.reaches.reaches));
        }
        let expected = match &self.reaches.hairpin {
            Some(hairpin) if is_at(endpoint, place) => Some(hairpin),
            _ => self.reaches.source.as_ref(),
        };
        let instead = match self.reaches.kept && self.seen == Seen::Kept {
            true => None,
            false => seen_instead(self.topology, self.seen, target),
        };
        let expected = expected.map(|expected| instead.unwrap_or(expected));
        let seen_as_expected = match expected {
            None => true,
            Some("own") => match source {
                Some(source) => source == seen.ip(),
                None => place.has(seen.ip()),
            },
            Some(other) => self.topology.place(other).is_ok_and(|place| place.has(seen.ip())),
        };
        match seen_as_expected {
            true => Ok(endpoint.clone()),
            false => {
                Err(format!("expected the source {}, got {outcome}", expected.unwrap_or_default()))
            }
        }
    }

    /// Checks what is expected of each client over all its answers.
    fn check_clients(self, memory: &mut Memory) -> Result<(), Mismatch> {
        let recall = |name: &String| {
            memory.0.get(name).ok_or_else(|| format!("nothing was remembered as {name}"))
        };
        if self.reaches.same_endpoint
            && let Some((client, seen)) = self.clients.iter().find(|(_, seen)| seen.len() > 1)
        {
            return Err(format!("{client:?} should stay with one endpoint, but got {seen:?}"));
        }
        let all: BTreeSet<&String> = self.clients.values().flatten().collect();
        if self.reaches.clients_differ && all.len() < 2 {
            return Err(format!("all clients got {all:?}"));
        }
        if let Some(name) = &self.reaches.same_as {
            let before = recall(name)?;
            for (client, seen) in &self.clients {
                if before
                    .get(client)
                    .is_none_or(|endpoint| seen.as_slice() != std::slice::from_ref(endpoint))
                {
                    return Err(format!(
                        "{client:?} should still get {:?}, but got {seen:?}",
                        before.get(client)
                    ));
                }
            }
        }
        if let Some(name) = &self.reaches.changed_since {
            let before = recall(name)?;
            let moved = self.clients.iter().any(|(client, seen)| {
                before.get(client).is_some_and(|endpoint| !seen.contains(endpoint))
            });
            if !moved {
                return Err(format!("every client still gets what it got at {name}"));
            }
        }
        if let Some(name) = &self.reaches.remember {
            let last = |(client, mut seen): (Client, Vec<String>)| Some((client, seen.pop()?));
            memory.0.insert(name.clone(), self.clients.into_iter().filter_map(last).collect());
        }
        Ok(())
    }
}
