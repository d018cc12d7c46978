//! The choice of an endpoint: algorithms, affinity, and endpoints that do not answer.

mod affinity;
mod hash;
mod member;
mod pool;
pub(crate) mod random;
mod round_robin;
#[cfg(test)]
mod tests;

use switchyard_core::{model::LbAlgorithm, proxier::Capabilities};

pub(crate) use self::{
    affinity::Affinity,
    member::{Connection, Member},
    pool::Pool,
};

/// The algorithms that a [`Forwarder`](crate::forwarder::Forwarder) has, weights, and the PROXY protocol.
pub const CAPABILITIES: Capabilities = Capabilities::KUBE_PROXY
    .with(LbAlgorithm::Random)
    .with(LbAlgorithm::RoundRobin)
    .with(LbAlgorithm::SourceHash)
    .with(LbAlgorithm::Maglev)
    .with(LbAlgorithm::LeastConnections)
    .with(LbAlgorithm::ShortestExpectedDelay)
    .with(LbAlgorithm::NeverQueue)
    .with(LbAlgorithm::DestinationHash)
    .with(LbAlgorithm::WeightedFailover)
    .with(LbAlgorithm::WeightedOverflow)
    .with_weights()
    .with_default_algorithm(LbAlgorithm::RoundRobin)
    .with_proxy_protocol();
