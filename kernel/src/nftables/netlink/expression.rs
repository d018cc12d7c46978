//! Statements as the expressions that the kernel runs, in the forms that nft recognises when it
//! lists them.

use ipnet::IpNet;
use switchyard_model::IpFamily;

use crate::{
    families::octets,
    netlink::Writer,
    nftables::{
        abi::{LIST_ELEMENT, data, expression as e},
        ruleset::{
            Family, Field, InterfaceMatch, Selector, Side, SlotChoice, Statement, Verdict,
            concat_len,
        },
    },
};

const VERDICT_REGISTER: u32 = 0;
/// The first register: 16 bytes, or the first four of them.
pub(in crate::nftables) const FIRST_REGISTER: u32 = 1;
/// The length of a register in bytes, of those that have room for an IPv6 address.
const LONG_REGISTER: usize = 16;
/// The first register of 4 bytes. These registers overlap with those of 16 bytes.
pub(in crate::nftables) const FIRST_SHORT_REGISTER: u32 = 8;

/// The length of the longest interface name with its NUL, in bytes.
const INTERFACE_NAME: usize = 16;

/// Appends the expressions of a statement.
pub(super) fn write(w: &mut Writer, family: Family, statement: &Statement) {
    match statement {
        Statement::CtStateNew => ct_bits(w, e::CT_STATE, e::CT_STATE_NEW),
        Statement::CtStatusDnat => ct_bits(w, e::CT_STATUS, e::CT_STATUS_DNAT),
        Statement::CtReply => {
            ct_load(w, e::CT_DIRECTION_KEY);
            compare(w, false, &[e::CT_DIR_REPLY]);
        }
        Statement::Address { side, negated, net } => address(w, *side, *negated, net),
        Statement::InputInterface { negated, name } => {
            let key = match name {
                InterfaceMatch::Kind(_) => e::META_IIFKIND,
                InterfaceMatch::Exact(_) | InterfaceMatch::Prefix(_) => e::META_IIFNAME,
            };
            meta_load(w, key, FIRST_REGISTER);
            let mut padded = [0; INTERFACE_NAME];
            let compared = match name {
                InterfaceMatch::Exact(name) | InterfaceMatch::Kind(name) => {
                    let length = name.len().min(INTERFACE_NAME);
                    padded[..length].copy_from_slice(&name.as_bytes()[..length]);
                    &padded[..]
                }
                InterfaceMatch::Prefix(name) => &name.as_bytes()[..name.len().min(INTERFACE_NAME)],
            };
            compare(w, *negated, compared);
        }
        Statement::FibLocal(side) => {
            expression(w, "fib", |w| {
                w.be32(
                    e::FIB_FLAGS,
                    match side {
                        Side::Source => e::FIB_SADDR,
                        Side::Destination => e::FIB_DADDR,
                    },
                );
                w.be32(e::FIB_RESULT, e::FIB_ADDRTYPE);
                w.be32(e::FIB_DREG, FIRST_REGISTER);
            });
            compare(w, false, &e::ADDRTYPE_LOCAL.to_ne_bytes());
        }
        Statement::Protocol(protocol) => {
            meta_load(w, e::META_L4PROTO, FIRST_REGISTER);
            compare(w, false, &[protocol.number()]);
        }
        Statement::SocketTransparent | Statement::SocketWildcard => {
            let key = match statement {
                Statement::SocketTransparent => e::SOCKET_TRANSPARENT,
                _ => e::SOCKET_WILDCARD,
            };
            expression(w, "socket", |w| {
                w.be32(e::SOCKET_KEY, key);
                w.be32(e::SOCKET_DREG, FIRST_REGISTER);
            });
            compare(w, false, &[1]);
        }
        Statement::MarkSet(bits) => {
            meta_load(w, e::META_MARK, FIRST_REGISTER);
            bitwise(w, &bits.to_ne_bytes(), &[0; 4]);
            compare(w, true, &[0; 4]);
        }
        Statement::MarkOr(bits) => change_mark(w, !bits, *bits),
        Statement::MarkXor(bits) => change_mark(w, u32::MAX, *bits),
        Statement::Lookup { key, set } => {
            load(w, family, key);
            lookup(w, set.as_str(), None);
        }
        Statement::VerdictMap { key, map } => {
            load(w, family, key);
            lookup(w, map.as_str(), Some(VERDICT_REGISTER));
        }
        Statement::DnatSlot { protocol, key, choice, slots, map } => {
            meta_load(w, e::META_L4PROTO, FIRST_REGISTER);
            compare(w, false, &[protocol.number()]);
            let slot = load(w, family, key);
            choose_slot(w, family, choice, *slots, slot);
            dnat_by_map(w, family, map.as_str());
        }
        Statement::DnatMap { key, map } => {
            load(w, family, key);
            dnat_by_map(w, family, map.as_str());
        }
        Statement::DnatToItself => {
            payload_address(w, family, Side::Destination, None, FIRST_REGISTER);
            dnat(w, family, None);
        }
        Statement::Masquerade => {
            expression(w, "masq", |w| w.be32(e::MASQ_FLAGS, e::NAT_FULLY_RANDOM));
        }
        Statement::Reject => expression(w, "reject", |w| {
            w.be32(e::REJECT_TYPE, e::REJECT_UNREACHABLE);
            w.u8(
                e::REJECT_CODE,
                match family {
                    Family::Ip => e::ICMP_PORT,
                    Family::Ip6 => e::ICMPV6_PORT,
                },
            );
        }),
        Statement::UpdateMap { protocol, key, value, map } => {
            meta_load(w, e::META_L4PROTO, FIRST_REGISTER);
            compare(w, false, &[protocol.number()]);
            let end = load(w, family, key);
            // nft gives the value whole registers of 16 bytes.
            let start = end.next_multiple_of(LONG_REGISTER);
            load_from(w, family, value, start);
            expression(w, "dynset", |w| {
                w.be32(e::DYNSET_SREG_KEY, FIRST_REGISTER);
                w.be32(e::DYNSET_SREG_DATA, register(start));
                w.be32(e::DYNSET_OP, e::DYNSET_UPDATE);
                w.string(e::DYNSET_SET, map.as_str());
            });
        }
        Statement::Verdict(verdict) => immediate(w, VERDICT_REGISTER, |w| {
            write_verdict(w, verdict);
        }),
    }
}

/// Appends a verdict as data.
pub(super) fn write_verdict(w: &mut Writer, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Accept => (data::ACCEPT, None),
        Verdict::Drop => (data::DROP, None),
        Verdict::Return => (data::RETURN, None),
        Verdict::Jump(chain) => (data::JUMP, Some(chain)),
        Verdict::Goto(chain) => (data::GOTO, Some(chain)),
    };
    w.nest(data::VERDICT, |w| {
        w.be32(data::VERDICT_CODE, code.cast_unsigned());
        if let Some(chain) = chain {
            w.string(data::VERDICT_CHAIN, chain.as_str());
        }
    });
}

/// Appends an expression of a rule.
pub(in crate::nftables) fn expression(w: &mut Writer, name: &str, fill: impl FnOnce(&mut Writer)) {
    w.nest(LIST_ELEMENT, |w| {
        w.string(e::NAME, name);
        w.nest(e::DATA, fill);
    });
}

/// The register at an offset from the first register, in bytes.
fn register(offset: usize) -> u32 {
    let offset = offset as u32;
    if offset.is_multiple_of(LONG_REGISTER as u32) {
        FIRST_REGISTER + offset / LONG_REGISTER as u32
    } else {
        FIRST_SHORT_REGISTER + offset / 4
    }
}

/// Loads parts of the packet into consecutive registers, from the first register on. Returns the
/// offset behind the last part, in bytes.
fn load(w: &mut Writer, family: Family, key: &[Selector]) -> usize {
    load_from(w, family, key, 0)
}

/// Loads parts of the packet like [`load`], but from the register at `start` on, in bytes.
fn load_from(w: &mut Writer, family: Family, key: &[Selector], start: usize) -> usize {
    key.iter().fold(start, |offset, selector| {
        let register = register(offset);
        match selector {
            Selector::SourceAddress => payload_address(w, family, Side::Source, None, register),
            Selector::DestinationAddress => {
                payload_address(w, family, Side::Destination, None, register);
            }
            Selector::Protocol => meta_load(w, e::META_L4PROTO, register),
            Selector::SourcePort => payload(w, e::BASE_TRANSPORT, 0, 2, register),
            Selector::DestinationPort => payload(w, e::BASE_TRANSPORT, 2, 2, register),
            Selector::OriginalSource => {
                ct_original(w, original_address(family, Side::Source), register);
            }
            Selector::OriginalDestination => {
                ct_original(w, original_address(family, Side::Destination), register);
            }
            Selector::OriginalDestinationPort => ct_original(w, e::CT_PROTO_DST, register),
        }
        offset + field(family, *selector).padded_width()
    })
}

/// The type of a part of the packet.
fn field(family: Family, selector: Selector) -> Field {
    match selector {
        Selector::SourceAddress
        | Selector::DestinationAddress
        | Selector::OriginalSource
        | Selector::OriginalDestination => family.address_field(),
        Selector::Protocol => Field::InetProto,
        Selector::SourcePort | Selector::DestinationPort | Selector::OriginalDestinationPort => {
            Field::InetService
        }
    }
}

/// Loads an address, or as many of its first bytes as given.
fn payload_address(w: &mut Writer, family: Family, side: Side, bytes: Option<u32>, register: u32) {
    let (offset, length) = match (family, side) {
        (Family::Ip, Side::Source) => (12, 4),
        (Family::Ip, Side::Destination) => (16, 4),
        (Family::Ip6, Side::Source) => (8, 16),
        (Family::Ip6, Side::Destination) => (24, 16),
    };
    payload(w, e::BASE_NETWORK, offset, bytes.unwrap_or(length), register);
}

/// Loads a part of a header into a register.
pub(in crate::nftables) fn payload(
    w: &mut Writer,
    base: u32,
    offset: u32,
    length: u32,
    register: u32,
) {
    expression(w, "payload", |w| {
        w.be32(e::PAYLOAD_DREG, register);
        w.be32(e::PAYLOAD_BASE, base);
        w.be32(e::PAYLOAD_OFFSET, offset);
        w.be32(e::PAYLOAD_LEN, length);
    });
}

fn address(w: &mut Writer, side: Side, negated: bool, net: &IpNet) {
    let net = net.trunc();
    let family = Family::from(IpFamily::of(&net.addr()));
    let [octets, mask] = [net.addr(), net.netmask()].map(octets);
    let bits = usize::from(net.prefix_len());
    if bits > 0 && bits.is_multiple_of(8) {
        // The mask covers whole bytes: load these and no others.
        let bytes = bits / 8;
        payload_address(w, family, side, Some(bytes as u32), FIRST_REGISTER);
        compare(w, negated, &octets[..bytes]);
    } else {
        payload_address(w, family, side, None, FIRST_REGISTER);
        bitwise(w, &mask, &vec![0; mask.len()]);
        compare(w, negated, &octets);
    }
}

/// Loads something about the packet into a register.
pub(in crate::nftables) fn meta_load(w: &mut Writer, key: u32, register: u32) {
    expression(w, "meta", |w| {
        w.be32(e::META_KEY, key);
        w.be32(e::META_DREG, register);
    });
}

fn change_mark(w: &mut Writer, mask: u32, xor: u32) {
    meta_load(w, e::META_MARK, FIRST_REGISTER);
    bitwise(w, &mask.to_ne_bytes(), &xor.to_ne_bytes());
    meta_set(w, e::META_MARK);
}

/// Sets something about the packet to what the first register holds.
pub(in crate::nftables) fn meta_set(w: &mut Writer, key: u32) {
    expression(w, "meta", |w| {
        w.be32(e::META_KEY, key);
        w.be32(e::META_SREG, FIRST_REGISTER);
    });
}

/// Loads something about the connection into the first register.
pub(in crate::nftables) fn ct_load(w: &mut Writer, key: u32) {
    expression(w, "ct", |w| {
        w.be32(e::CT_KEY, key);
        w.be32(e::CT_DREG, FIRST_REGISTER);
    });
}

/// Whether something about the connection has any of these bits.
pub(in crate::nftables) fn ct_bits(w: &mut Writer, key: u32, bits: u32) {
    ct_load(w, key);
    bitwise(w, &bits.to_ne_bytes(), &[0; 4]);
    compare(w, true, &[0; 4]);
}

/// The conntrack key of an address. These keys, other than `NFT_CT_SRC` and `NFT_CT_DST`, name the
/// family.
fn original_address(family: Family, side: Side) -> u32 {
    match (family, side) {
        (Family::Ip, Side::Source) => e::CT_SRC_IP,
        (Family::Ip, Side::Destination) => e::CT_DST_IP,
        (Family::Ip6, Side::Source) => e::CT_SRC_IP6,
        (Family::Ip6, Side::Destination) => e::CT_DST_IP6,
    }
}

/// Loads a part of the connection's first packet, as it was before any translation.
fn ct_original(w: &mut Writer, key: u32, register: u32) {
    expression(w, "ct", |w| {
        w.be32(e::CT_KEY, key);
        w.be32(e::CT_DREG, register);
        w.u8(e::CT_DIRECTION, e::CT_DIR_ORIGINAL);
    });
}

fn compare(w: &mut Writer, negated: bool, value: &[u8]) {
    compare_by(w, if negated { e::CMP_NEQ } else { e::CMP_EQ }, value);
}

/// Compares what the first register holds with a value.
pub(in crate::nftables) fn compare_by(w: &mut Writer, operator: u32, value: &[u8]) {
    expression(w, "cmp", |w| {
        w.be32(e::CMP_SREG, FIRST_REGISTER);
        w.be32(e::CMP_OP, operator);
        w.nest(e::CMP_DATA, |w| w.attribute(data::VALUE, value));
    });
}

fn bitwise(w: &mut Writer, mask: &[u8], xor: &[u8]) {
    expression(w, "bitwise", |w| {
        w.be32(e::BITWISE_SREG, FIRST_REGISTER);
        w.be32(e::BITWISE_DREG, FIRST_REGISTER);
        w.be32(e::BITWISE_LEN, mask.len() as u32);
        w.nest(e::BITWISE_MASK, |w| w.attribute(data::VALUE, mask));
        w.nest(e::BITWISE_XOR, |w| w.attribute(data::VALUE, xor));
    });
}

/// Draws one of so many slots, into the register at `slot`, in bytes.
fn choose_slot(w: &mut Writer, family: Family, choice: &SlotChoice, slots: u32, slot: usize) {
    match choice {
        SlotChoice::Random => numgen(w, e::NUMGEN_RANDOM, slots, register(slot)),
        SlotChoice::InTurn => numgen(w, e::NUMGEN_IN_TURN, slots, register(slot)),
        SlotChoice::Hash { of, seed } => {
            // nft keeps the registers of the whole key free, and besides those of one address.
            let start = slot + Field::Slot.padded_width() + LONG_REGISTER;
            load_from(w, family, of, start);
            let fields: Vec<Field> = of.iter().map(|selector| field(family, *selector)).collect();
            expression(w, "hash", |w| {
                w.be32(e::HASH_SREG, register(start));
                w.be32(e::HASH_DREG, register(slot));
                w.be32(e::HASH_LEN, concat_len(&fields) as u32);
                w.be32(e::HASH_MODULUS, slots);
                // Without a seed, the kernel chooses one at random.
                w.be32(e::HASH_SEED, *seed);
                w.be32(e::HASH_OFFSET, 0);
                w.be32(e::HASH_TYPE, e::HASH_JENKINS);
            });
        }
    }
}

fn numgen(w: &mut Writer, kind: u32, modulus: u32, register: u32) {
    expression(w, "numgen", |w| {
        w.be32(e::NUMGEN_DREG, register);
        w.be32(e::NUMGEN_MODULUS, modulus);
        w.be32(e::NUMGEN_TYPE, kind);
        w.be32(e::NUMGEN_OFFSET, 0);
    });
}

fn lookup(w: &mut Writer, set: &str, destination: Option<u32>) {
    expression(w, "lookup", |w| {
        w.be32(e::LOOKUP_SREG, FIRST_REGISTER);
        if let Some(register) = destination {
            w.be32(e::LOOKUP_DREG, register);
        }
        w.string(e::LOOKUP_SET, set);
    });
}

/// Puts a value into a register.
pub(in crate::nftables) fn immediate(
    w: &mut Writer,
    register: u32,
    value: impl FnOnce(&mut Writer),
) {
    expression(w, "immediate", |w| {
        w.be32(e::IMMEDIATE_DREG, register);
        w.nest(e::IMMEDIATE_DATA, value);
    });
}

/// Translates the destination to the address and the port that a map has for the key in the first
/// register.
fn dnat_by_map(w: &mut Writer, family: Family, map: &str) {
    lookup(w, map, Some(FIRST_REGISTER));
    // The port follows the address in the map's data.
    dnat(w, family, Some(register(family.address_field().padded_width())));
}

/// Translates the destination to the address in the first register, and the port in this one.
fn dnat(w: &mut Writer, family: Family, port: Option<u32>) {
    expression(w, "nat", |w| {
        w.be32(e::NAT_TYPE, e::NAT_DNAT);
        w.be32(e::NAT_FAMILY, family.number().into());
        w.be32(e::NAT_ADDR_MIN, FIRST_REGISTER);
        if let Some(port) = port {
            w.be32(e::NAT_PROTO_MIN, port);
        }
    });
}
