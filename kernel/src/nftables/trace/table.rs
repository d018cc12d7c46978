//! The table that marks packets of a flow to be traced.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::super::{
    abi::{LIST_ELEMENT, data, element, expression as e, message, set},
    netlink::{
        batch::packed_type,
        expression::{
            FIRST_REGISTER, FIRST_SHORT_REGISTER, compare_by, expression, immediate, meta_load,
            meta_set, payload,
        },
    },
    owned::Batch,
    ruleset::{Field, Hook},
};
use crate::{
    families::octets,
    netlink::{Error, Socket, Writer, flags},
};

/// The chains that mark packets: those that come in, and those that the node sends.
pub const MARKING: [&str; 2] = ["prerouting", "output"];
/// The chain at the end of what the node receives.
pub const RECEIVED: &str = "received";
/// The chain at the end of what the node sends, after every translation.
pub const SENT: &str = "sent";

/// The set with the flow.
const FLOW: &str = "flow";
/// The priority of the chains that mark: behind the assembly of fragments (`NF_IP_PRI_CONNTRACK_DEFRAG`),
/// and before what programs usually choose (`NF_IP_PRI_RAW`).
const FIRST: i32 = -399;
/// The priority of the chains at the end: behind source NAT (`NF_IP_PRI_NAT_SRC`), and before the
/// kernel confirms connections.
const LAST: i32 = 1000;
/// The packets that may come at once before the rate counts.
const BURST: u32 = 5;
/// The index of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;

/// A flow, from one client or all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedFlow {
    /// The client; `None` for all clients.
    pub client: Option<IpAddr>,
    /// Whether this node sends the packets; `None` if both it and others may.
    pub by_node: Option<bool>,
    /// The destination, of the same family.
    pub to: SocketAddr,
    /// The number of the protocol, which has ports.
    pub protocol: u8,
}

/// A table that marks the packets of a flow. The kernel removes it when this value is dropped, or
/// when the process ends in whatever way, as the table belongs to the value's socket.
#[derive(Debug)]
pub struct TraceTable {
    /// Its owner, which must stay open.
    _owner: Socket,
}

impl TraceTable {
    /// Adds a table of this name, which must not exist, to the network namespace of the calling
    /// thread. The rules match packets of the flow, up to `rate` a second in each direction of the
    /// node, for this time.
    ///
    /// # Errors
    /// If the kernel refuses: without CAP_NET_ADMIN, or with `EOPNOTSUPP` or `EINVAL` before 5.12,
    /// which has no tables that belong to a socket.
    pub fn add(name: &str, flow: &TracedFlow, rate: u32, time: Duration) -> Result<Self, Error> {
        let mut owner = Socket::open(libc::NETLINK_NETFILTER)?;
        let mut batch = Batch::new(&mut owner, family(flow), name, 20);
        batch.add_table();
        add_set(&mut batch, flow, time);
        let [incoming, outgoing] = MARKING;
        for (chain, hook, priority) in [
            (incoming, Hook::Prerouting, FIRST),
            (outgoing, Hook::Output, FIRST),
            (RECEIVED, Hook::Input, LAST),
            (SENT, Hook::Postrouting, LAST),
        ] {
            batch.add_chain(chain, hook, priority);
        }
        // A packet begins at one of two hooks, of which a rule has one.
        let begins = MARKING
            .into_iter()
            .filter(|chain| flow.by_node.is_none_or(|by_node| by_node == (*chain == outgoing)));
        for chain in begins {
            batch.add_rule(chain, |w| mark(w, flow, rate, chain == incoming));
        }
        batch.commit_all(&mut owner)?;
        Ok(Self { _owner: owner })
    }
}

fn family(flow: &TracedFlow) -> i32 {
    if flow.to.is_ipv4() { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 }
}

/// The parts of the set's key: protocol, destination, port, and the client if there is one.
fn key(flow: &TracedFlow) -> Vec<u8> {
    let mut key = vec![flow.protocol, 0, 0, 0];
    key.extend(octets(flow.to.ip()));
    key.extend(flow.to.port().to_be_bytes());
    key.extend([0; 2]);
    key.extend(flow.client.into_iter().flat_map(octets));
    key
}

fn add_set(batch: &mut Batch<'_>, flow: &TracedFlow, time: Duration) {
    /// The number of the set in the batch.
    const ID: u32 = 1;
    let address = if flow.to.is_ipv4() { Field::Ipv4Addr } else { Field::Ipv6Addr };
    let mut fields = vec![Field::InetProto, address, Field::InetService];
    fields.extend(flow.client.map(|_| address));
    let key = key(flow);
    batch.add(message::NEW_SET, flags::EXCLUSIVE, |w, name| {
        w.string(set::TABLE, name);
        w.string(set::NAME, FLOW);
        w.be32(set::FLAGS, set::FLAG_TIMEOUT);
        w.be32(set::KEY_TYPE, packed_type(&fields));
        w.be32(set::KEY_LEN, key.len() as u32);
        w.be32(set::ID, ID);
    });
    batch.add(message::NEW_ELEMENT, flags::EXCLUSIVE, |w, name| {
        w.string(element::TABLE, name);
        w.string(element::SET, FLOW);
        w.be32(element::SET_ID, ID);
        w.nest(element::ELEMENTS, |w| {
            w.nest(LIST_ELEMENT, |w| {
                w.nest(element::KEY, |w| w.attribute(data::VALUE, &key));
                w.be64(element::TIMEOUT, time.as_millis() as u64);
            });
        });
    });
}

/// The rule that marks.
fn mark(w: &mut Writer, flow: &TracedFlow, rate: u32, is_incoming: bool) {
    // What comes back through the loopback interface was marked as it was sent.
    if is_incoming {
        meta_load(w, e::META_IIF, FIRST_REGISTER);
        compare_by(w, e::CMP_NEQ, &LOOPBACK.to_ne_bytes());
    }
    meta_load(w, e::META_L4PROTO, FIRST_SHORT_REGISTER);
    // The offsets of source and destination, and their length.
    let [source, destination, length] = if flow.to.is_ipv4() { [12, 16, 4] } else { [8, 24, 16] };
    let network = e::BASE_NETWORK;
    let mut loads = vec![(network, destination, length), (e::BASE_TRANSPORT, 2, 2)];
    loads.extend(flow.client.map(|_| (network, source, length)));
    let mut register = FIRST_SHORT_REGISTER + 1;
    for (base, offset, length) in loads {
        payload(w, base, offset, length, register);
        register += length.div_ceil(4);
    }
    expression(w, "lookup", |w| {
        w.string(e::LOOKUP_SET, FLOW);
        w.be32(e::LOOKUP_SREG, FIRST_SHORT_REGISTER);
    });
    expression(w, "limit", |w| {
        w.be64(e::LIMIT_RATE, rate.into());
        w.be64(e::LIMIT_UNIT, 1);
        w.be32(e::LIMIT_BURST, BURST);
    });
    immediate(w, FIRST_REGISTER, |w| w.attribute(data::VALUE, &[1]));
    meta_set(w, e::META_NFTRACE);
}
