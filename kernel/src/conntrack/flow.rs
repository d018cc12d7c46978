//! Flows as ctnetlink writes them (`linux/netfilter/nfnetlink_conntrack.h`).

use std::net::{Ipv4Addr, SocketAddr};

use switchyard_core::model::IpFamily;

use crate::{
    conntrack::Group,
    families::{self, family_number, octets},
    netlink::{Attribute, Attributes, Message, Writer, nfnetlink},
};

pub(crate) const CT_GET: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 1);
pub(crate) const CT_DELETE: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 2);

// CTA_*
pub(crate) const TUPLE_ORIGINAL: u16 = 1;
pub(crate) const TUPLE_REPLY: u16 = 2;
pub(crate) const PROTOCOL_STATE: u16 = 4;
pub(crate) const TIMEOUT: u16 = 7;
pub(crate) const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
// CTA_TUPLE_*
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const TUPLE_ZONE: u16 = 3;
// CTA_IP_*
const V4_SOURCE: u16 = 1;
const V4_DESTINATION: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_DESTINATION: u16 = 4;
// CTA_PROTO_*
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
// CTA_FILTER_*
const FILTER_ORIGINAL: u16 = 1;
// Which parts of the tuple a filter compares. No header has them; they are the interface all the
// same (net/netfilter/nf_internals.h, since Linux 5.8).
const COMPARE_DESTINATION: u32 = 1 << 1;
const COMPARE_PROTOCOL: u32 = 1 << 3;
const COMPARE_DESTINATION_PORT: u32 = 1 << 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) original: Tuple,
    /// The source of the answers: the endpoint if the flow was redirected, else the original
    /// destination.
    pub(crate) answered_by: SocketAddr,
    /// The id, which differs from that of a later flow with the same addresses.
    pub(crate) id: [u8; 4],
}

impl Flow {
    /// Reads an entry. Returns `None` if the entry is not of the group, is in a zone, or has no
    /// ports.
    pub(crate) fn read(message: &Message<'_>, group: Group) -> Option<Self> {
        let attributes = message.attributes(nfnetlink::HEADER);
        let [original, reply, id] = parts(attributes, [TUPLE_ORIGINAL, TUPLE_REPLY, ID])?;
        Some(Self {
            original: Tuple::read(original?, group)?,
            answered_by: Tuple::read(reply?, group)?.source,
            id: id?.payload.try_into().ok()?,
        })
    }

    pub(crate) fn is_redirected(&self) -> bool {
        self.answered_by != self.original.destination
    }

    /// Writes which entry a request is about.
    pub(crate) fn write(&self, w: &mut Writer, group: Group) {
        nfnetlink::header(w, family_number(group.family), 0);
        // Without a tuple the request would mean the whole table.
        w.nest(TUPLE_ORIGINAL, |w| self.original.write(w, group));
        w.attribute(ID, &self.id);
    }
}

/// Finds attributes of an entry in one walk. Returns `None` if the entry is in a zone.
pub(crate) fn parts<'a, const N: usize>(
    attributes: Attributes<'a>,
    kinds: [u16; N],
) -> Option<[Option<Attribute<'a>>; N]> {
    let mut found = [None; N];
    for attribute in attributes {
        // Not written for zone 0.
        if attribute.kind == ZONE {
            return None;
        }
        if let Some(place) = kinds.iter().position(|kind| *kind == attribute.kind) {
            found[place] = Some(attribute);
        }
    }
    Some(found)
}

impl Tuple {
    fn read(attribute: Attribute<'_>, group: Group) -> Option<Self> {
        let (protocol, tuple) = Self::read_any(attribute)?;
        (protocol == group.protocol.number() && IpFamily::of(&tuple.source.ip()) == group.family)
            .then_some(tuple)
    }

    /// Reads the direction of a flow of any protocol, whose number is returned as well. Returns
    /// `None` if the flow is in a zone, or has no ports.
    pub(crate) fn read_any(attribute: Attribute<'_>) -> Option<(u8, Self)> {
        let (mut source, mut destination, mut protocol) = (None, None, None);
        let (mut source_port, mut destination_port) = (None, None);
        for part in attribute.nested() {
            match part.kind {
                TUPLE_IP => {
                    for address in part.nested() {
                        match address.kind {
                            V4_SOURCE | V6_SOURCE => source = families::address(address.payload),
                            V4_DESTINATION | V6_DESTINATION => {
                                destination = families::address(address.payload)
                            }
                            _ => {}
                        }
                    }
                }
                TUPLE_PROTOCOL => {
                    for field in part.nested() {
                        match field.kind {
                            PROTOCOL_NUMBER => protocol = field.u8(),
                            SOURCE_PORT => source_port = field.be16(),
                            DESTINATION_PORT => destination_port = field.be16(),
                            _ => {}
                        }
                    }
                }
                TUPLE_ZONE => return None,
                _ => {}
            }
        }
        let tuple = Self {
            source: SocketAddr::new(source?, source_port?),
            destination: SocketAddr::new(destination?, destination_port?),
        };
        Some((protocol?, tuple))
    }

    fn write(&self, writer: &mut Writer, group: Group) {
        let kinds = match group.family {
            IpFamily::V4 => [V4_SOURCE, V4_DESTINATION],
            IpFamily::V6 => [V6_SOURCE, V6_DESTINATION],
        };
        writer.nest(TUPLE_IP, |w| {
            for (kind, address) in kinds.into_iter().zip([self.source, self.destination]) {
                w.attribute(kind, &octets(address.ip()));
            }
        });
        writer.nest(TUPLE_PROTOCOL, |w| {
            w.u8(PROTOCOL_NUMBER, group.protocol.number());
            w.be16(SOURCE_PORT, self.source.port());
            w.be16(DESTINATION_PORT, self.destination.port());
        });
    }
}

/// A request for the flows of a group, or some of them. The kernel may return more flows than
/// requested; every answer has to be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowQuery {
    pub(crate) group: Group,
    /// The original destination. Only IPv4: the comparison of IPv6 addresses is inverted in the
    /// kernel (up to 6.18 at least) and would leave out exactly the requested flows.
    pub(crate) destination: Option<Ipv4Addr>,
    /// The original destination's port. Has no effect for SCTP.
    pub(crate) port: Option<u16>,
}

impl FlowQuery {
    pub(crate) fn write(&self, writer: &mut Writer, sequence: u32) {
        let family = family_number(self.group.family);
        let mut compare = COMPARE_PROTOCOL;
        nfnetlink::dump(writer, CT_GET, sequence, family, |w| {
            w.nest(TUPLE_ORIGINAL, |w| {
                if let Some(ip) = self.destination {
                    compare |= COMPARE_DESTINATION;
                    w.nest(TUPLE_IP, |w| w.attribute(V4_DESTINATION, &ip.octets()));
                }
                w.nest(TUPLE_PROTOCOL, |w| {
                    w.u8(PROTOCOL_NUMBER, self.group.protocol.number());
                    if let Some(port) = self.port {
                        compare |= COMPARE_DESTINATION_PORT;
                        w.be16(DESTINATION_PORT, port);
                    }
                });
            });
            w.nest(FILTER, |w| w.ne32(FILTER_ORIGINAL, compare));
        });
    }
}

#[cfg(test)]
impl Flow {
    /// Appends the request to make an entry that lasts an hour.
    pub(crate) fn create(&self, writer: &mut Writer, group: Group, sequence: u32) {
        use crate::netlink::flags;

        const CT_NEW: u16 = nfnetlink::kind(nfnetlink::subsystem::CTNETLINK, 0);
        let reply = Tuple { source: self.answered_by, destination: self.original.source };
        writer.message(CT_NEW, flags::CREATE | flags::EXCLUSIVE | flags::ACK, sequence, |w| {
            nfnetlink::header(w, family_number(group.family), 0);
            w.nest(TUPLE_ORIGINAL, |w| self.original.write(w, group));
            w.nest(TUPLE_REPLY, |w| reply.write(w, group));
            w.be32(TIMEOUT, 3600);
            // The kernel gives the entry another one.
            w.attribute(ID, &self.id);
        });
    }
}
