//! The choice of an endpoint: spreads, affinity, and endpoints that do not answer.

mod affinity;
mod hash;
mod member;
mod pool;
pub(crate) mod random;
#[cfg(test)]
mod tests;
mod turns;

use switchyard_core::{model::Spread, proxier::Abilities};

pub(crate) use self::{
    affinity::Affinity,
    member::{Connection, Member},
    pool::Pool,
};

/// The spreads that a [`Forwarder`](crate::Forwarder) has, weights, and the PROXY protocol.
pub const ABILITIES: Abilities = Abilities::PARITY
    .with(Spread::Random)
    .with(Spread::RoundRobin)
    .with(Spread::SourceHash)
    .with(Spread::Maglev)
    .with(Spread::LeastConnections)
    .with(Spread::ShortestExpectedDelay)
    .with(Spread::NeverQueue)
    .with(Spread::DestinationHash)
    .with(Spread::WeightedFailover)
    .with(Spread::WeightedOverflow)
    .with_weights()
    .with_default_spread(Spread::RoundRobin)
    .with_proxy_protocol();
