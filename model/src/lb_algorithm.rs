//! The ways in which new connections are shared out among endpoints.

use crate::words;

/// The way that new connections to a Service port are shared out among the endpoints of a pool, in
/// proportion to the weights of the endpoints.
///
/// The kernel's documentation of its schedulers (`ip_vs`, `ipvsadm(8)`) is the source of those that
/// only some backends have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum LbAlgorithm {
    /// `random`: each connection draws an endpoint (kube-proxy's iptables and nftables modes).
    #[default]
    Random,
    /// `round-robin`: endpoints take turns.
    RoundRobin,
    /// `source-hash`: the client's address decides, on each node alike.
    SourceHash,
    /// `maglev`: the client's address and port decide, on each node alike; when an endpoint comes
    /// or goes, few clients change to another endpoint (Eisenbud and others, NSDI 2016).
    Maglev,
    /// `least-connections`: the endpoint with the fewest connections.
    LeastConnections,
    /// `shortest-expected-delay`: the endpoint with the fewest connections for its weight, with the
    /// new one counted.
    ShortestExpectedDelay,
    /// `never-queue`: an endpoint without connections, else as `shortest-expected-delay`.
    NeverQueue,
    /// `locality-least-connections`: all connections to an address go to one endpoint until that
    /// endpoint is overloaded.
    LocalityLeastConnections,
    /// `locality-least-connections-replicated`: the same with several endpoints for an address.
    LocalityLeastConnectionsReplicated,
    /// `destination-hash`: the address that the client connects to decides.
    DestinationHash,
    /// `weighted-failover`: the endpoint with the greatest weight.
    WeightedFailover,
    /// `weighted-overflow`: the endpoint with the greatest weight, until it has as many connections
    /// as its weight; then the next.
    WeightedOverflow,
}

words! {
    LbAlgorithm: FromStr {
        Random = "random",
        RoundRobin = "round-robin",
        SourceHash = "source-hash",
        Maglev = "maglev",
        LeastConnections = "least-connections",
        ShortestExpectedDelay = "shortest-expected-delay",
        NeverQueue = "never-queue",
        LocalityLeastConnections = "locality-least-connections",
        LocalityLeastConnectionsReplicated = "locality-least-connections-replicated",
        DestinationHash = "destination-hash",
        WeightedFailover = "weighted-failover",
        WeightedOverflow = "weighted-overflow",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_where_its_number_says_and_has_a_name() {
        for (index, lb_algorithm) in LbAlgorithm::ALL.into_iter().enumerate() {
            assert_eq!(lb_algorithm as usize, index);
            assert_eq!(lb_algorithm.as_str().parse(), Ok(lb_algorithm));
        }
        assert_eq!("Maglev".parse::<LbAlgorithm>(), Err(()));
    }
}
