//! The use of the kernel's table: entries and their limit, what was lost, and where entries lead.

use std::{fs, net::SocketAddr};

use switchyard_core::model::Protocol;

use crate::{
    conntrack::flow::{
        CT_GET, ID, PROTOCOL_STATE, TIMEOUT, TUPLE_ORIGINAL, TUPLE_REPLY, Tuple, parts,
    },
    netlink::{Attributes, Error, Socket, Writer, nfnetlink},
};

const GET_STATS_CPU: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 4);
const GET_STATS: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 5);

// CTA_STATS_* of a processor
const INSERT_FAILED: u16 = 9;
const DROP: u16 = 10;
const EARLY_DROP: u16 = 11;
// CTA_STATS_GLOBAL_*
const ENTRIES: u16 = 1;
const MAX_ENTRIES: u16 = 2;

// CTA_PROTOINFO_TCP and what is in it, the state of an established connection, and the flag of the
// direction whose last data is not acknowledged (linux/netfilter/nf_conntrack_tcp.h)
const TCP: u16 = 1;
const TCP_STATE: u16 = 1;
const TCP_FLAGS_ORIGINAL: u16 = 4;
const ESTABLISHED: u8 = 3;
const DATA_UNACKNOWLEDGED: u8 = 0x10;
/// The time of silence after which data without an answer makes a connection stuck, in seconds:
/// longer than an answer takes.
const SILENCE: u32 = 2;

/// The use of the table of a network namespace, and what the kernel has lost there since the
/// namespace began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The number of entries.
    pub entries: u64,
    /// The limit of entries, which all namespaces share; `None` if there is none.
    pub limit: Option<u64>,
    /// Packets that were dropped because no entry could be made, as in a full table.
    pub dropped: u64,
    /// Entries of connections that were ended early, to make room for others.
    pub evicted: u64,
    /// Entries that could not be inserted, as the same entry came first; the packet was dropped.
    pub insert_failures: u64,
}

impl Usage {
    /// The entries in percent of the limit, rounded down; `None` without a limit.
    pub fn percent(&self) -> Option<u64> {
        Some(self.entries.saturating_mul(100) / self.limit?)
    }
}

/// A flow of a protocol with ports, outside zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrackedFlow {
    /// The protocol.
    pub protocol: Protocol,
    /// The address that the client sends to.
    pub destination: SocketAddr,
    /// The source of the answers: the endpoint, if the flow is translated.
    pub answered_by: SocketAddr,
    /// The time until the entry ends, in seconds, if it is an established connection of TCP whose
    /// client has sent data that is not acknowledged.
    pub unacknowledged_for: Option<u32>,
    /// The kernel's id, a hash, which differs from that of a later flow with the same addresses.
    pub id: u32,
}

impl TrackedFlow {
    fn read(attributes: Attributes<'_>) -> Option<Self> {
        let kinds = [TUPLE_ORIGINAL, TUPLE_REPLY, TIMEOUT, ID, PROTOCOL_STATE];
        let [original, reply, timeout, id, state] = parts(attributes, kinds)?;
        let of_tcp = |kind| state?.nested().find_kind(TCP)?.nested().find_kind(kind);
        let flags = of_tcp(TCP_FLAGS_ORIGINAL).and_then(|it| it.payload.first().copied());
        let is_waiting = of_tcp(TCP_STATE).and_then(|state| state.u8()) == Some(ESTABLISHED)
            && flags.is_some_and(|flags| flags & DATA_UNACKNOWLEDGED != 0);
        let (number, tuple) = Tuple::read_any(original?)?;
        Some(Self {
            protocol: Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?,
            destination: tuple.destination,
            answered_by: Tuple::read_any(reply?)?.1.source,
            unacknowledged_for: timeout.filter(|_| is_waiting).and_then(|left| left.be32()),
            id: id.map_or(Some(0), |id| id.be32())?,
        })
    }
}

/// Recognizes connections of TCP whose endpoint acknowledges nothing. The kernel gives connections
/// with such data a shorter time-out than others, 300 s as the settings come.
#[derive(Clone, Copy, Debug)]
pub struct StuckLimit(u32);

impl StuckLimit {
    /// Reads the time-outs of this thread's network namespace. Returns `None` if they cannot be
    /// read, or established connections end as soon as those that wait.
    pub fn read() -> Option<Self> {
        let setting = |name: &str| -> Option<u32> {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{name}");
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let waiting = setting("max_retrans")?.max(setting("unacknowledged")?);
        (setting("established")? > waiting).then_some(Self(waiting))
    }

    /// Whether the client has sent data that are not acknowledged, and nothing was sent since
    /// for two seconds: an idle connection, and one whose answer takes its time, are not stuck.
    pub fn is_stuck(self, flow: &TrackedFlow) -> bool {
        flow.unacknowledged_for.is_some_and(|left| left.saturating_add(SILENCE) <= self.0)
    }
}

/// Reads the table of the network namespace in which the reader was opened.
#[derive(Debug)]
pub struct UsageReader(Socket);

impl UsageReader {
    /// Opens the table of the calling thread's network namespace.
    ///
    /// # Errors
    /// If there is no socket to the kernel.
    pub fn open() -> Result<Self, Error> {
        Socket::open(libc::NETLINK_NETFILTER).map(Self)
    }

    /// Asks for the use of the table by two messages, however full the table is. Needs
    /// CAP_NET_ADMIN.
    ///
    /// # Errors
    /// If the kernel refuses, or does not answer.
    pub fn read(&mut self) -> Result<Usage, Error> {
        let mut usage = Usage::default();
        let fill = |w: &mut Writer| nfnetlink::header(w, 0, 0);
        self.0.ask(GET_STATS, 0, fill, |message| {
            let attributes = message.attributes(nfnetlink::HEADER);
            usage.entries = number(attributes, ENTRIES).ok_or(Error::Malformed("no entries"))?;
            usage.limit = number(attributes, MAX_ENTRIES).filter(|limit| *limit > 0);
            Ok(())
        })?;
        self.dump(GET_STATS_CPU, |attributes| {
            let add = |sum: &mut u64, kind| *sum += number(attributes, kind).unwrap_or(0);
            add(&mut usage.dropped, DROP);
            add(&mut usage.evicted, EARLY_DROP);
            add(&mut usage.insert_failures, INSERT_FAILED);
        })?;
        Ok(usage)
    }

    /// Hands each entry of TCP, UDP and SCTP outside zones to `each`. Entries that change while the
    /// table is walked may be handed over twice, or not at all. Takes time in proportion to the
    /// table, in which packets go on.
    ///
    /// # Errors
    /// If the kernel refuses, or does not answer.
    pub fn flows(&mut self, mut each: impl FnMut(&TrackedFlow)) -> Result<(), Error> {
        self.dump(CT_GET, |attributes| {
            if let Some(flow) = TrackedFlow::read(attributes) {
                each(&flow);
            }
        })
    }

    /// Asks for all objects of a kind, of both families.
    fn dump(&mut self, kind: u16, mut each: impl FnMut(Attributes<'_>)) -> Result<(), Error> {
        let sequence = self.0.sequences(1);
        let mut request = Writer::new();
        nfnetlink::dump(&mut request, kind, sequence, 0, |_| {});
        self.0.request(request.as_slice(), sequence, |message| {
            each(message.attributes(nfnetlink::HEADER));
            Ok(())
        })
    }
}

fn number(attributes: Attributes<'_>, kind: u16) -> Option<u64> {
    attributes.be32(kind).map(u64::from)
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::in_namespace;

    use super::*;
    use crate::conntrack::{
        Group,
        testing::{create, flow},
    };

    #[test]
    fn entries_are_counted_and_their_destinations_named() {
        in_namespace(|| {
            let mut reader = UsageReader::open().unwrap();
            let before = reader.read().unwrap();
            assert_eq!((before.entries, before.dropped, before.insert_failures), (0, 0, 0));
            let limit = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
            assert_eq!(before.limit.unwrap_or(0), limit.trim().parse::<u64>().unwrap());
            let to = ["10.0.0.10:53", "[fd00::10]:53"];
            create(&flow("10.1.9.9:4000", to[0], "10.1.0.1:5353"), Group::ALL[0]);
            create(&flow("[fd01::9]:4000", to[1], "[fd01::1]:5353"), Group::ALL[2]);
            assert_eq!(reader.read().unwrap().entries, 2);
            let mut found = Vec::new();
            reader.flows(|flow| found.push(*flow)).unwrap();
            assert_ne!(found[0].id, found[1].id);
            found.iter_mut().for_each(|flow| flow.id = 0);
            found.sort_by_key(|flow| flow.destination);
            let expected = [(to[0], "10.1.0.1:5353"), (to[1], "[fd01::1]:5353")];
            assert_eq!(found, expected.map(|(to, by)| tracked(Protocol::Udp, to, by, None)));
        });
    }

    fn tracked(protocol: Protocol, to: &str, by: &str, left: Option<u32>) -> TrackedFlow {
        let [destination, answered_by] = [to, by].map(|text| text.parse().unwrap());
        TrackedFlow { protocol, destination, answered_by, unacknowledged_for: left, id: 0 }
    }

    #[test]
    fn connections_are_stuck_whose_data_is_not_acknowledged() {
        in_namespace(|| {
            let limit = StuckLimit::read().unwrap();
            let is_stuck =
                |left| limit.is_stuck(&tracked(Protocol::Tcp, "10.0.0.1:80", "10.1.0.1:80", left));
            assert!(!is_stuck(None) && !is_stuck(Some(86_400)) && !is_stuck(Some(299)));
            assert!(is_stuck(Some(298)) && is_stuck(Some(1)));
            let shorter = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
            fs::write(shorter, "300").unwrap();
            assert!(StuckLimit::read().is_none());
        });
    }

    #[test]
    fn a_share_needs_a_limit() {
        let usage = |entries, limit| Usage { entries, limit, ..Usage::default() }.percent();
        assert_eq!(usage(799, Some(1000)), Some(79));
        assert_eq!(usage(2000, Some(1000)), Some(200));
        assert_eq!(usage(1, None), None);
        assert_eq!(usage(u64::MAX, Some(u64::MAX)), Some(1));
    }
}
