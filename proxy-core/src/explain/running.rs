//! Facts that only a running proxy has: flows that are tracked, changes that are not synced, what
//! the kernel does, and what tables of other programs drop.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    cause,
    client::{Client, RouteEnd, route_of},
    explanation::{EndpointLine, Explanation, Finding, FrontendLine, KernelCheck, Verdict},
    findings,
    others::{ChainClients, ClosedChain},
};
use crate::{
    model::{IpFamily, Protocol},
    proxier::Drift,
};

/// The flows to the endpoints of an explanation, counted one after the other.
#[derive(Clone, Debug, Default)]
pub struct FlowCounts {
    /// The addresses and ports that clients send to. Node ports have no address: what one of the
    /// endpoints answers is meant for a node port of the Service, whatever the node's address.
    frontends: HashSet<(Protocol, Option<IpAddr>, u16)>,
    endpoints: HashMap<(Protocol, SocketAddr), Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u64,
    stuck: u64,
}

impl FlowCounts {
    /// Returns counts of zero for each endpoint of the explanation.
    pub fn new(explanation: &Explanation) -> Self {
        let frontends =
            explanation.frontends.iter().map(|line| (line.protocol, line.at.ip(), line.port));
        let endpoints = explanation.endpoints.iter().map(|line| (line.protocol, line.address));
        Self {
            frontends: frontends.collect(),
            endpoints: endpoints.map(|endpoint| (endpoint, Count::default())).collect(),
        }
    }

    /// Whether no flow can count.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() || self.endpoints.is_empty()
    }

    /// Counts a flow to this destination, if a frontend has the address and an endpoint
    /// answers.
    pub fn add(
        &mut self,
        protocol: Protocol,
        destination: SocketAddr,
        answered_by: SocketAddr,
        is_stuck: bool,
    ) {
        let Some(count) = self.endpoints.get_mut(&(protocol, answered_by)) else { return };
        let (ip, port) = (destination.ip(), destination.port());
        let has = |ip| self.frontends.contains(&(protocol, ip, port));
        if destination != answered_by && (has(Some(ip)) || has(None)) {
            count.all += 1;
            count.stuck += u64::from(is_stuck);
        }
    }
}

/// The most endpoints whose connections are looked for in the rules of others.
const MOST_ASKED: usize = 16;

impl Explanation {
    /// Shows the flows of each endpoint, and as a problem those that are stuck; `knows_stuck` is
    /// whether stuck ones could be recognized.
    pub fn set_flows(&mut self, counts: &FlowCounts, knows_stuck: bool) {
        let mut stuck = Vec::new();
        for line in &mut self.endpoints {
            let Some(count) = counts.endpoints.get(&(line.protocol, line.address)) else {
                continue;
            };
            line.flows = Some(count.all);
            line.stuck_flows = knows_stuck.then_some(count.stuck);
            if knows_stuck && count.stuck > 0 {
                stuck.push(format!("{} of {} of {}", count.stuck, count.all, line.address));
            }
        }
        stuck.dedup();
        if stuck.is_empty() {
            return;
        }
        let more = match stuck.len().saturating_sub(findings::MOST_NAMED) {
            0 => String::new(),
            more => format!(" and of {more} more endpoints"),
        };
        stuck.truncate(findings::MOST_NAMED);
        let because = format!("connections are stuck: {}{more}", stuck.join(", "));
        self.add_problem(findings::problem(cause::STUCK, because));
    }

    /// Adds that the kernel lacks the last change of the Service; with the time and the reason of
    /// the last sync if that failed.
    pub fn set_unsynced(&mut self, failed: Option<(&str, &str)>) {
        let mut because = "its last change is not in the kernel".to_owned();
        if let Some((at, reason)) = failed {
            because.push_str(&format!(", as the sync at {at} failed: {reason}"));
        }
        self.add_problem(findings::problem(cause::UNSYNCED, because));
    }

    /// Adds the result of reading the kernel's rules; with a sentence about the first difference if
    /// they do otherwise, or are not understood.
    pub fn set_kernel(&mut self, check: KernelCheck, difference: Option<&str>) {
        self.kernel = check;
        if let KernelCheck::NotUnderstood { .. } = check {
            self.not_understood = difference.map(str::to_owned);
        }
        if let (KernelCheck::Differs { different, .. }, Some(because)) = (check, difference) {
            self.set_differing(&format!("the kernel does otherwise: {because}"), different);
        }
    }

    /// Adds the result of the backend's own comparison with what it programmed for the Service.
    pub fn set_drift(&mut self, drift: &Drift) {
        self.kernel = match drift.objects {
            0 => KernelCheck::AsProgrammed,
            objects => KernelCheck::Altered { objects },
        };
        if let Some(first) = drift.examples.first() {
            self.set_differing(&format!("the kernel was changed: {first}"), drift.objects);
        }
    }

    fn set_differing(&mut self, because: &str, count: usize) {
        let more = match count.saturating_sub(1) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        self.add_problem(findings::problem(cause::DIFFERS, format!("{because}{more}")));
        self.verdict = Verdict::Differs;
    }

    /// Adds the chains of other programs that drop connections of the question, of all those that
    /// are `closed`; `node` has the addresses of the node.
    pub fn set_other_tables(&mut self, closed: Vec<ClosedChain>, node: &[IpAddr]) {
        let every = [Client::LocalPod, Client::Node, Client::Other];
        let clients = self.client.as_ref().map_or(&every[..], std::slice::from_ref);
        let mut in_the_way = BTreeSet::new();
        let mut passes = false;
        // Each of thousands of frontends would look at each endpoint.
        let frontends = self.frontends.iter().filter(|_| !closed.is_empty());
        for (line, client) in frontends.flat_map(|l| clients.iter().map(move |c| (l, *c))) {
            for endpoint in self.reached_by(line, client) {
                let mut is_dropped = false;
                for (place, chain) in closed.iter().enumerate() {
                    if chain.drops(client, endpoint.address, node) {
                        in_the_way.insert(place);
                        is_dropped = true;
                    }
                }
                passes |= !is_dropped;
            }
        }
        let chains = closed.into_iter().enumerate().filter(|(place, _)| in_the_way.contains(place));
        let chains: Vec<ClosedChain> = chains.map(|(_, chain)| chain).collect();
        let (before, first) = (self.verdict, chains.first().map(closed_finding));
        chains.iter().for_each(|chain| self.add_problem(closed_finding(chain)));
        if let (Some(first), false, Verdict::Impaired) = (first, passes, self.verdict) {
            if before == Verdict::Impaired {
                self.sentence.push_str(&format!(" All of it is dropped: {}.", first.because));
            }
            self.verdict = Verdict::Drops;
        }
        self.other_tables = Some(chains);
    }

    /// Some endpoints that get new connections, with their protocols.
    pub fn used_endpoints(&self) -> BTreeSet<(SocketAddr, Protocol)> {
        let is_used = |line: &&EndpointLine| line.share.is_some() || line.local_share.is_some();
        let used = self.endpoints.iter().filter(is_used);
        used.map(|line| (line.address, line.protocol)).take(MOST_ASKED).collect()
    }

    /// Whether a frontend leads some client of the question to an endpoint.
    pub fn leads_somewhere(&self) -> bool {
        let mut routes = self.frontends.iter().flat_map(|line| &line.routes).chain(&self.route);
        routes.any(|route| matches!(route.to, RouteEnd::Pool(_)))
    }

    /// The endpoints that a frontend leads a client to.
    fn reached_by(
        &self,
        line: &FrontendLine,
        client: Client,
    ) -> impl Iterator<Item = &EndpointLine> {
        // That of the question has looked at the source ranges.
        let route = self.route.or_else(|| route_of(&line.routes, client));
        let pool = match route.map(|route| route.to) {
            Some(RouteEnd::Pool(pool)) => Some(pool),
            _ => None,
        };
        let port = (line.port_name.clone(), line.protocol, line.family);
        self.endpoints.iter().filter(move |endpoint| {
            let family = IpFamily::of(&endpoint.address.ip());
            pool.is_some_and(|pool| endpoint.share_of(pool).is_some())
                && (&endpoint.port_name, endpoint.protocol, family) == (&port.0, port.1, port.2)
        })
    }

    /// Adds what is wrong to an answer that had not found that.
    fn add_problem(&mut self, finding: Finding) {
        if self.verdict == Verdict::Serves {
            self.verdict = Verdict::Impaired;
            self.sentence.truncate(self.sentence.trim_end_matches('.').len());
            self.sentence.push_str(&format!(", but {}.", finding.because));
        }
        let problems = self.findings.iter().take_while(|finding| finding.is_problem).count();
        self.findings.insert(problems, finding);
    }
}

/// The finding about a chain of another program.
fn closed_finding(chain: &ClosedChain) -> Finding {
    let more = match chain.clients {
        ChainClients::ByNode => ", which leads all clients to endpoints",
        ChainClients::ExceptNode | ChainClients::Node => "",
    };
    Finding {
        code: ClosedChain::CODE,
        is_problem: true,
        because: format!(
            "the {} drops new connections {}{more}: {}",
            chain.table(),
            chain.whose(),
            chain.why()
        ),
        remedy: chain.remedy.clone().into(),
    }
}
