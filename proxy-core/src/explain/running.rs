//! Facts that only a running proxy has: flows that are tracked, changes that are not synced, and
//! what the kernel does.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    cause,
    explanation::{Explanation, Finding, KernelCheck, Verdict},
    findings,
};
use crate::model::Protocol;

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
    /// they do otherwise.
    pub fn set_kernel(&mut self, check: KernelCheck, difference: Option<&str>) {
        self.kernel = check;
        if let (KernelCheck::Differs { different, .. }, Some(because)) = (check, difference) {
            let more = match different.saturating_sub(1) {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let because = format!("the kernel does otherwise: {because}{more}");
            self.add_problem(findings::problem(cause::DIFFERS, because));
            self.verdict = Verdict::Differs;
        }
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
