//! Counters of what is forwarded, and of what is not.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use switchyard_core::model::Protocol;

/// Defines what is counted: the variant, what it is a part of, and what distinguishes it there.
macro_rules! counted {
    ($($(#[$doc:meta])* $variant:ident = $of:literal, $by:literal;)+) => {
        /// An event that [`Counters`] count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Counted {
            $($(#[$doc])* $variant,)+
        }

        impl Counted {
            /// Everything that is counted.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name of the events that this is one of, and what distinguishes it among them;
            /// empty if it is the only one.
            pub const fn name(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$variant => ($of, $by),)+
                }
            }
        }

        const COUNT: usize = Counted::ALL.len();
    };
}

counted! {
    /// A TCP connection that an endpoint took.
    Tcp = "connections", "TCP";
    /// A UDP flow that began.
    Udp = "connections", "UDP";
    /// An SCTP connection that an endpoint took.
    Sctp = "connections", "SCTP";
    /// A TCP connection that no endpoint took.
    UnservedTcp = "unserved", "TCP";
    /// A UDP flow that no endpoint took.
    UnservedUdp = "unserved", "UDP";
    /// An SCTP connection that no endpoint took.
    UnservedSctp = "unserved", "SCTP";
    /// A byte from a client that went on.
    BytesIn = "bytes", "in";
    /// A byte from an endpoint that went on.
    BytesOut = "bytes", "out";
    /// A datagram from a client that went on.
    DatagramsIn = "datagrams", "in";
    /// A datagram from an endpoint that went on.
    DatagramsOut = "datagrams", "out";
    /// A datagram from a client that could not be sent at once, or for which there was no flow, or
    /// no endpoint any more.
    DroppedIn = "dropped", "in";
    /// A datagram from an endpoint that could not be sent at once.
    DroppedOut = "dropped", "out";
    /// An endpoint refused: no server listens there.
    EndpointRefused = "failures", "refused";
    /// An endpoint did not answer in time.
    EndpointTimeout = "failures", "timeout";
    /// No way led to an endpoint.
    EndpointUnreachable = "failures", "unreachable";
    /// This system had no port, descriptor or memory left for a connection to an endpoint.
    Exhausted = "failures", "exhausted";
    /// Another error of a connection to an endpoint.
    EndpointOther = "failures", "other";
    /// A try to reach an endpoint after another one.
    Retries = "retries", "";
    /// An endpoint was left out for a while.
    LeftOut = "left_out", "";
    /// A connection or flow was refused: all places are taken.
    RefusedAll = "refused", "all";
    /// A connection or flow was refused: its Service has as many places as are free.
    RefusedService = "refused", "service";
    /// A connection or flow was refused: its client has too many places.
    RefusedClient = "refused", "client";
    /// A flow was refused: the flows of its endpoint have all local ports.
    RefusedEndpoint = "refused", "endpoint";
    /// A connection or datagram was refused: its client is not among the allowed sources.
    RefusedSource = "refused", "source";
    /// A listener was served again after its task had panicked.
    Restarts = "restarts", "";
}

impl Counted {
    /// A connection that an endpoint took.
    pub(crate) fn connection(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }

    /// A connection that no endpoint took.
    pub(crate) fn unserved(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::UnservedTcp,
            Protocol::Udp => Self::UnservedUdp,
            Protocol::Sctp => Self::UnservedSctp,
        }
    }

    /// The failure of a try to reach an endpoint.
    pub(crate) fn failure(error: &io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            ConnectionRefused | ConnectionReset => Self::EndpointRefused,
            TimedOut => Self::EndpointTimeout,
            HostUnreachable | NetworkUnreachable | NetworkDown | AddrNotAvailable => {
                Self::EndpointUnreachable
            }
            _ => Self::EndpointOther,
        }
    }
}

/// Counters of a [`Forwarder`](crate::forwarder::Forwarder), since the start. They cost a few nanoseconds for
/// each event or number of bytes, and are exact, but not all of the same moment.
#[derive(Debug)]
pub struct Counters {
    values: [AtomicU64; COUNT],
    active: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { values: [const { AtomicU64::new(0) }; COUNT], active: AtomicU64::new(0) }
    }
}

impl Counters {
    /// The number of such events.
    pub fn get(&self, counted: Counted) -> u64 {
        self.values[counted as usize].load(Relaxed)
    }

    /// The number of connections and flows that there are now.
    pub fn active(&self) -> u64 {
        self.active.load(Relaxed)
    }

    pub(crate) fn add(&self, counted: Counted, number: u64) {
        self.values[counted as usize].fetch_add(number, Relaxed);
    }

    pub(crate) fn count(&self, counted: Counted) {
        self.add(counted, 1);
    }

    pub(crate) fn set_active(&self, connections: usize) {
        self.active.store(connections as u64, Relaxed);
    }
}
