//! Service ports that are served otherwise than they ask.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    sync::Arc,
};

use switchyard_core::{
    model::ServicePortId, proxier::DegradedPort, state::ResolvedServicePort, transition::Transition,
};

use crate::{
    layout::{Context, addresses},
    scheduler::is_uneven,
};

/// The Service ports that are served otherwise than they ask, as they were reported.
#[derive(Debug, Default)]
pub(super) struct Degraded {
    reported: HashMap<ServicePortId, String>,
    /// The reasons why not all endpoints of a Service port are served, since the last comparison.
    pub(super) endpoints: BTreeMap<ServicePortId, String>,
}

impl Degraded {
    /// Returns the Service ports that are to be reported: of all if everything was compared, or
    /// else of those that have changed.
    pub(super) fn update(
        &mut self,
        change: &Transition<'_>,
        context: &Context<'_>,
        is_compared: bool,
    ) -> Vec<DegradedPort> {
        let mut new = Vec::new();
        if !is_compared {
            for port in change.ports() {
                let before = self.reported.remove(port.id);
                self.note(before, port.after, context, &mut new);
            }
        } else {
            let mut reported = mem::take(&mut self.reported);
            for (id, port) in &change.after().service_ports {
                self.note(reported.remove(id), Some(port), context, &mut new);
            }
        }
        new.sort_by(|a, b| a.port.cmp(&b.port));
        new
    }

    fn note(
        &mut self,
        before: Option<String>,
        port: Option<&Arc<ResolvedServicePort>>,
        context: &Context<'_>,
        new: &mut Vec<DegradedPort>,
    ) {
        let Some(port) = port else { return };
        let Some(reason) = self.reason(port, context) else { return };
        if before.as_ref() != Some(&reason) {
            new.push(DegradedPort { port: port.id.clone(), reason: reason.clone() });
        }
        self.reported.insert(port.id.clone(), reason);
    }

    /// The reason: an address that is never bound, endpoints that the kernel refuses, or a
    /// scheduler that the kernel does not have. That the default is missing is the node's problem.
    fn reason(&self, port: &ResolvedServicePort, context: &Context<'_>) -> Option<String> {
        if let Some(ip) = addresses::external(port).find(|ip| context.never_bound.contains(ip)) {
            return Some(format!(
                "{ip} is an address of the API server, and does not become one of this node"
            ));
        }
        if let Some(reason) = self.endpoints.get(&port.id) {
            return Some(format!("an endpoint is left out: {reason}"));
        }
        let (used, asked) = context.scheduler(port);
        let default = context.scheduler.lb_algorithm();
        // Weights ask for another scheduler of the same algorithm.
        let asked = asked.filter(|asked| asked.lb_algorithm() != default || is_uneven(port))?;
        Some(format!(
            "the kernel has no scheduler `{asked}` (the module {} is missing); connections are \
             spread by `{used}` instead",
            asked.module()
        ))
    }
}
