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

    fn local_services(self) -> &'static str {
        match self {
            Self::Ip => set::LOCAL_SERVICE_IPS,
            Self::NodePort => set::LOCAL_SERVICE_NODEPORTS,
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
    ExternalLocal,
    /// Translates to one of the slots of the local endpoints.
    BalanceLocal,
}

/// A shared chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SharedChain {
    pub(crate) scope: Scope,
    pub(crate) role: Role,
    /// The number of slots, at least 1.
    pub(crate) slots: u32,
}

impl SharedChain {
    pub(crate) fn name(&self) -> ChainName {
        let role = match self.role {
            Role::Balance => "lb",
            Role::MasqueradeAll => "masquerade-lb",
            Role::MasqueradeNonLocal => "masquerade-nonlocal-lb",
            Role::ExternalLocal => "external-local-lb",
            Role::BalanceLocal => "local-lb",
        };
        format!("{}{role}/{}", self.scope.prefix(), self.slots).into()
    }

    /// The chain that this one leads to, if it is a shared one.
    pub(crate) fn leads_to(&self) -> Option<Self> {
        match self.role {
            Role::Balance | Role::BalanceLocal => None,
            Role::MasqueradeAll | Role::MasqueradeNonLocal | Role::ExternalLocal => {
                Some(Self { role: Role::Balance, ..*self })
            }
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
            Role::ExternalLocal => context
                .local_pod_match(true)
                .map(|local| Rule::new([local, balance()]))
                .into_iter()
                .chain([
                    Rule::new([Statement::FibLocal(Side::Source), mark, balance()]),
                    Rule::new([Statement::VerdictMap {
                        key: self.scope.key(),
                        map: self.scope.local_services().into(),
                    }]),
                ])
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
