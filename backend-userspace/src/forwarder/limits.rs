//! The limits that a connection or flow may reach, and the numbers of what sources have.

use std::{collections::HashMap, fmt, net::IpAddr};

use crate::forwarder::counters::Counted;

/// The limit that a connection or flow would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// There is no place.
    All,
    /// The Service has as many places as are free.
    Service,
    /// The client has too many of the Service's places, of all, or of the ports of its flows to the
    /// endpoint.
    Client,
    /// The client's connections to the endpoint have too many ports.
    Ports,
    /// The flows of the endpoint have all ports of this node.
    Endpoint,
}

impl LimitReached {
    /// Returns the counter of the connections and flows that the limit refuses.
    pub(crate) fn counted(self) -> Counted {
        match self {
            Self::All => Counted::RefusedAll,
            Self::Service => Counted::RefusedService,
            Self::Client | Self::Ports => Counted::RefusedClient,
            Self::Endpoint => Counted::RefusedEndpoint,
        }
    }
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all Services together",
            Self::Service => "the Service",
            Self::Client => "the client",
            Self::Ports => {
                "the client at an endpoint, with half of the local ports (ip_local_port_range, tcp_tw_reuse)"
            }
            Self::Endpoint => "the endpoint, whose flows have all local ports",
        })
    }
}

/// Takes one from what a source has.
pub(crate) fn count_down(counts: &mut HashMap<IpAddr, usize>, source: IpAddr) {
    if let Some(count) = counts.get_mut(&source) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&source);
        }
    }
}
