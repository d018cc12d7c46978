//! The inputs of a runner.

use std::net::IpAddr;

use super::{Audit, Query, RunnerConfig};
use crate::{config::NodeConfig, objects::Event, proxier::ExternalChange};

/// An input of a running [`Engine`](crate::engine::Engine). Inputs are applied in the order in
/// which they are sent.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "moved a few times, never kept")]
#[non_exhaustive]
pub enum Input {
    /// An object was added, changed or removed, or all objects of a kind were listed.
    Event(Event),
    /// All addresses of the node's interfaces, which replace those of earlier inputs.
    InterfaceAddresses(Vec<IpAddr>),
    /// Another configuration of the same node, as
    /// [`Tracker::set_config`](crate::track::Tracker::set_config) takes it.
    Node(NodeConfig),
    /// The timing of syncs from now on.
    Timing(RunnerConfig),
    /// Another program may have changed what was programmed. The runner decides when to compare.
    ExternallyChanged(ExternalChange),
    /// A request to compare everything with the kernel at the next sync, which is due now.
    Compare,
    /// A question about what is known, which is answered once everything that arrived before is
    /// resolved, but for what is left of a long list. Changes nothing.
    Query(Query),
    /// A question about what the kernel holds, answered once what is due is synced. Changes
    /// nothing.
    Audit(Audit),
}

impl From<Event> for Input {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}
