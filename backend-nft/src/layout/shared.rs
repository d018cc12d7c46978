//! Chains that algorithm traffic over N slots, and chains that lead to these. All Service ports that draw
//! one of N slots in the same way share them. A shared chain is created when it is first needed, and
//! stays.

use switchyard_core::{
    model::Protocol,
    state::{PoolKind, ResolvedServicePort},
};

use super::{
    ChainRules, Context,
    drawing::Drawing,
    slot_map::{Scope, SlotMap, SlotPool},
};
use crate::ruleset::{ChainName, Rule, Side, Statement, Verdict};

/// The purpose of a shared chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Translates to the endpoint in one of the slots.
    Balance,
    /// Marks the connection to be masqueraded, then balances.
    MasqueradeAll,
    /// Marks the connection to be masqueraded unless it comes from a pod of this node, then balances.
    MasqueradeNonLocal,
    /// `externalTrafficPolicy: Local`: balances the traffic of clients on this node over all
    /// endpoints; all other traffic goes to the local endpoints, if there are any.
    ///
    /// The number of local slots is part of the chain instead of a lookup in a map: kube-proxy,
    /// when it takes over, empties no maps but those that it knows, and a verdict left in another map
    /// would keep kube-proxy for ever from deleting the chain that the verdict leads to.
    ExternalLocal {
        /// The number of slots of the endpoints on this node, may be 0.
        local: u32,
    },
    /// Translates to the endpoint in one of the slots of the local endpoints.
    BalanceLocal,
}

/// A shared chain. Its name has a `/`, see [`super::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SharedChain {
    pub(crate) scope: Scope,
    pub(crate) role: Role,
    pub(crate) drawing: Drawing,
}

impl SharedChain {
    /// The chain that draws an endpoint of a pool for a Service port with chains of its own.
    pub(crate) fn draw(scope: Scope, kind: PoolKind, port: &ResolvedServicePort) -> Self {
        let role = match SlotPool::apart(kind) {
            SlotPool::Main => Role::Balance,
            SlotPool::Local => Role::BalanceLocal,
        };
        Self { scope, role, drawing: Drawing::of(port.lb_algorithm, port.pool(kind)) }
    }

    pub(crate) fn name(&self) -> ChainName {
        let Drawing { method, slots } = self.drawing;
        let (prefix, stem) = (self.scope.prefix(), method.stem());
        match self.role {
            Role::Balance => format!("{prefix}{stem}/{slots}"),
            Role::MasqueradeAll => format!("{prefix}masquerade-{stem}/{slots}"),
            Role::MasqueradeNonLocal => format!("{prefix}masquerade-nonlocal-{stem}/{slots}"),
            Role::ExternalLocal { local } => {
                format!("{prefix}external-local-{stem}/{slots}/{local}")
            }
            Role::BalanceLocal => format!("{prefix}local-{stem}/{slots}"),
        }
        .into()
    }

    /// The shared chains that this chain leads to.
    pub(crate) fn leads_to(&self) -> impl Iterator<Item = Self> + use<> {
        let all = match self.role {
            Role::Balance | Role::BalanceLocal => None,
            Role::MasqueradeAll | Role::MasqueradeNonLocal | Role::ExternalLocal { .. } => {
                Some(Self { role: Role::Balance, ..*self })
            }
        };
        all.into_iter().chain(self.local())
    }

    /// The chain of the local endpoints, if this chain leads there.
    fn local(&self) -> Option<Self> {
        match self.role {
            Role::ExternalLocal { local: slots @ 1.. } => {
                let drawing = Drawing { slots, ..self.drawing };
                Some(Self { role: Role::BalanceLocal, drawing, ..*self })
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
            Role::Balance => self.balance(SlotPool::Main),
            Role::BalanceLocal => self.balance(SlotPool::Local),
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

    fn balance(&self, pool: SlotPool) -> Vec<Rule> {
        let map = |protocol| SlotMap { scope: self.scope, pool, protocol };
        Protocol::ALL.into_iter().map(|protocol| map(protocol).balance(self.drawing)).collect()
    }
}
