//! The kernel's table, written and read with ctnetlink by means of the test's own.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
};

use switchyard_kernel::netlink::{Attribute, Socket, Writer, flags, nfnetlink};

const CT_NEW: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 0);
const CT_GET: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 1);

/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`: a full table does not end such an entry
/// early.
const ASSURED: u32 = 2 | 4 | 8;

/// A flow: from whom, to what destination, and who answers instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    pub protocol: u8,
    pub client: SocketAddr,
    pub to: SocketAddr,
    pub by: SocketAddr,
    pub zone: u16,
}

pub fn flow(protocol: &str, client: &str, to: &str, by: &str) -> Flow {
    let protocol = match protocol {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("what is {other}?"),
    };
    let [client, to, by] = [client, to, by].map(|text| text.parse().unwrap());
    Flow { protocol, client, to, by, zone: 0 }
}

pub fn udp(client: &str, to: &str, by: &str) -> Flow {
    flow("UDP", client, to, by)
}

/// Makes entries in the table of this thread's namespace. They last an hour.
pub fn add(flows: &[Flow]) {
    add_all(flows.iter().copied());
}

/// Like [`add`], for more flows than one wants to keep.
pub fn add_all(flows: impl IntoIterator<Item = Flow>) {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
    let mut flows = flows.into_iter().peekable();
    while flows.peek().is_some() {
        let mut writer = Writer::new();
        let batch: Vec<Flow> = flows.by_ref().take(200).collect();
        let first = socket.sequences(batch.len() as u32);
        let last = first + batch.len() as u32 - 1;
        for (sequence, flow) in (first..).zip(&batch) {
            let ack = if sequence == last { flags::ACK } else { 0 };
            write(&mut writer, flow, flags::CREATE | flags::EXCLUSIVE | ack, sequence);
        }
        let errors = socket.batch(writer.as_slice(), last).unwrap();
        assert_eq!(errors, [], "one of {:?} ...", batch[0]);
    }
}

fn write(writer: &mut Writer, flow: &Flow, flags: u16, sequence: u32) {
    let family = if flow.to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    writer.message(CT_NEW, flags, sequence, |w| {
        nfnetlink::header(w, family as u8, 0);
        write_tuple(w, 1, flow.protocol, flow.client, flow.to);
        write_tuple(w, 2, flow.protocol, flow.by, seen_by_endpoint(flow));
        w.be32(3, ASSURED);
        w.be32(7, 3600);
        if flow.zone != 0 {
            w.be16(18, flow.zone);
        }
    });
}

/// The client as whoever answers sees it. Two flows of a client to one endpoint must differ there:
/// as the kernel would, this gives them their own source ports.
fn seen_by_endpoint(flow: &Flow) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    match flow.by == flow.to {
        true => flow.client,
        false => SocketAddr::new(flow.client.ip(), NEXT.fetch_add(1, Ordering::Relaxed)),
    }
}

fn write_tuple(w: &mut Writer, kind: u16, protocol: u8, from: SocketAddr, to: SocketAddr) {
    w.nest(kind, |w| {
        w.nest(1, |w| match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                w.attribute(1, &from.octets());
                w.attribute(2, &to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                w.attribute(3, &from.octets());
                w.attribute(4, &to.octets());
            }
            mixed => panic!("{mixed:?} are not of one family"),
        });
        w.nest(2, |w| {
            w.u8(1, protocol);
            w.be16(2, from.port());
            w.be16(3, to.port());
        });
    });
}

/// All entries of the table of this thread's namespace, without any filter.
pub fn list() -> BTreeSet<Flow> {
    let mut found = BTreeSet::new();
    each(|flow| {
        found.insert(flow);
    });
    found
}

/// Calls `each` with all entries.
pub fn each(mut each: impl FnMut(Flow)) {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
    let mut writer = Writer::new();
    let sequence = socket.sequences(1);
    nfnetlink::dump(&mut writer, CT_GET, sequence, 0, |_| {});
    let read = |message: switchyard_kernel::netlink::Message<'_>| {
        let attributes = message.attributes(nfnetlink::HEADER);
        let (protocol, client, to) = read_tuple(attributes.find_kind(1).unwrap());
        let (_, by, _) = read_tuple(attributes.find_kind(2).unwrap());
        let zone = attributes.find_kind(18).map_or(0, |zone| zone.be16().unwrap());
        each(Flow { protocol, client, to, by, zone });
        Ok(())
    };
    socket.request(writer.as_slice(), sequence, read).unwrap();
}

fn read_tuple(tuple: Attribute<'_>) -> (u8, SocketAddr, SocketAddr) {
    let ips: Vec<IpAddr> = tuple.nested().find_kind(1).unwrap().nested().map(read_ip).collect();
    let fields = tuple.nested().find_kind(2).unwrap().nested();
    let port = |kind| fields.find_kind(kind).unwrap().be16().unwrap();
    let protocol = fields.find_kind(1).unwrap().u8().unwrap();
    (protocol, SocketAddr::new(ips[0], port(2)), SocketAddr::new(ips[1], port(3)))
}

fn read_ip(attribute: Attribute<'_>) -> IpAddr {
    match attribute.payload.len() {
        4 => <[u8; 4]>::try_from(attribute.payload).unwrap().into(),
        _ => <[u8; 16]>::try_from(attribute.payload).unwrap().into(),
    }
}

/// Checks that the table has these entries and no others.
#[track_caller]
pub fn assert_entries(expected: &[Flow]) {
    assert_eq!(list(), expected.iter().copied().collect());
}
