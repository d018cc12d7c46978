//! The chains that load-balance over N slots, and the maps that lead from slots to endpoints.
//!
//! All Service ports that select one of N slots in the same way share a chain, which is added when
//! it is first needed. The maps are one per protocol: `nft` has no protocol-neutral port type that
//! it can print and parse back.

use std::net::SocketAddr;

use switchyard_core::{
    model::Protocol,
    state::{Frontend, Masquerade, PoolKind, ResolvedServicePort},
};
use switchyard_kernel::nftables::{
    ChainName, Family, Field, Rule, Selector, SetDef, Side, Statement, Value, Verdict,
};

use super::{ChainRules, Context, names::set, slots::Selection};

/// The kind of address at which traffic arrives, which decides how a Service port is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// An address of the Service: the lookup is by address, protocol and port.
    Ip,
    /// An address of the node: the lookup is by protocol and port.
    NodePort,
}

impl Scope {
    pub(crate) const ALL: [Self; 2] = [Self::Ip, Self::NodePort];

    pub(crate) fn of(frontend: &Frontend) -> Self {
        match frontend.at.ip() {
            Some(_) => Self::Ip,
            None => Self::NodePort,
        }
    }

    /// The prefix of the names of chains.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Ip => "",
            Self::NodePort => "nodeport-",
        }
    }
}

/// An endpoint as the value of an element.
pub(crate) fn endpoint_value(endpoint: SocketAddr) -> Value {
    Value::new().address(endpoint.ip()).port(endpoint.port())
}

/// A map from a Service port and a slot to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EndpointMap {
    pub(crate) scope: Scope,
    /// `Local` are the endpoints on this node for a frontend that leads to both pools, or whose
    /// Service port has chains; all other endpoints are in the maps of `Cluster`.
    pub(crate) pool: PoolKind,
    pub(crate) protocol: Protocol,
}

impl EndpointMap {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Scope::ALL.into_iter().flat_map(|scope| {
            [PoolKind::Cluster, PoolKind::Local].into_iter().flat_map(move |pool| {
                Protocol::ALL.into_iter().map(move |protocol| Self { scope, pool, protocol })
            })
        })
    }

    /// The name of the map. Upstream has no such maps. They must not hold verdicts: upstream does
    /// not empty them when it takes over, and could not delete the chains that verdicts lead to.
    pub(crate) fn name(self) -> String {
        let local = match self.pool {
            PoolKind::Cluster => "",
            PoolKind::Local => "local-",
        };
        format!("{local}{}{}-endpoints", self.scope.prefix(), self.protocol.as_lower())
    }

    pub(crate) fn define(self, family: Family) -> SetDef {
        let (address, port) = (family.address_field(), Field::Port(self.protocol));
        let mut key = vec![port, Field::Slot];
        let place = match self.scope {
            Scope::Ip => {
                key.insert(0, address);
                "Service IP"
            }
            Scope::NodePort => "node port",
        };
        let which = match self.pool {
            PoolKind::Cluster => "endpoints",
            PoolKind::Local => "endpoints on this node",
        };
        SetDef::map(self.name(), key, [address, port])
            .with_comment(format!("{which} by {place} and slot"))
    }

    /// The rule that translates packets to the endpoint in the selected slot.
    pub(crate) fn balance(self, selection: Selection) -> Rule {
        let key = match self.scope {
            Scope::Ip => vec![Selector::DestinationAddress, Selector::DestinationPort],
            Scope::NodePort => vec![Selector::DestinationPort],
        };
        let (protocol, map) = (self.protocol, self.name().into());
        let (choice, slots) = (selection.method.slot_choice(), selection.slots);
        Rule::new([Statement::DnatSlot { protocol, key, choice, slots, map }])
    }
}

/// The purpose of a shared chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Translates to the endpoint in one of the slots.
    Balance,
    /// Marks the connection to be masqueraded, then balances.
    MasqueradeAll,
    /// Marks the connection to be masqueraded unless it comes from a pod of this node, then
    /// balances.
    MasqueradeNonLocal,
    /// `externalTrafficPolicy: Local`: balances the traffic of clients on this node over all
    /// endpoints; all other traffic goes to the local endpoints, if there are any.
    ///
    /// The number of local slots is part of the chain instead of a lookup in a map: kube-proxy,
    /// when it takes over, empties no maps but those that it knows, and a verdict left in another
    /// map would keep kube-proxy for ever from deleting the chain that the verdict leads to.
    ExternalLocal {
        /// The number of slots of the endpoints on this node, may be 0.
        local: u32,
    },
    /// Translates to the endpoint in one of the slots of the local endpoints.
    BalanceLocal,
    /// Marks connections of these clients to be masqueraded, and leaves the translation to another
    /// backend.
    Delivered(Masquerade),
    /// `externalTrafficPolicy: Local`: balances the traffic of clients on this node over all
    /// endpoints, and leaves that of all others to another backend.
    DeliveredLocal,
}

/// A shared chain. Its name has a `/`, see [`super::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LbChain {
    pub(crate) scope: Scope,
    pub(crate) role: Role,
    pub(crate) selection: Selection,
}

impl LbChain {
    /// The chain that selects an endpoint of a pool for a Service port with chains of its own.
    pub(crate) fn of_pool(scope: Scope, kind: PoolKind, port: &ResolvedServicePort) -> Self {
        let role = match kind {
            PoolKind::Cluster => Role::Balance,
            PoolKind::Local => Role::BalanceLocal,
        };
        Self { scope, role, selection: Selection::of(port.lb_algorithm, port.pool(kind)) }
    }

    pub(crate) fn name(&self) -> ChainName {
        let Selection { method, slots } = self.selection;
        let (prefix, stem) = (self.scope.prefix(), method.stem());
        match self.role {
            Role::Balance => format!("{prefix}{stem}/{slots}"),
            Role::MasqueradeAll => format!("{prefix}masquerade-{stem}/{slots}"),
            Role::MasqueradeNonLocal => format!("{prefix}masquerade-nonlocal-{stem}/{slots}"),
            Role::ExternalLocal { local } => {
                format!("{prefix}external-local-{stem}/{slots}/{local}")
            }
            Role::BalanceLocal => format!("{prefix}local-{stem}/{slots}"),
            Role::Delivered(Masquerade::Never) => format!("{prefix}delivered/own-address"),
            Role::Delivered(Masquerade::ExceptLocalPods) => {
                format!("{prefix}delivered/masquerade-nonlocal")
            }
            Role::Delivered(Masquerade::Always) => format!("{prefix}delivered/masquerade"),
            Role::DeliveredLocal => format!("{prefix}delivered-local-{stem}/{slots}"),
        }
        .into()
    }

    /// The shared chains that this chain leads to.
    pub(crate) fn leads_to(&self) -> impl Iterator<Item = Self> + use<> {
        let all = match self.role {
            Role::Balance | Role::BalanceLocal | Role::Delivered(_) => None,
            Role::MasqueradeAll
            | Role::MasqueradeNonLocal
            | Role::ExternalLocal { .. }
            | Role::DeliveredLocal => Some(Self { role: Role::Balance, ..*self }),
        };
        all.into_iter().chain(self.local())
    }

    /// The chain of the local endpoints, if this chain leads there.
    fn local(&self) -> Option<Self> {
        match self.role {
            Role::ExternalLocal { local: slots @ 1.. } => {
                let selection = Selection { slots, ..self.selection };
                Some(Self { role: Role::BalanceLocal, selection, ..*self })
            }
            _ => None,
        }
    }

    pub(crate) fn rules(&self, context: &Context<'_>) -> ChainRules {
        let balance = || {
            let chain = Self { role: Role::Balance, ..*self };
            Statement::Verdict(Verdict::Goto(chain.name()))
        };
        let rules = match self.role {
            Role::Balance => self.balance(PoolKind::Cluster),
            Role::BalanceLocal => self.balance(PoolKind::Local),
            Role::MasqueradeAll => masquerade(context, Masquerade::Always, balance()),
            Role::MasqueradeNonLocal => masquerade(context, Masquerade::ExceptLocalPods, balance()),
            Role::ExternalLocal { .. } => {
                let to_local =
                    |local: Self| Rule::new([Statement::Verdict(Verdict::Goto(local.name()))]);
                local_clients(context, balance(), self.local().map(to_local))
            }
            Role::DeliveredLocal => local_clients(context, balance(), delivered(self.scope)),
            Role::Delivered(masquerade) => {
                let mark = Statement::MarkOr(context.mark);
                let marking = match masquerade {
                    Masquerade::Always => Some(Rule::new([mark])),
                    Masquerade::ExceptLocalPods => {
                        context.local_pod_match(false).map(|others| Rule::new([others, mark]))
                    }
                    // The node's own connection to an address of the node comes from that address,
                    // which every node has, so that no answer would come back.
                    Masquerade::Never => {
                        let key = vec![Selector::SourceAddress];
                        let from_service = Statement::Lookup { key, set: set::CLUSTER_IPS.into() };
                        Some(Rule::new([from_service, mark]))
                    }
                };
                marking.into_iter().chain(delivered(self.scope)).collect()
            }
        };
        ChainRules::new(self.name(), rules)
    }

    fn balance(&self, pool: PoolKind) -> Vec<Rule> {
        let map = |protocol| EndpointMap { scope: self.scope, pool, protocol };
        Protocol::ALL.into_iter().map(|protocol| map(protocol).balance(self.selection)).collect()
    }
}

/// The rules that mark connections of these clients to be masqueraded, and lead all on.
pub(crate) fn masquerade(
    context: &Context<'_>,
    masquerade: Masquerade,
    to: Statement,
) -> Vec<Rule> {
    let mark = Statement::MarkOr(context.mark);
    let marking = match masquerade {
        Masquerade::Always => return vec![Rule::new([mark, to])],
        Masquerade::ExceptLocalPods => context.local_pod_match(false),
        Masquerade::Never => None,
    };
    let marking = marking.map(|others| Rule::new([others, mark]));
    marking.into_iter().chain([Rule::new([to])]).collect()
}

/// The rules of `externalTrafficPolicy: Local`, which lead clients on this node to all endpoints,
/// and all others by the rule `outside`.
pub(crate) fn local_clients(
    context: &Context<'_>,
    to_all: Statement,
    outside: Option<Rule>,
) -> Vec<Rule> {
    let pods = context.local_pod_match(true);
    let pods = pods.map(|pods| Rule::new([pods, to_all.clone()]));
    let mark = Statement::MarkOr(context.mark);
    let node = Rule::new([Statement::FibLocal(Side::Source), mark, to_all]);
    pods.into_iter().chain([node]).chain(outside).collect()
}

/// The rule that keeps other programs' rules for addresses of the node, such as those of host
/// ports, from translating what another backend delivers.
pub(crate) fn delivered(scope: Scope) -> Option<Rule> {
    (scope == Scope::Ip).then(|| Rule::new([Statement::DnatToItself]))
}
