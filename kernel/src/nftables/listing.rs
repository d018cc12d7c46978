//! Lists of objects, and the names of their families.

use super::abi::{data, expression, rule};
use crate::netlink::{Attributes, Error, Message, Socket, Writer, nfnetlink};

/// The numbers of families, and the names that nft has for them.
const FAMILIES: [(i32, &str); 6] = [
    (libc::NFPROTO_INET, "inet"),
    (libc::NFPROTO_IPV4, "ip"),
    (libc::NFPROTO_ARP, "arp"),
    (libc::NFPROTO_NETDEV, "netdev"),
    (libc::NFPROTO_BRIDGE, "bridge"),
    (libc::NFPROTO_IPV6, "ip6"),
];

/// The name that nft has for a family.
pub(super) fn family_name(number: u8) -> Option<&'static str> {
    FAMILIES.iter().find(|(known, _)| *known == i32::from(number)).map(|(_, name)| *name)
}

/// The number of a family by its name; 0, which is none, for any other name.
pub(super) fn number_of_family_name(name: &str) -> u8 {
    FAMILIES.iter().find(|(_, known)| *known == name).map_or(0, |(number, _)| *number as u8)
}

/// Returns the chain that a rule leads to.
pub(crate) fn target<'a>(rule: Attributes<'a>) -> Option<&'a str> {
    rule.find_kind(rule::EXPRESSIONS)?.nested().find_map(|each| {
        let each = each.nested();
        if each.text(expression::NAME)? != "immediate" {
            return None;
        }
        let immediate = each.find_kind(expression::DATA)?.nested();
        let verdict = immediate.find_kind(expression::IMMEDIATE_DATA)?.nested();
        verdict.find_kind(data::VERDICT)?.nested().text(data::VERDICT_CHAIN)
    })
}

/// Asks for one object, which `fill` names; `None` if it does not exist.
pub(crate) fn get<T>(
    socket: &mut Socket,
    kind: u8,
    family: u8,
    fill: impl FnOnce(&mut Writer),
    read: impl Fn(Attributes<'_>) -> T,
) -> Result<Option<T>, Error> {
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
    let fill = |w: &mut Writer| {
        nfnetlink::header(w, family, 0);
        fill(w);
    };
    let read = |message: Message<'_>| Ok(read(message.attributes(nfnetlink::HEADER)));
    socket.find(kind, fill, libc::ENOENT, read)
}

/// Asks for the objects of a kind. `read` gets the family and the attributes of each.
pub(crate) fn dump<T>(
    socket: &mut Socket,
    kind: u8,
    family: u8,
    narrow: impl Fn(&mut Writer),
    read: impl Fn(u8, Attributes<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
    socket.dump(
        |request, sequence| nfnetlink::dump(request, kind, sequence, family, &narrow),
        |all: &mut Vec<T>, message: Message<'_>| {
            let family = message.payload.first().copied().unwrap_or_default();
            all.extend(read(family, message.attributes(nfnetlink::HEADER)));
            Ok(())
        },
    )
}

/// Asks once for the objects of a kind. `read` gets the attributes of each, and must leave out
/// objects of other tables: the kernel narrows some dumps to a family alone. Also returns whether
/// a commit interrupted the dump.
pub(super) fn dump_once<T: Default>(
    socket: &mut Socket,
    kind: u8,
    family: u8,
    narrow: impl FnMut(&mut Writer),
    mut read: impl FnMut(&mut T, Attributes<'_>),
) -> Result<(T, bool), Error> {
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
    socket.dump_once(
        |request, sequence| nfnetlink::dump(request, kind, sequence, family, narrow),
        |all, message| {
            read(all, message.attributes(nfnetlink::HEADER));
            Ok(())
        },
    )
}
