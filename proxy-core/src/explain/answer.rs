//! Answers to questions.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::{
    cause,
    client::{Client, Clients, Route, RouteEnd, Sees, route_of, routes},
    explanation::{EndpointLine, Explanation, Finding, FrontendLine, Verdict},
    facts::{Known, KnownEndpoint, KnownNode, KnownPort, KnownService},
    findings,
    question::Question,
    similar::similar,
};
use crate::{
    model::{IpFamily, Protocol, ServiceName, ServicePortId},
    state::{Endpoint, Frontend, FrontendAddress, Pool, PoolKind},
};

/// Answers a question. Takes time in proportion to the Services only if there is no such Service
/// or address.
pub fn explain(question: &Question, known: &dyn Known) -> Explanation {
    let node = known.node();
    let mut answer = match question {
        Question::Service { service, port } => {
            about_service(question, service, port.as_deref(), known, &node)
        }
        Question::Address { client, to, protocol } => {
            about_address(question, *client, *to, *protocol, known, &node)
        }
    };
    if let Some(missing) = &node.waits_for {
        answer.verdict = Verdict::Unknown;
        answer.sentence = format!(
            "Nothing is programmed on {} yet, as the proxy waits for {missing}; rules of an earlier run \
             stay until then.",
            node.name
        );
        let because = format!("the first sync waits for {missing}");
        answer.findings.insert(0, findings::problem(cause::NOT_SYNCED, because));
    }
    answer
}

fn about_service(
    question: &Question,
    name: &ServiceName,
    port: Option<&str>,
    known: &dyn Known,
    node: &KnownNode,
) -> Explanation {
    let unknown = |sentence| Explanation::new(question, node, Verdict::Unknown, sentence);
    let is_asked = |id: &ServicePortId| port.is_none_or(|port| *id.name.port == *port);
    let Some(service) = known.service(name, &is_asked) else {
        let mut sentence = format!("No Service {name} is proxied on {}.", node.name);
        let similar: Vec<String> =
            similar(name, known.names()).iter().map(ToString::to_string).collect();
        if !similar.is_empty() {
            sentence.pop();
            sentence.push_str(&format!("; did you mean {}?", similar.join(" or ")));
        }
        let mut answer = unknown(sentence);
        let because = format!("there is no Service {name} that this proxy serves");
        answer.findings.push(findings::problem(cause::NO_SERVICE, because));
        return answer;
    };
    if let (Some(port), []) = (port, &*service.ports) {
        let all = known.service(name, &|_| true).into_iter().flat_map(|service| service.ports);
        let names: BTreeSet<_> = all.map(|port| port.id.name.port).collect();
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let mut answer =
            unknown(format!("{name} has no port `{port}`; its ports are: {}.", names.join(", ")));
        let because = format!("{name} has no port of this name");
        answer.findings.push(findings::problem(cause::NO_PORT, because));
        return answer;
    }
    let ports = &service.ports;
    let frontends: Vec<FrontendLine> =
        ports.iter().flat_map(|port| frontend_lines(port, node, |_| true)).collect();
    let endpoints: Vec<EndpointLine> = ports.iter().flat_map(endpoint_lines).collect();
    let findings = findings::of_service(&service, &frontends, node);
    let verdict = verdict(frontends.iter().flat_map(|line| &line.routes), &findings);
    let sentence = service_sentence(&service, &endpoints, verdict, &findings, node);
    Explanation {
        service: Some(name.to_string()),
        health_check: service.health_check,
        frontends,
        endpoints,
        unlisted_endpoints: unlisted(&service),
        findings,
        ..Explanation::new(question, node, verdict, sentence)
    }
}

/// The verdict of routes, with what is wrong besides.
fn verdict<'r>(routes: impl Iterator<Item = &'r Route>, findings: &[Finding]) -> Verdict {
    let ends: Vec<RouteEnd> = routes.map(|route| route.to).collect();
    if ends.iter().any(|end| matches!(end, RouteEnd::Pool(_))) {
        match findings.iter().any(|finding| finding.is_problem) {
            true => Verdict::Impaired,
            false => Verdict::Serves,
        }
    } else if ends.contains(&RouteEnd::Refused) {
        Verdict::Refuses
    } else if ends.contains(&RouteEnd::Dropped) {
        Verdict::Drops
    } else {
        Verdict::Unknown
    }
}

fn service_sentence(
    service: &KnownService,
    endpoints: &[EndpointLine],
    verdict: Verdict,
    findings: &[Finding],
    node: &KnownNode,
) -> String {
    let (name, node) = (&service.name, &node.name);
    let count = |is_counted: &dyn Fn(&EndpointLine) -> bool| {
        let counted = endpoints.iter().filter(|line| is_counted(line));
        counted.map(|line| line.address.ip()).collect::<BTreeSet<_>>().len()
    };
    let (used, all) = (count(&|line| line.state.is_used()), count(&|_| true));
    let by = match (used, all) {
        _ if unlisted(service) > 0 => format!("at least {used} endpoints"),
        (1, 1) => "its only endpoint".to_owned(),
        (used, all) if used == all => format!("its {all} endpoints"),
        (used, all) => format!("{used} of its {all} endpoints"),
    };
    let why = findings.iter().find(|finding| finding.is_problem);
    let why = why.map_or_else(String::new, |finding| finding.because.clone());
    match verdict {
        Verdict::Serves => format!("{name} is served on {node} by {by}."),
        Verdict::Impaired | Verdict::Differs => {
            format!("{name} is served on {node} by {by}, but {why}.")
        }
        Verdict::Refuses => format!("Connections to {name} are refused on {node}: {why}."),
        Verdict::Drops => format!("Connections to {name} are dropped on {node}: {why}."),
        Verdict::Unknown => format!("{name} is not programmed on {node}: {why}."),
    }
}

fn about_address(
    question: &Question,
    client: Option<IpAddr>,
    to: SocketAddr,
    protocol: Protocol,
    known: &dyn Known,
    node: &KnownNode,
) -> Explanation {
    let (ip, family) = (to.ip(), IpFamily::of(&to.ip()));
    let kind = client.map(|client| Client::new(client, node));
    let is_node_port_address = node.settings.node_ports.get(family).contains(ip)
        && (node.addresses.contains(&ip) || ip.is_loopback());
    let mut at = Some(ip);
    let mut owner = known.owner(at, family, protocol, to.port());
    if owner.is_none() && is_node_port_address {
        at = None;
        owner = known.owner(None, family, protocol, to.port());
    }
    let found = owner.and_then(|id| known.service(&id.name.service, &|port| *port == id));
    let Some(service) = found.filter(|service| !service.ports.is_empty()) else {
        return Explanation { client: kind, ..unserved(question, to, protocol, known, node) };
    };
    let ports = &service.ports;
    let listens = |frontend: &Frontend| (frontend.at.ip(), frontend.port) == (at, to.port());
    let frontends: Vec<FrontendLine> =
        ports.iter().flat_map(|port| frontend_lines(port, node, listens)).collect();
    let endpoints: Vec<EndpointLine> = ports.iter().flat_map(endpoint_lines).collect();
    let mut findings = findings::of_service(&service, &frontends, node);
    let line = frontends.first();
    let mut route = line.zip(kind).and_then(|(line, kind)| route_of(&line.routes, kind));
    if let (Some(client), Some(allowed)) = (client, line.and_then(|l| l.allowed_sources.as_ref()))
        && !allowed.iter().any(|net| net.contains(&client))
    {
        let dropped = RouteEnd::Dropped;
        route = Some(Route { clients: Clients::All, to: dropped, endpoints: 0, pod_sees: None });
        let because = format!("{client} is in none of the Service's source ranges");
        findings.insert(0, findings::problem(cause::SOURCE_RANGE, because));
    }
    let verdict = match &route {
        Some(route) => verdict([route].into_iter(), &findings),
        None => verdict(frontends.iter().flat_map(|line| &line.routes), &findings),
    };
    let port = ports.first().map(|port| port.id.name.to_string()).unwrap_or_default();
    let sentence = address_sentence(
        &Connections { client: client.zip(kind), to, protocol, port },
        route.or_else(|| line.and_then(|line| line.routes.first().copied())),
        verdict,
        &findings,
    );
    Explanation {
        service: Some(service.name.to_string()),
        health_check: service.health_check,
        client: kind,
        route,
        frontends,
        endpoints,
        unlisted_endpoints: unlisted(&service),
        findings,
        ..Explanation::new(question, node, verdict, sentence)
    }
}

/// The number of endpoints that a Service has beside those that are listed.
fn unlisted(service: &KnownService) -> usize {
    service.ports.iter().map(|port| port.unlisted).sum()
}

/// The connections of a question about an address.
struct Connections {
    client: Option<(IpAddr, Client)>,
    to: SocketAddr,
    protocol: Protocol,
    port: String,
}

fn address_sentence(
    Connections { client, to, protocol, port }: &Connections,
    route: Option<Route>,
    verdict: Verdict,
    findings: &[Finding],
) -> String {
    let from = match client {
        Some((ip, Client::LocalPod)) => format!(" from {ip} (a pod of this node)"),
        Some((ip, Client::Node)) => format!(" from {ip} (this node)"),
        Some((ip, Client::Other)) => format!(" from {ip}"),
        None => String::new(),
    };
    let connections = format!("Connections{from} to {to}/{} ({port})", protocol.as_lower());
    // What drops the client of a `Local` policy is no problem of the Service.
    let why = findings.iter().find(|finding| finding.is_problem).or(findings.first());
    let why = why.map_or_else(String::new, |finding| finding.because.clone());
    match verdict {
        Verdict::Refuses => format!("{connections} are refused: {why}."),
        Verdict::Drops => format!("{connections} are dropped: {why}."),
        Verdict::Unknown => format!("{connections} are not programmed: {why}."),
        Verdict::Serves | Verdict::Impaired | Verdict::Differs => {
            let route = route.filter(|route| matches!(route.to, RouteEnd::Pool(_)));
            let number = route.map_or(0, |route| route.endpoints);
            let mut sentence = match (number, client) {
                (0, _) => format!("{connections} are served for some clients"),
                (1, _) => format!("{connections} go to one endpoint"),
                (number, _) => format!("{connections} go to one of {number} endpoints"),
            };
            if client.is_some() {
                match route.and_then(|route| route.pod_sees) {
                    Some(Sees::Client) => {
                        sentence.push_str(", with the client's address as source")
                    }
                    Some(Sees::Node) => sentence.push_str(", with the node's address as source"),
                    None => {}
                }
            }
            if verdict == Verdict::Impaired {
                sentence.push_str(&format!(", but {why}"));
            }
            sentence + "."
        }
    }
}

/// The answer about an address and port that no Service port has.
fn unserved(
    question: &Question,
    to: SocketAddr,
    protocol: Protocol,
    known: &dyn Known,
    node: &KnownNode,
) -> Explanation {
    let (ip, family, number) = (to.ip(), IpFamily::of(&to.ip()), to.port());
    let shown = format!("{number}/{}", protocol.as_lower());
    let (verdict, cause, because) = if node.addresses.contains(&ip) {
        match known.owner(None, family, protocol, number) {
            Some(id) => (
                Verdict::Unknown,
                cause::NODE_ADDRESS,
                format!("{shown} is a node port of {}, which is not served on {ip}", id.name),
            ),
            None => (
                Verdict::Unknown,
                cause::NO_PORT,
                format!("no Service has the node port {shown}, so that the node itself answers"),
            ),
        }
    } else if let Some((service, at)) = known.having(ip) {
        let is_cluster_ip = matches!(at, FrontendAddress::ClusterIp(_));
        let is_refused = node.has_service_addresses() || (is_cluster_ip && node.is_guarded());
        let because = format!("{ip} belongs to {service}, which has no port {shown}");
        let is_check_of = |service: KnownService| {
            let check = service.health_check.filter(|check| check.has_family(family));
            protocol == Protocol::Tcp && check.is_some_and(|check| check.port == number)
        };
        let answers_checks = node.has_service_addresses()
            && known.service(&service, &|_| false).is_some_and(is_check_of);
        let (verdict, rest) = if answers_checks {
            (Verdict::Unknown, "; the node itself answers health checks there")
        } else if is_refused {
            (Verdict::Refuses, "")
        } else {
            (Verdict::Unknown, "; the packets are left alone")
        };
        (verdict, cause::NO_PORT, because + rest)
    } else {
        let ranges = node.settings.service_cidrs.get(family);
        match ranges.iter().find(|net| net.contains(&ip)).filter(|_| node.is_guarded()) {
            Some(net) => (
                Verdict::Drops,
                cause::NO_OWNER,
                format!("no Service has {ip}, which is inside the ServiceCIDR {net}"),
            ),
            None => (
                Verdict::Unknown,
                cause::NO_OWNER,
                format!("no Service has {ip}, so that the proxy leaves the packets alone"),
            ),
        }
    };
    let sentence = match verdict {
        Verdict::Refuses => format!("Connections to {to} are refused: {because}."),
        Verdict::Drops => format!("Connections to {to} are dropped: {because}."),
        _ => format!("Connections to {to} are not proxied: {because}."),
    };
    Explanation {
        findings: vec![findings::problem(cause, because)],
        ..Explanation::new(question, node, verdict, sentence)
    }
}

fn frontend_lines(
    port: &KnownPort,
    node: &KnownNode,
    is_shown: impl Fn(&Frontend) -> bool,
) -> Vec<FrontendLine> {
    let Some(resolved) = &port.resolved else { return Vec::new() };
    let line = |frontend: &Frontend| FrontendLine {
        port_name: port.id.name.port.clone(),
        family: port.id.family,
        at: frontend.at,
        port: frontend.port,
        protocol: port.id.name.protocol,
        allowed_sources: frontend.allowed_sources.clone(),
        routes: match (&port.refused, node.refused.get(port.id.family)) {
            (None, None) => routes(frontend.action, resolved, node),
            _ => Vec::new(),
        },
        lb_algorithm: resolved.lb_algorithm,
        affinity_seconds: resolved.affinity.map(|time| time.as_secs()),
    };
    resolved.frontends.iter().filter(|frontend| is_shown(frontend)).map(line).collect()
}

fn endpoint_lines(port: &KnownPort) -> Vec<EndpointLine> {
    let weight = |endpoint: &Endpoint| f64::from(endpoint.weight);
    let pools = [PoolKind::Cluster, PoolKind::Local].map(|kind| {
        let pool = port.resolved.as_deref().map(|resolved| resolved.pool(kind));
        pool.map(|pool| (pool, pool.iter().map(weight).sum::<f64>()))
    });
    let share = |pool: &Option<(&Pool, f64)>, address: SocketAddr| {
        let (pool, sum) = pool.as_ref()?;
        let place = pool.binary_search_by_key(&address, |endpoint| endpoint.address).ok()?;
        Some(weight(&pool[place]) / sum)
    };
    let line = |endpoint: &KnownEndpoint| EndpointLine {
        port_name: port.id.name.port.clone(),
        protocol: port.id.name.protocol,
        address: endpoint.address,
        pod: None,
        node: endpoint.node,
        node_name: None,
        zone: None,
        share: share(&pools[0], endpoint.address),
        local_share: share(&pools[1], endpoint.address),
        state: endpoint.state,
        code: findings::cause_of(endpoint.state).map(|cause| cause.code),
        state_seconds: None,
        slice: None,
        slice_seconds: None,
        flows: None,
        stuck_flows: None,
    };
    port.endpoints.iter().map(line).collect()
}
