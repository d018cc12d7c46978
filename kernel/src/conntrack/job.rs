//! Jobs of the worker: frontends, and which of their flows are stale.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use switchyard_core::state::{Frontend, ResolvedServicePort};

use crate::conntrack::flow::Flow;

/// The original destination of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Listener {
    /// `None` for the node's own addresses.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
}

impl Listener {
    pub(crate) fn from_frontend(frontend: &Frontend) -> Self {
        Self { ip: frontend.at.ip(), port: frontend.port }
    }

    pub(crate) fn at(destination: SocketAddr) -> Self {
        Self { ip: Some(destination.ip()), port: destination.port() }
    }

    pub(crate) fn node_port(port: u16) -> Self {
        Self { ip: None, port }
    }
}

/// The flows to a listener that are stale.
#[derive(Clone, Debug)]
pub(crate) enum Stale {
    /// All flows, except those that an endpoint of this Service port answers.
    Unserved(Arc<ResolvedServicePort>),
    /// The same flows, to a listener that the Service port has not had for long: flows begin until
    /// all of the node leads to the Service port, so that a look that finds none is repeated.
    New(Arc<ResolvedServicePort>),
    /// The flows that an endpoint of this Service port answers, which had the listener before.
    Former(Arc<ResolvedServicePort>),
    /// All redirected flows: the Service port that had the listener lost it before its stale flows
    /// were deleted.
    Redirected,
}

impl Stale {
    /// Whether a flow to the listener is stale.
    pub(crate) fn is_stale(&self, flow: &Flow) -> bool {
        match self {
            Self::Unserved(port) | Self::New(port) => !port.serves(flow.answered_by),
            Self::Former(port) => port.serves(flow.answered_by),
            Self::Redirected => flow.is_redirected(),
        }
    }

    /// Whether rules of ours may make such flows again. No rule leads to a port without endpoints;
    /// another program's may, such as that of a host port.
    pub(crate) fn may_come_again(&self) -> bool {
        match self {
            Self::Unserved(port) | Self::New(port) => {
                !port.cluster.is_empty() || !port.local.is_empty()
            }
            Self::Former(_) | Self::Redirected => true,
        }
    }
}

/// Jobs of one group.
pub(crate) type Jobs = HashMap<Listener, Stale>;
