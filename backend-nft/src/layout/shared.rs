//! Chains that spread traffic over N slots, and those that lead to them. All Service ports whose
//! pool has N endpoints share them; they are made when first needed, and stay.

use super::{ChainRules, Context, names::set};
use crate::ruleset::{ChainName, Rule, Selector, Side, Statement, Verdict};

/// Where traffic arrives, which decides what a Service port is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// At an address of the Service: by address, protocol and port.
    Ip,
    /// At an address of the node: by protocol and port.
    NodePort,
}

impl Scope {
    /// What a Service port is looked up by.
    pub(crate) fn key(self) -> Vec<Selector> {
        match self {
            Self::Ip => {
                vec![Selector::DestinationAddress, Selector::Protocol, Selector::DestinationPort]
            }
            Self::NodePort => vec![Selector::Protocol, Selector::DestinationPort],
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Ip => "",
            Self::NodePort => "nodeport-",
        }
    }

    fn endpoints(self) -> &'static str {
        match self {
            Self::Ip => set::ENDPOINTS,
            Self::NodePort => set::NODEPORT_ENDPOINTS,
        }
    }

    fn local_endpoints(self) -> &'static str {
        match self {
            Self::Ip => set::LOCAL_ENDPOINTS,
            Self::NodePort => set::LOCAL_NODEPORT_ENDPOINTS,
        }
    }
}

/// What a shared chain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Translates to one of the slots.
    Balance,
    /// Has the connection masqueraded, then balances.
    MasqueradeAll,
    /// Has the connection masqueraded unless a pod of this node made it, then balances.
    MasqueradeNonLocal,
    /// `externalTrafficPolicy: Local`: balances what clients on this node send; everything else
    /// goes to the local endpoints, if there are any.
    ///
    /// Their number is part of the chain, instead of a lookup in a map: kube-proxy, when it takes
    /// over, empties the maps that it knows and no others, and a verdict that is left in one would
    /// keep it for ever from deleting the chain it leads to.
    ExternalLocal {
        /// How many endpoints are on this node; may be none.
        local: u32,
    },
    /// Translates to one of the slots of the local endpoints.
    BalanceLocal,
}

/// A shared chain. All have a `/` in their names, see [`super::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SharedChain {
    pub(crate) scope: Scope,
    pub(crate) role: Role,
    /// The number of slots, at least 1.
    pub(crate) slots: u32,
}

impl SharedChain {
    pub(crate) fn name(&self) -> ChainName {
        let (prefix, slots) = (self.scope.prefix(), self.slots);
        match self.role {
            Role::Balance => format!("{prefix}lb/{slots}"),
            Role::MasqueradeAll => format!("{prefix}masquerade-lb/{slots}"),
            Role::MasqueradeNonLocal => format!("{prefix}masquerade-nonlocal-lb/{slots}"),
            Role::ExternalLocal { local } => format!("{prefix}external-local-lb/{slots}/{local}"),
            Role::BalanceLocal => format!("{prefix}local-lb/{slots}"),
        }
        .into()
    }

    /// The shared chains that this one leads to.
    pub(crate) fn leads_to(&self) -> impl Iterator<Item = Self> + use<> {
        let all = match self.role {
            Role::Balance | Role::BalanceLocal => None,
            Role::MasqueradeAll | Role::MasqueradeNonLocal | Role::ExternalLocal { .. } => {
                Some(Self { role: Role::Balance, ..*self })
            }
        };
        all.into_iter().chain(self.local())
    }

    /// The chain of the local endpoints, if this one leads to it.
    fn local(&self) -> Option<Self> {
        match self.role {
            Role::ExternalLocal { local: slots @ 1.. } => {
                Some(Self { role: Role::BalanceLocal, slots, ..*self })
            }
            _ => None,
        }
    }

    pub(crate) fn rules(&self, context: &Context<'_>) -> ChainRules {
        let balance = || {
            let chain = Self { role: Role::Balance, ..*self };
            Statement::Verdict(Verdict::Goto(chain.name()))
        };
        let mark = Statement::MarkOr(context.mark);
        let rules = match self.role {
            Role::Balance => self.balance(self.scope.endpoints()),
            Role::BalanceLocal => self.balance(self.scope.local_endpoints()),
            Role::MasqueradeAll => vec![Rule::new([mark, balance()])],
            Role::MasqueradeNonLocal => context
                .local_pod_match(false)
                .map(|non_local| Rule::new([non_local, mark]))
                .into_iter()
                .chain([Rule::new([balance()])])
                .collect(),
            Role::ExternalLocal { .. } => context
                .local_pod_match(true)
                .map(|local| Rule::new([local, balance()]))
                .into_iter()
                .chain([Rule::new([Statement::FibLocal(Side::Source), mark, balance()])])
                .chain(
                    self.local()
                        .map(|local| Rule::new([Statement::Verdict(Verdict::Goto(local.name()))])),
                )
                .collect(),
        };
        ChainRules::new(self.name(), rules)
    }

    fn balance(&self, map: &str) -> Vec<Rule> {
        vec![Rule::new([
            Statement::ServiceProtocols,
            Statement::DnatRandom { key: self.scope.key(), slots: self.slots, map: map.into() },
        ])]
    }
}
