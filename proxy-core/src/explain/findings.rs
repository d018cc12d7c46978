//! Findings about a Service: what is wrong, and why endpoints are left out.

use std::collections::BTreeSet;

use super::{
    cause::{self, Cause},
    client::{Clients, RouteEnd},
    explanation::{Finding, FrontendLine},
    facts::{EndpointState, KnownNode, KnownPort, KnownService},
};
use crate::model::HashMap;

/// The most endpoints that a finding names.
pub(super) const MOST_NAMED: usize = 3;

/// The states of endpoints that are left out, in the order of their findings.
const LEFT_OUT: [EndpointState; 11] = [
    EndpointState::NotReady,
    EndpointState::Terminating,
    EndpointState::Draining,
    EndpointState::ZeroWeight,
    EndpointState::HintsOtherNode,
    EndpointState::HintsOtherZone,
    EndpointState::NotLocal,
    EndpointState::BeyondLimit,
    EndpointState::NoFrontend,
    EndpointState::NoSuchPort,
    EndpointState::OtherFamily,
];

/// A finding that something is wrong.
pub(super) fn problem(Cause { code, remedy }: Cause, because: String) -> Finding {
    Finding { code, is_problem: true, because, remedy: remedy.into() }
}

fn note(cause: Cause, because: String) -> Finding {
    Finding { is_problem: false, ..problem(cause, because) }
}

/// The cause that leaves out an endpoint in this state.
pub(super) fn cause_of(state: EndpointState) -> Option<Cause> {
    Some(match state {
        EndpointState::Ready => return None,
        EndpointState::LastResort => cause::LAST_RESORT,
        EndpointState::NotReady => cause::NOT_READY,
        EndpointState::Terminating | EndpointState::Draining => cause::TERMINATING,
        EndpointState::ZeroWeight => cause::DRAINED,
        EndpointState::HintsOtherNode | EndpointState::HintsOtherZone => cause::HINTS,
        EndpointState::NotLocal => cause::ELSEWHERE,
        EndpointState::BeyondLimit => cause::UNUSABLE,
        EndpointState::NoFrontend => cause::CONFLICT,
        EndpointState::NoSuchPort => cause::OTHER_PORT,
        EndpointState::OtherFamily => cause::OTHER_FAMILY,
    })
}

/// The reason for a state, behind the names of endpoints.
pub(super) fn reason(state: EndpointState) -> &'static str {
    match state {
        EndpointState::Ready => "ready",
        EndpointState::LastResort => "terminating, used since no endpoint is ready",
        EndpointState::NotReady => "not ready",
        EndpointState::Terminating => "terminating, does not serve",
        EndpointState::Draining => "terminating, no new connections while others are ready",
        EndpointState::ZeroWeight => "weight 0",
        EndpointState::HintsOtherNode => "left out by hints: others are for this node",
        EndpointState::HintsOtherZone => "left out by hints: others are for this zone",
        EndpointState::NotLocal => "not on this node, policy Local",
        EndpointState::BeyondLimit => "beyond the limit of destinations",
        EndpointState::NoFrontend => "no address of the Service leads to it",
        EndpointState::NoSuchPort => "its slice lacks the port",
        EndpointState::OtherFamily => "the Service has no address in its family",
    }
}

/// Returns the findings about the ports of a Service and these frontends, problems first.
pub(super) fn of_service(
    service: &KnownService,
    frontends: &[FrontendLine],
    node: &KnownNode,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut fates = HashMap::<_, BTreeSet<Fate>>::default();
    for line in frontends {
        let fates = fates.entry((&line.port_name, line.protocol, line.family)).or_default();
        fates.extend(line.routes.iter().map(|route| rank(route.to, route.clients)));
    }
    for port in &service.ports {
        let name = &port.id;
        let endpoints = port.endpoints.len() + port.unlisted;
        let key = (&name.name.port, name.name.protocol, name.family);
        for fate in fates.remove(&key).unwrap_or_default() {
            match fate {
                Fate::Refused => found.push(problem(
                    cause::NO_ENDPOINT,
                    format!("{name} has no ready endpoint (of {endpoints})"),
                )),
                Fate::Dropped => found.push(problem(
                    cause::NONE_HERE,
                    format!(
                        "{name} has the policy Local and no ready endpoint on {} (of {endpoints})",
                        node.name
                    ),
                )),
                Fate::OthersDropped => {
                    let mut because = format!(
                        "clients outside of {} are dropped: {name} has externalTrafficPolicy Local and no \
                         ready endpoint here (of {endpoints})",
                        node.name
                    );
                    if let Some(check) = service.health_check {
                        because.push_str(&match check.local_endpoints.get(name.family) {
                            Some(1..) => format!(
                                "; a load balancer may send them, as the health check on port {} \
                                 succeeds by another port of the Service",
                                check.port
                            ),
                            _ => format!(
                                "; a load balancer should not send them, as the health check on \
                                 port {} fails",
                                check.port
                            ),
                        });
                    }
                    found.push(note(cause::NONE_HERE, because));
                }
                Fate::Served => {}
            }
        }
        if let Some(reason) = &port.refused {
            found.push(problem(cause::REFUSED, format!("the node refuses {name}: {reason}")));
        }
        for lost in &port.lost {
            let at = lost.at.ip().map_or("the node".to_owned(), |ip| ip.to_string());
            let because = format!("port {} of {at} belongs to {}", lost.port, lost.to.name);
            found.push(problem(cause::CONFLICT, because));
        }
        let last_resort = port.endpoints.iter().any(|e| e.state == EndpointState::LastResort);
        if last_resort {
            let because = format!("only terminating endpoints serve {name}");
            found.push(problem(cause::LAST_RESORT, because));
        }
    }
    for (family, reason) in [("IPv4", &node.refused.v4), ("IPv6", &node.refused.v6)] {
        let has_family = || service.ports.iter().any(|port| port.id.family.as_str() == family);
        if let Some(reason) = reason.as_ref().filter(|_| has_family()) {
            let because = format!("the node refuses all of {family}: {reason}");
            found.push(problem(cause::REFUSED, because));
        }
    }
    let unusable = |text: &String| problem(cause::UNUSABLE, text.clone());
    found.extend(service.problems.iter().map(unusable));
    found.extend(LEFT_OUT.into_iter().filter_map(|state| left_out(state, &service.ports)));
    // In the order in which they were found.
    found.sort_by_key(|finding| !finding.is_problem);
    found.dedup();
    found
}

/// The fates of clients at a frontend that findings tell apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Refused,
    Dropped,
    OthersDropped,
    Served,
}

fn rank(to: RouteEnd, clients: Clients) -> Fate {
    match (to, clients) {
        (RouteEnd::Refused, _) => Fate::Refused,
        (RouteEnd::Dropped, Clients::Others) => Fate::OthersDropped,
        (RouteEnd::Dropped, _) => Fate::Dropped,
        (RouteEnd::Pool(_), _) => Fate::Served,
    }
}

/// The finding about the endpoints that are left out for one reason; `None` if there are none.
fn left_out(state: EndpointState, ports: &[KnownPort]) -> Option<Finding> {
    let endpoints = ports.iter().flat_map(|port| &port.endpoints);
    let addresses: BTreeSet<String> = endpoints
        .filter(|endpoint| endpoint.state == state)
        .map(|endpoint| match endpoint.address.port() {
            0 => endpoint.address.ip().to_string(),
            _ => endpoint.address.to_string(),
        })
        .collect();
    let cause = cause_of(state).filter(|_| !addresses.is_empty())?;
    let named: Vec<&str> = addresses.iter().map(String::as_str).take(MOST_NAMED).collect();
    let more = match addresses.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let because = format!("{}{more}: {}", named.join(", "), reason(state));
    // An endpoint that the objects do not mean to be left out.
    match state {
        EndpointState::NoSuchPort => Some(problem(cause, because)),
        _ => Some(note(cause, because)),
    }
}
