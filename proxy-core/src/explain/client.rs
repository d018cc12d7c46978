//! Clients, and the way that a frontend treats each kind of client.

use std::net::IpAddr;

use super::facts::KnownNode;
use crate::{
    model::{IpFamily, LocalPods, Protocol},
    state::{Action, Masquerade, PoolKind, ResolvedServicePort},
};

/// The kind of a client, as far as the rules distinguish clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Client {
    /// A pod of this node.
    LocalPod,
    /// The node itself.
    Node,
    /// Any other client.
    Other,
}

impl Client {
    /// The kind of the client with this address. A pod that is detected by its interface counts as
    /// [`Client::Other`].
    pub(super) fn new(address: IpAddr, node: &KnownNode) -> Self {
        match node.settings.local_pods.get(IpFamily::of(&address)) {
            Some(LocalPods::Source(net)) if net.contains(&address) => Self::LocalPod,
            _ if node.addresses.contains(&address) || address.is_loopback() => Self::Node,
            _ => Self::Other,
        }
    }
}

/// The clients of a [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Clients {
    /// Every client.
    All,
    /// The pods of this node.
    LocalPods,
    /// Every client but the pods of this node.
    ExceptLocalPods,
    /// The node itself.
    Node,
    /// Clients that are neither a pod of this node nor the node.
    Others,
}

impl Clients {
    fn has(self, client: Client) -> bool {
        match self {
            Self::All => true,
            Self::LocalPods => client == Client::LocalPod,
            Self::ExceptLocalPods => client != Client::LocalPod,
            Self::Node => client == Client::Node,
            Self::Others => client == Client::Other,
        }
    }
}

/// The end of a [`Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum RouteEnd {
    /// An endpoint of this pool.
    Pool(PoolKind),
    /// Refused at once.
    Refused,
    /// Dropped without an answer.
    Dropped,
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Sees {
    /// The client's. (An endpoint that reaches itself sees the node's in any case.)
    Client,
    /// An address of the node.
    Node,
}

/// The handling of some clients' new connections at a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Route {
    /// The clients.
    pub clients: Clients,
    /// The end.
    pub to: RouteEnd,
    /// The number of endpoints there.
    pub endpoints: usize,
    /// The source address that the endpoints see; `None` where there is no endpoint.
    pub pod_sees: Option<Sees>,
}

/// Returns the routes of a frontend with this action, which cover all clients.
pub(super) fn routes(action: Action, port: &ResolvedServicePort, node: &KnownNode) -> Vec<Route> {
    // Userspace mode ends connections itself, but comes from the client's address where the policy
    // is `Local`, if rules lead to it; never with SCTP, nor to the node itself (`hostNetwork`).
    // Without rules, it refuses what would be dropped.
    let is_relayed = node.is_relayed();
    let dropped = if node.lacks_rules() { RouteEnd::Refused } else { RouteEnd::Dropped };
    let mut local_endpoints = port.local.iter().map(|endpoint| endpoint.address.ip());
    let never_shown = is_relayed
        && (node.lacks_rules()
            || port.id.name.protocol == Protocol::Sctp
            || local_endpoints.all(|ip| node.addresses.contains(&ip)));
    let route = |clients, pool, masqueraded: bool| {
        let sees = if masqueraded || is_relayed { Sees::Node } else { Sees::Client };
        let endpoints = port.pool(pool).len();
        Route { clients, to: RouteEnd::Pool(pool), endpoints, pod_sees: Some(sees) }
    };
    let none = |clients, to| Route { clients, to, endpoints: 0, pod_sees: None };
    let local = |clients| match port.local.is_empty() {
        true => none(clients, dropped),
        false => {
            let sees = if never_shown { Sees::Node } else { Sees::Client };
            Route { pod_sees: Some(sees), ..route(clients, PoolKind::Local, false) }
        }
    };
    match action {
        Action::Pool { pool, masquerade } => match masquerade {
            Masquerade::Never => vec![route(Clients::All, pool, false)],
            Masquerade::Always => vec![route(Clients::All, pool, true)],
            Masquerade::ExceptLocalPods => vec![
                route(Clients::LocalPods, pool, false),
                route(Clients::ExceptLocalPods, pool, true),
            ],
        },
        Action::ExternalLocal => vec![
            route(Clients::LocalPods, PoolKind::Cluster, false),
            route(Clients::Node, PoolKind::Cluster, true),
            local(Clients::Others),
        ],
        Action::Reject => vec![none(Clients::All, RouteEnd::Refused)],
        Action::Drop => vec![none(Clients::All, dropped)],
        // Of derived states, which are not explained.
        Action::Delivered { .. } | Action::DeliveredLocal => Vec::new(),
    }
}

/// Returns the route of a client.
pub(super) fn route_of(routes: &[Route], client: Client) -> Option<Route> {
    routes.iter().copied().find(|route| route.clients.has(client))
}
