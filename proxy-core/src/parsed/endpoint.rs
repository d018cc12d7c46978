//! Endpoints, parsed.

use std::{net::IpAddr, sync::Arc};

use crate::explain::Whereabouts;

#[derive(Debug, PartialEq)]
pub(crate) struct SliceEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) ready: bool,
    pub(crate) serving: bool,
    pub(crate) terminating: bool,
    pub(crate) place: Place,
    pub(crate) node_hint: NodeHint,
    /// The endpoint's share of new connections; 0 for none.
    pub(crate) weight: u16,
    /// `hints.forZones`
    pub(crate) zones: Zones,
}

impl SliceEndpoint {
    /// Whether the endpoint runs on this node.
    pub(crate) fn is_local(&self) -> bool {
        self.place == Place::Here
    }

    /// Whether the endpoint may have new connections because it is ready.
    pub(crate) fn takes_new(&self) -> bool {
        self.ready && self.weight > 0
    }

    /// Whether the endpoint may have new connections where no endpoint is ready.
    pub(crate) fn is_last_resort(&self) -> bool {
        self.serving && self.terminating && self.weight > 0
    }
}

/// Where an endpoint runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// On another node.
    Elsewhere,
    /// Perhaps on this node: slices that people write often name no node.
    Unknown,
    /// On this node.
    Here,
}

impl From<Place> for Whereabouts {
    fn from(place: Place) -> Self {
        match place {
            Place::Elsewhere => Self::Elsewhere,
            Place::Unknown => Self::Unknown,
            Place::Here => Self::Here,
        }
    }
}

/// Names of zones: sorted, each once. The same few sets are shared by all endpoints.
pub(crate) type Zones = Arc<[Arc<str>]>;

/// The meaning of `hints.forNodes` about this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeHint {
    /// The hint names no node.
    None,
    /// The hint names this node.
    Ours,
    /// The hint names other nodes only.
    Others,
}
