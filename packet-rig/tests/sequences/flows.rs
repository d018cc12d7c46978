//! UDP flows that begin before the changes and go on after them.
//!
//! Rules decide only where a flow begins. So what is asked of one that exists: whoever answers must
//! still serve the address that it goes to; where new flows are answered, this one is, too; and
//! where nobody listens any more, nobody answers.

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use packet_rig::{Conversation, Outcome, Place, Protocol, Target, Topology, case::Expectation};
use proxy_core::state::State;

use crate::oracle;

/// Who has flows.
const PLACES: [&str; 3] = ["b", "node-1", "client"];
/// How long to wait for an answer.
const ANSWER: Duration = Duration::from_millis(400);
/// How long stale flows may live.
const SETTLE: Duration = Duration::from_secs(5);

/// A flow, and where it goes.
pub struct Flow<'a> {
    from: &'a Place,
    to: Target,
    conversation: Conversation,
}

/// Begins a flow from several places to each UDP target that is no node port, answered or not.
/// (What counts as a node port's flow depends on more than where a new one goes.)
pub fn begin<'a>(topology: &'a Topology, targets: &[Target]) -> Result<Vec<Flow<'a>>, String> {
    let places = PLACES.map(|name| topology.place(name).unwrap());
    let is_flow =
        |to: &&Target| to.protocol == Protocol::Udp && !topology.node().has(to.address.ip());
    let mut flows = Vec::new();
    for to in targets.iter().filter(is_flow) {
        for from in places {
            let opened = from.namespace.run(|| Conversation::open(*to, ANSWER));
            let conversation = opened
                .map_err(|error| error.to_string())?
                .map_err(|error| format!("flow from {} to {to}: {error}", from.name))?;
            flows.push(Flow { from, to: *to, conversation });
        }
    }
    // Waiting for nothing takes long, so all at the same time.
    thread::scope(|scope| {
        for flow in &mut flows {
            scope.spawn(|| flow.conversation.outcome());
        }
    });
    Ok(flows)
}

/// Asks over every flow until what comes of it is right, or the time to settle is over.
pub fn check(flows: &mut [Flow<'_>], state: &State, topology: &Topology) -> Result<(), String> {
    let deadline = Instant::now() + SETTLE;
    thread::scope(|scope| {
        let running: Vec<_> = flows
            .iter_mut()
            .map(|flow| scope.spawn(|| flow.check(state, topology, deadline)))
            .collect();
        running.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

impl Flow<'_> {
    fn check(
        &mut self,
        state: &State,
        topology: &Topology,
        deadline: Instant,
    ) -> Result<(), String> {
        let serving = oracle::serving(state, topology, self.to).unwrap_or_default();
        let expected = oracle::expected(state, topology, self.from, self.to);
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
