//! UDP flows that begin before the changes and go on after them.
//!
//! Rules decide where a new flow goes. An existing flow must fulfil less: the endpoint that answers
//! must still serve the address that the flow goes to; where new flows are answered, the old flow
//! is answered, too; and where no Service has the address any more, no server answers. Where nobody
//! serves the address, the server of the beginning may answer in modes that leave such flows alone.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use super::oracle::Oracle;
use packet_rig::{
    Conversation, Outcome, Place, Probe, Protocol, Target, Topology, case::Expectation, chain,
};

/// The places that flows begin at.
const PLACES: [&str; 3] = ["b", "node-1", "client"];
/// The longest time for an answer.
const ANSWER: Duration = Duration::from_millis(400);
/// The time in which stale flows must end.
const SETTLE: Duration = Duration::from_secs(5);

/// A flow with its ends.
pub struct Flow<'a> {
    from: &'a Place,
    to: Target,
    conversation: Conversation,
    /// The server that answered at the beginning.
    first: Option<String>,
}

/// Begins a flow from several places to each UDP target that is no node port, answered or not.
/// (Which flows belong to a node port depends on more than the target.)
pub fn begin<'a>(topology: &'a Topology, targets: &[Target]) -> Result<Vec<Flow<'a>>, String> {
    let places = PLACES.map(|name| topology.place(name).unwrap());
    let is_flow =
        |to: &&Target| to.protocol == Protocol::Udp && !topology.node().has(to.address.ip());
    let mut flows = Vec::new();
    for to in targets.iter().filter(is_flow) {
        for from in places {
            let probe = Probe { timeout: ANSWER, ..Probe::new(*to) };
            let opened = from.namespace.run(|| probe.converse());
            let conversation = opened
                .map_err(|error| chain(&error))?
                .map_err(|error| format!("flow from {} to {to}: {error}", from.name))?;
            flows.push(Flow { from, to: *to, conversation, first: None });
        }
    }
    // All at the same time, because waiting for a timeout takes long.
    thread::scope(|scope| {
        for flow in &mut flows {
            scope.spawn(|| {
                let outcome = flow.conversation.outcome();
                flow.first = outcome.endpoint().map(str::to_owned);
            });
        }
    });
    Ok(flows)
}

/// Makes requests over every flow until the outcome is right, or the time to settle is over.
pub fn check(flows: &mut [Flow<'_>], oracle: Oracle<'_>) -> Result<(), String> {
    let deadline = Instant::now() + SETTLE;
    thread::scope(|scope| {
        let running: Vec<_> =
            flows.iter_mut().map(|flow| scope.spawn(|| flow.check(oracle, deadline))).collect();
        running.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

impl Flow<'_> {
    fn check(&mut self, oracle: Oracle<'_>, deadline: Instant) -> Result<(), String> {
        let mut serving = oracle.serving(self.to);
        if let Some(none) = serving.as_mut().filter(|serving| serving.is_empty())
            && oracle.leaves_unserved_flows()
        {
            none.extend(self.first.clone());
        }
        let serving = serving.unwrap_or_default();
        let expected = oracle.expected(self.from, self.to);
        loop {
            let outcome = self.conversation.outcome();
            if is_right(&outcome, &serving, &expected) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "old flow from {} to {}: {outcome}; {serving:?} serve, new flows: {expected:?}",
                    self.from.name, self.to
                ));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn is_right(outcome: &Outcome, serving: &BTreeSet<String>, expected: &Expectation) -> bool {
    match outcome {
        Outcome::Reached { endpoint, .. } => serving.contains(endpoint),
        _ => matches!(expected, Expectation::Fails(_)),
    }
}
