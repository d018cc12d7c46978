//! The supported part of what a Service asks: the nearest algorithm, and weights.

use std::fmt;

use crate::{
    model::LbAlgorithm,
    parsed::{proxy_protocol::PROXY_PROTOCOL, slow_start::SLOW_START},
    proxier::{Capabilities, Mode},
};

/// Why an algorithm is another one than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) asked: LbAlgorithm,
    pub(crate) used: LbAlgorithm,
    pub(crate) limit: Limit,
}

/// The reason why a backend cannot program what a Service asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The backend has no such feature.
    Mode,
    /// The pool has more endpoints than this.
    Endpoints(usize),
    /// All frontends of the Service would have more than [`MAX_SLOTS`] slots.
    Slots,
}

/// The most slots that all frontends of a Service have in a family, unless each endpoint has one.
/// A slot is an element of the kernel's, which takes some 220 bytes in all.
pub(crate) const MAX_SLOTS: usize = 500_000;

/// Returns the algorithm that is nearest to the asked one, among those that can be programmed for
/// so many endpoints, and whose slots `fit`, and why that is another one.
pub(crate) fn nearest(
    asked: LbAlgorithm,
    endpoints: usize,
    capabilities: &Capabilities,
    fit: impl Fn(LbAlgorithm) -> bool,
) -> (LbAlgorithm, Option<Replaced>) {
    let limit = |lb_algorithm: LbAlgorithm| match capabilities.most_endpoints(lb_algorithm) {
        0 => Some(Limit::Mode),
        most if endpoints > most => Some(Limit::Endpoints(most)),
        _ => (!fit(lb_algorithm)).then_some(Limit::Slots),
    };
    let Some(of_asked) = limit(asked) else { return (asked, None) };
    let fits = |lb_algorithm| limit(lb_algorithm).is_none();
    let mut candidates = substitutes(asked).iter().copied();
    let used = candidates.find(|&lb_algorithm| fits(lb_algorithm)).unwrap_or(LbAlgorithm::Random);
    (used, (used != asked).then_some(Replaced { asked, used, limit: of_asked }))
}

/// The algorithms that come closest to one, the closest first. Where none of them can be
/// programmed, the spread is random.
const fn substitutes(lb_algorithm: LbAlgorithm) -> &'static [LbAlgorithm] {
    use LbAlgorithm::*;
    match lb_algorithm {
        Random => &[RoundRobin],
        SourceHash => &[Maglev],
        Maglev => &[SourceHash],
        LeastConnections => &[ShortestExpectedDelay, RoundRobin],
        ShortestExpectedDelay => &[LeastConnections, RoundRobin],
        NeverQueue => &[ShortestExpectedDelay, LeastConnections, RoundRobin],
        LocalityLeastConnections => {
            &[LocalityLeastConnectionsReplicated, LeastConnections, RoundRobin]
        }
        LocalityLeastConnectionsReplicated => {
            &[LocalityLeastConnections, LeastConnections, RoundRobin]
        }
        RoundRobin | DestinationHash | WeightedFailover | WeightedOverflow => &[],
    }
}

/// A feature that a Service port asks for and does not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnsupportedFeatures {
    /// The annotation that asks for an algorithm, or `None` for the node's default, and why another
    /// one is used.
    pub(crate) lb_algorithm: Option<(Option<&'static str>, Replaced)>,
    /// Whether clients should be remembered, which the kernel cannot.
    pub(crate) affinity: bool,
    /// Why endpoints do not have the unequal weights that they should have.
    pub(crate) weights: Option<Limit>,
    /// Whether shares should grow, which needs weights.
    pub(crate) slow_start: bool,
    /// Whether endpoints should be sent the client's address, by a backend that ends no
    /// connections.
    pub(crate) proxy_protocol: bool,
}

/// One of the reasons in a [`UnsupportedFeatures`], for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnsupportedReason {
    /// The annotation or field that asks; empty for the node's default.
    pub(crate) field: &'static str,
    what: UnsupportedFeature,
    mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnsupportedFeature {
    LbAlgorithm(Replaced),
    DefaultAlgorithm(Replaced),
    Affinity,
    Weights(Limit),
    SlowStart,
    ProxyProtocol,
}

impl UnsupportedFeatures {
    /// Returns the reasons, with a backend of this mode.
    pub(crate) fn reasons(
        &self,
        mode: Option<Mode>,
    ) -> impl Iterator<Item = UnsupportedReason> + use<> {
        let lb_algorithm = self.lb_algorithm.map(|(annotation, replaced)| UnsupportedReason {
            field: annotation.unwrap_or_default(),
            what: match annotation {
                Some(_) => UnsupportedFeature::LbAlgorithm(replaced),
                None => UnsupportedFeature::DefaultAlgorithm(replaced),
            },
            mode,
        });
        let weights = UnsupportedFeature::Weights(self.weights.unwrap_or(Limit::Mode));
        let others = [
            (self.affinity, "spec.sessionAffinity", UnsupportedFeature::Affinity),
            (self.weights.is_some(), "switchyard/weight", weights),
            (self.slow_start, SLOW_START, UnsupportedFeature::SlowStart),
            (self.proxy_protocol, PROXY_PROTOCOL, UnsupportedFeature::ProxyProtocol),
        ];
        let others = others.into_iter().filter(|(is_asked, ..)| *is_asked);
        let others = others.map(move |(_, field, what)| UnsupportedReason { field, what, mode });
        lb_algorithm.into_iter().chain(others)
    }
}

impl fmt::Display for UnsupportedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = self.mode.map_or("here".to_owned(), |mode| format!("in {mode} mode"));
        match self.what {
            UnsupportedFeature::LbAlgorithm(replaced) => write_replaced(f, "", replaced, &within),
            UnsupportedFeature::DefaultAlgorithm(replaced) => {
                write_replaced(f, "the node's default, ", replaced, &within)
            }
            UnsupportedFeature::Affinity => write!(
                f,
                "clients cannot be remembered {within}, for want of a module of the kernel; each \
                 connection is spread by itself"
            ),
            UnsupportedFeature::Weights(Limit::Slots) => write!(
                f,
                "unequal shares of endpoints would take more than {MAX_SLOTS} elements for all \
                 frontends of the Service {within}; connections are spread evenly"
            ),
            UnsupportedFeature::Weights(_) => write!(
                f,
                "the EndpointSlices give endpoints unequal weights, which cannot be programmed \
                 {within}; connections are spread evenly, and weight 0 drains"
            ),
            UnsupportedFeature::SlowStart => {
                write!(f, "shares cannot grow {within}; new endpoints get their full share at once")
            }
            UnsupportedFeature::ProxyProtocol => {
                write!(
                    f,
                    "endpoints cannot be sent the PROXY protocol {within}; connections begin without"
                )
            }
        }
    }
}

fn write_replaced(
    f: &mut fmt::Formatter<'_>,
    whose: &str,
    Replaced { asked, used, limit }: Replaced,
    within: &str,
) -> fmt::Result {
    match limit {
        Limit::Mode => write!(
            f,
            "{whose}`{asked}` cannot be programmed {within}; connections are spread by `{used}` instead"
        ),
        Limit::Endpoints(most) => write!(
            f,
            "{whose}`{asked}` can be programmed for at most {most} endpoints {within}; connections to \
             more are spread by `{used}` instead"
        ),
        Limit::Slots => write!(
            f,
            "{whose}`{asked}` would take more than {MAX_SLOTS} elements for all frontends of the \
             Service {within}; connections are spread by `{used}` instead"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LbAlgorithm::*;

    #[test]
    fn the_nearest_that_can_be_programmed_is_used() {
        // Each row: what is asked, and what is used when all before it cannot be programmed.
        let rows: [(LbAlgorithm, &[LbAlgorithm]); 12] = [
            (Random, &[Random, RoundRobin, Random]),
            (RoundRobin, &[RoundRobin, Random]),
            (SourceHash, &[SourceHash, Maglev, Random]),
            (Maglev, &[Maglev, SourceHash, Random]),
            (LeastConnections, &[LeastConnections, ShortestExpectedDelay, RoundRobin, Random]),
            (ShortestExpectedDelay, &[ShortestExpectedDelay, LeastConnections, RoundRobin, Random]),
            (
                NeverQueue,
                &[NeverQueue, ShortestExpectedDelay, LeastConnections, RoundRobin, Random],
            ),
            (
                LocalityLeastConnections,
                &[
                    LocalityLeastConnections,
                    LocalityLeastConnectionsReplicated,
                    LeastConnections,
                    RoundRobin,
                    Random,
                ],
            ),
            (
                LocalityLeastConnectionsReplicated,
                &[
                    LocalityLeastConnectionsReplicated,
                    LocalityLeastConnections,
                    LeastConnections,
                    RoundRobin,
                    Random,
                ],
            ),
            (DestinationHash, &[DestinationHash, Random]),
            (WeightedFailover, &[WeightedFailover, Random]),
            (WeightedOverflow, &[WeightedOverflow, Random]),
        ];
        for (asked, order) in rows {
            let mut capabilities =
                LbAlgorithm::ALL.into_iter().fold(Capabilities::KUBE_PROXY, Capabilities::with);
            for &next in order {
                assert_eq!(nearest(asked, 3, &capabilities, |_| true).0, next, "{asked}");
                capabilities = capabilities.with_at_most(next, 0);
            }
        }
    }

    #[test]
    fn pools_that_are_too_large_are_spread_otherwise() {
        let capabilities =
            Capabilities::KUBE_PROXY.with_at_most(Maglev, 20).with_at_most(SourceHash, 30);
        let used = |endpoints| nearest(Maglev, endpoints, &capabilities, |_| true).0;
        assert_eq!([20, 21, 30, 31].map(used), [Maglev, SourceHash, SourceHash, Random]);
    }
}
