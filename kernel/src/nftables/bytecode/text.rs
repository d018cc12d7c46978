//! Rules as text, for people: one expression after the other, with registers by numbers.

use std::collections::BTreeMap;

use crate::{
    netlink::{Error, Socket, Writer},
    nftables::{
        abi::{expression as e, message, rule},
        listing::dump,
        ruleset::{Family, Table},
    },
};

use super::decode::{self, Expression};

/// Reads the rules of a table, by their handles.
pub(super) fn read(socket: &mut Socket, table: &Table) -> Result<BTreeMap<u64, String>, Error> {
    let in_table = |w: &mut Writer| w.string(rule::TABLE, table.name.as_str());
    let rules = dump(socket, message::GET_RULE, table.family.number(), in_table, |_, read| {
        let is_of_table = read.text(rule::TABLE) == Some(table.name.as_str());
        let handle = read.find_kind(rule::HANDLE).filter(|_| is_of_table)?.be64()?;
        let list = read.find_kind(rule::EXPRESSIONS);
        let list = list.map(|list| decode::expressions(list.nested()));
        Some((handle, text(&list.unwrap_or_default(), table.family)))
    });
    Ok(rules?.into_iter().collect())
}

fn text(expressions: &[Expression], family: Family) -> String {
    let all: Vec<String> = expressions.iter().map(|one| expression(one, family)).collect();
    all.join("; ")
}

/// Writes what a packet has by the names of `nft`, and all else as it is decoded.
fn expression(one: &Expression, family: Family) -> String {
    let (name, to) = match *one {
        Expression::Payload { base, offset, length, to } => {
            let name = match (base, family, offset, length) {
                (e::BASE_NETWORK, Family::Ip, 12, 4) => "ip saddr",
                (e::BASE_NETWORK, Family::Ip, 16, 4) => "ip daddr",
                (e::BASE_NETWORK, Family::Ip6, 8, 16) => "ip6 saddr",
                (e::BASE_NETWORK, Family::Ip6, 24, 16) => "ip6 daddr",
                (e::BASE_TRANSPORT, _, 0, 2) => "th sport",
                (e::BASE_TRANSPORT, _, 2, 2) => "th dport",
                _ => return format!("{one:?}"),
            };
            (name, to)
        }
        Expression::Meta { key: e::META_MARK, to } => ("mark", to),
        Expression::Meta { key: e::META_IIFNAME, to } => ("iifname", to),
        Expression::Meta { key: e::META_L4PROTO, to } => ("l4proto", to),
        Expression::Ct { key: e::CT_STATE, to, .. } => ("ct state", to),
        Expression::Ct { key: e::CT_STATUS, to, .. } => ("ct status", to),
        _ => return format!("{one:?}"),
    };
    format!("{name} to {to}")
}
