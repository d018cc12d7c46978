//! The kernel's schedulers, which choose the real server of a new connection (`ipvsadm(8)`).

use std::str::FromStr;

use switchyard_core::{
    model::{LbAlgorithm, words},
    proxier::Capabilities,
    state::{Pool, ResolvedServicePort},
};
use switchyard_kernel::ipvs::VirtualServer;

/// The largest number of endpoints for which `mh` has a place for each: the size of its table
/// (`CONFIG_IP_VS_MH_TAB_INDEX`, 12 unless a kernel is built otherwise, which makes 4,093).
const MOST_WITH_MAGLEV: usize = 4093;

/// A scheduler of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Scheduler {
    /// `rr`: round robin.
    #[default]
    RoundRobin,
    /// `wrr`: round robin by weight.
    WeightedRoundRobin,
    /// `lc`: the fewest connections.
    LeastConnections,
    /// `wlc`: the fewest connections for the weight.
    WeightedLeastConnections,
    /// `lblc`: one real server for each destination address, unless overloaded.
    LocalityLeastConnections,
    /// `lblcr`: a few real servers for each destination address.
    LocalityLeastConnectionsReplicated,
    /// `sh`: a hash of the client's address.
    SourceHash,
    /// `dh`: a hash of the destination address.
    DestinationHash,
    /// `sed`: the shortest expected delay.
    ShortestExpectedDelay,
    /// `nq`: an idle real server, else as `sed`.
    NeverQueue,
    /// `fo`: the greatest weight.
    WeightedFailover,
    /// `ovf`: the greatest weight, until it has as many connections.
    WeightedOverflow,
    /// `mh`: Maglev's table, by the client's address and port.
    Maglev,
}

/// A name that is none of a scheduler of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no scheduler of the kernel ({})", .0.escape_debug(), names())]
pub struct UnknownScheduler(pub String);

fn names() -> String {
    Scheduler::ALL.map(Scheduler::as_str).join(", ")
}

// The names that the kernel uses.
words! {
    Scheduler {
        RoundRobin = "rr",
        WeightedRoundRobin = "wrr",
        LeastConnections = "lc",
        WeightedLeastConnections = "wlc",
        LocalityLeastConnections = "lblc",
        LocalityLeastConnectionsReplicated = "lblcr",
        SourceHash = "sh",
        DestinationHash = "dh",
        ShortestExpectedDelay = "sed",
        NeverQueue = "nq",
        WeightedFailover = "fo",
        WeightedOverflow = "ovf",
        Maglev = "mh",
    }
}

impl Scheduler {
    /// The kernel module that has the scheduler.
    pub fn module(self) -> String {
        format!("ip_vs_{}", self.as_str())
    }

    /// The algorithm that the scheduler does.
    pub const fn lb_algorithm(self) -> LbAlgorithm {
        match self {
            Self::RoundRobin | Self::WeightedRoundRobin => LbAlgorithm::RoundRobin,
            Self::LeastConnections | Self::WeightedLeastConnections => {
                LbAlgorithm::LeastConnections
            }
            Self::LocalityLeastConnections => LbAlgorithm::LocalityLeastConnections,
            Self::LocalityLeastConnectionsReplicated => {
                LbAlgorithm::LocalityLeastConnectionsReplicated
            }
            Self::SourceHash => LbAlgorithm::SourceHash,
            Self::DestinationHash => LbAlgorithm::DestinationHash,
            Self::ShortestExpectedDelay => LbAlgorithm::ShortestExpectedDelay,
            Self::NeverQueue => LbAlgorithm::NeverQueue,
            Self::WeightedFailover => LbAlgorithm::WeightedFailover,
            Self::WeightedOverflow => LbAlgorithm::WeightedOverflow,
            Self::Maglev => LbAlgorithm::Maglev,
        }
    }

    /// Returns the scheduler for a Service port, on a node whose default is `default`. `wrr` and
    /// `wlc` take the places of `rr` and `lc`, which know nothing of weights, where weights differ.
    /// Otherwise the default is kube-proxy's, which need change nothing: `wrr` would begin its
    /// turns anew at each change of endpoints.
    pub fn choose(default: Self, port: &ResolvedServicePort) -> Self {
        let scheduler = match port.lb_algorithm {
            lb_algorithm if lb_algorithm == default.lb_algorithm() => default,
            // No scheduler draws at random; core asks for nothing that `capabilities` lacks.
            LbAlgorithm::Random | LbAlgorithm::RoundRobin => Self::RoundRobin,
            LbAlgorithm::SourceHash => Self::SourceHash,
            LbAlgorithm::Maglev => Self::Maglev,
            LbAlgorithm::LeastConnections => Self::LeastConnections,
            LbAlgorithm::ShortestExpectedDelay => Self::ShortestExpectedDelay,
            LbAlgorithm::NeverQueue => Self::NeverQueue,
            LbAlgorithm::LocalityLeastConnections => Self::LocalityLeastConnections,
            LbAlgorithm::LocalityLeastConnectionsReplicated => {
                Self::LocalityLeastConnectionsReplicated
            }
            LbAlgorithm::DestinationHash => Self::DestinationHash,
            LbAlgorithm::WeightedFailover => Self::WeightedFailover,
            LbAlgorithm::WeightedOverflow => Self::WeightedOverflow,
        };
        if is_uneven(port) { scheduler.weighted() } else { scheduler }
    }

    /// The scheduler that heeds weights and spreads connections alike where these are equal, if
    /// there is one.
    pub(crate) const fn weighted(self) -> Self {
        match self {
            Self::RoundRobin => Self::WeightedRoundRobin,
            Self::LeastConnections => Self::WeightedLeastConnections,
            other => other,
        }
    }

    /// The schedulers to use instead where the kernel does not have this one, the best first.
    pub(crate) fn instead(self) -> impl Iterator<Item = Self> {
        let alike = move |other: &Self| *other != self && other.weighted() == self.weighted();
        Self::ALL.into_iter().filter(alike).chain(Self::ANY)
    }

    /// The schedulers that take the place of any other, the best first.
    pub(crate) const ANY: [Self; 2] = [Self::WeightedRoundRobin, Self::RoundRobin];

    /// Whether the order of real servers decides which of them a client has.
    pub(crate) const fn hashes(self) -> bool {
        matches!(self, Self::SourceHash | Self::DestinationHash | Self::Maglev)
    }

    /// The flags of virtual servers with the scheduler.
    ///
    /// `mh` hashes the client's port, too, as in kube-proxy. `sh` and `mh` take another real server
    /// if the one that the hash names gets no new connections: `sh` keeps a slot for a real server
    /// with weight 0, and would refuse the clients whose hash it is.
    pub const fn flags(self) -> u32 {
        match self {
            Self::Maglev => VirtualServer::SCHED1 | VirtualServer::SCHED2,
            Self::SourceHash => VirtualServer::SCHED1,
            _ => 0,
        }
    }
}

/// Whether endpoints have unequal weights, of which `rr` and `lc` know nothing.
pub(crate) fn is_uneven(port: &ResolvedServicePort) -> bool {
    let is_uneven = |pool: &Pool| pool.windows(2).any(|two| two[0].weight != two[1].weight);
    is_uneven(&port.cluster) || is_uneven(&port.local)
}

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    /// Reads the kernel's name. An empty text is `rr`, as in kube-proxy's configuration.
    fn from_str(text: &str) -> Result<Self, UnknownScheduler> {
        let found = Self::ALL.into_iter().find(|scheduler| scheduler.as_str() == text);
        match text {
            "" => Ok(Self::default()),
            text => found.ok_or_else(|| UnknownScheduler(text.to_owned())),
        }
    }
}

/// Returns what the backend can program, on a node with this scheduler. Whether the kernel has the
/// modules shows when the first Service asks for each.
pub(crate) const fn capabilities(default: Scheduler) -> Capabilities {
    Capabilities::KUBE_PROXY
        .with_at_most(LbAlgorithm::Random, 0)
        .with(LbAlgorithm::RoundRobin)
        .with(LbAlgorithm::SourceHash)
        .with_at_most(LbAlgorithm::Maglev, MOST_WITH_MAGLEV)
        .with(LbAlgorithm::LeastConnections)
        .with(LbAlgorithm::ShortestExpectedDelay)
        .with(LbAlgorithm::NeverQueue)
        .with(LbAlgorithm::LocalityLeastConnections)
        .with(LbAlgorithm::LocalityLeastConnectionsReplicated)
        .with(LbAlgorithm::DestinationHash)
        .with(LbAlgorithm::WeightedFailover)
        .with(LbAlgorithm::WeightedOverflow)
        .with_weights()
        .with_draining_tcp()
        .with_default_algorithm(default.lb_algorithm())
        .with_listed_node_ports()
        .with_endpoints_at_each_address()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernels() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.as_str().parse(), Ok(scheduler));
            assert_eq!(scheduler.module(), format!("ip_vs_{scheduler}"));
        }
        assert_eq!("".parse(), Ok(Scheduler::RoundRobin));
        let error = "wrrr".parse::<Scheduler>().unwrap_err();
        assert!(
            error.to_string().starts_with("`wrrr` is no scheduler of the kernel (rr, wrr, lc,")
        );
    }

    #[test]
    fn every_algorithm_but_the_draw_can_be_programmed() {
        let capabilities = capabilities(Scheduler::WeightedLeastConnections);
        for lb_algorithm in LbAlgorithm::ALL {
            assert_eq!(
                capabilities.most_endpoints(lb_algorithm) > 0,
                lb_algorithm != LbAlgorithm::Random,
                "{lb_algorithm}"
            );
        }
        assert_eq!(capabilities.default_algorithm(), LbAlgorithm::LeastConnections);
        assert!(capabilities.has_endpoints_at_each_address(), "as a virtual server has all");
    }
}
