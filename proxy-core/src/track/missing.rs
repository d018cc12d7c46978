//! The facts required before the first sync.

use super::Tracker;
use crate::{config::LocalPodsConfig, objects::Kind};

/// Something that the first sync waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The list of Services.
    Services,
    /// The list of EndpointSlices.
    EndpointSlices,
    /// The list of Nodes.
    Nodes,
    /// The Node of this node, which is not in the list.
    Node,
    /// A usable address in the Node.
    NodeAddresses,
    /// `spec.podCIDRs` of the Node.
    PodCidrs,
}

impl Missing {
    /// A name for messages, such as `the list of Services`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Services => "the list of Services",
            Self::EndpointSlices => "the list of EndpointSlices",
            Self::Nodes => "the list of Nodes",
            Self::Node => "the Node",
            Self::NodeAddresses => "the Node's addresses",
            Self::PodCidrs => "the Node's podCIDRs",
        }
    }
}

/// Facts that a Node must state before the first sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequiredFacts {
    /// At least one address.
    pub(crate) addresses: bool,
    /// At least one of `spec.podCIDRs`, if the configuration uses them.
    pub(crate) pod_cidrs: bool,
}

impl Tracker {
    /// The facts required before the first sync, and is not: Services and EndpointSlices have to be
    /// listed whole, and the Node if the configuration takes anything from the Node. Before that,
    /// nothing must be programmed: what the kernel still holds is better than a part of the truth.
    pub fn waits_for(&self) -> Option<Missing> {
        if !self.listed.contains(&Kind::Service) {
            Some(Missing::Services)
        } else if !self.listed.contains(&Kind::EndpointSlice) {
            Some(Missing::EndpointSlices)
        } else if self.config.asks_the_node() {
            self.node_lacks()
        } else {
            None
        }
    }

    /// The facts that are missing of the Node, whether or not the configuration takes anything from
    /// the Node.
    pub(crate) fn node_lacks(&self) -> Option<Missing> {
        if !self.listed.contains(&Kind::Node) {
            return Some(Missing::Nodes);
        }
        let node = self.node();
        if self.required.addresses && node.is_none_or(|node| node.addresses.is_empty()) {
            let missing = node.map_or(Missing::Node, |_| Missing::NodeAddresses);
            return Some(missing);
        }
        let uses_pod_cidrs = self.config.local_pods == LocalPodsConfig::NodeCidr;
        let lacks_pod_cidrs = node.is_none_or(|node| node.pod_cidrs.is_empty());
        (self.required.pod_cidrs && uses_pod_cidrs && lacks_pod_cidrs).then_some(Missing::PodCidrs)
    }

    /// Sets which facts a listed Node must state before the first sync; none by default.
    #[cfg(feature = "runner")]
    pub(crate) fn require(&mut self, facts: RequiredFacts) {
        self.required = facts;
    }
}
