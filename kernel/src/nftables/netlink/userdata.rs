//! User data: what nft stores beside the kernel's objects, to print them later.
//!
//! The forms are those of nft 1.0.6, which later versions write or read too. Sets declared by
//! `type` carry no expressions for `typeof`: those that later versions write make 1.0.6 crash.

use crate::nftables::{
    abi::expression,
    ruleset::{Field, SetData, SetDef},
    text,
};

/// Numbers of nft's user data (`libnftnl/udata.h`, and nft's own sources). An item is a type and a
/// length of one byte each and a value, without padding.
pub(in crate::nftables) mod abi {
    use switchyard_model::Protocol;

    /// The most user data that the kernel takes, in bytes.
    pub const MAX: usize = 256;
    /// `NFTNL_UDATA_TABLE_COMMENT`, which has the same value for elements and rules.
    pub const COMMENT: u8 = 0;
    /// `NFTNL_UDATA_SET_ELEM_FLAGS`
    pub const ELEMENT_FLAGS: u8 = 1;
    /// `NFTNL_SET_ELEM_F_INTERVAL_OPEN`: the interval goes on to the last key.
    pub const ELEMENT_OPEN: u32 = 1;
    /// The fingerprint of a rule: an item of this crate's own. Its type is far from nft's types,
    /// and nft ignores types that it does not know.
    pub const RULE_FINGERPRINT: u8 = 0xc5;

    pub const SET_KEY_BYTEORDER: u8 = 0;
    pub const SET_DATA_BYTEORDER: u8 = 1;
    pub const SET_KEY_TYPEOF: u8 = 3;
    pub const SET_DATA_TYPEOF: u8 = 4;
    pub const SET_DATA_INTERVAL: u8 = 6;
    pub const SET_COMMENT: u8 = 7;
    /// nft's `enum byteorder`: none, for a concatenation.
    pub const BYTEORDER_NONE: u32 = 0;
    pub const BYTEORDER_HOST: u32 = 1;
    pub const BYTEORDER_BIG: u32 = 2;

    pub const TYPEOF_EXPRESSION: u8 = 0;
    pub const TYPEOF_DATA: u8 = 1;
    /// nft's `enum expr_types`.
    pub const EXPRESSION_PAYLOAD: u32 = 7;
    pub const EXPRESSION_META: u32 = 9;
    pub const EXPRESSION_CONCAT: u32 = 13;
    pub const EXPRESSION_NUMGEN: u32 = 23;
    /// nft's `enum proto_desc_id`, and fields of those headers.
    pub const PROTOCOL_UDP: u32 = 6;
    pub const PROTOCOL_TCP: u32 = 8;
    pub const PROTOCOL_SCTP: u32 = 10;
    pub const PROTOCOL_TH: u32 = 11;
    pub const PROTOCOL_IP: u32 = 12;
    pub const PROTOCOL_IP6: u32 = 13;
    pub const TH_DPORT: u32 = 2;
    pub const IP_DADDR: u32 = 12;
    pub const IP6_DADDR: u32 = 9;

    /// The header of a protocol. The destination port has the same number in all of them.
    pub fn protocol_header(protocol: Protocol) -> u32 {
        match protocol {
            Protocol::Tcp => PROTOCOL_TCP,
            Protocol::Udp => PROTOCOL_UDP,
            Protocol::Sctp => PROTOCOL_SCTP,
        }
    }
}

/// Items of user data, one after the other.
#[derive(Default)]
pub(super) struct UserData(Vec<u8>);

impl UserData {
    /// Returns user data without items.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Appends an item, whose value must be shorter than 256 bytes.
    pub fn item(&mut self, kind: u8, value: &[u8]) {
        debug_assert!(value.len() <= usize::from(u8::MAX));
        self.0.extend([kind, value.len() as u8]);
        self.0.extend_from_slice(value);
    }

    /// Appends a number in the machine's byte order.
    fn u32(&mut self, kind: u8, value: u32) {
        self.item(kind, &value.to_ne_bytes());
    }

    /// Appends a comment.
    pub fn comment(&mut self, kind: u8, comment: &str) {
        self.0.extend([kind, comment.len() as u8 + 1]);
        self.0.extend_from_slice(comment.as_bytes());
        self.0.push(0);
    }

    /// Appends an item made of items.
    fn nest(&mut self, kind: u8, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::new();
        fill(&mut inner);
        self.item(kind, inner.as_slice());
    }

    fn typeof_expression(&mut self, kind: u8, expression: u32, fill: impl FnOnce(&mut Self)) {
        self.nest(kind, |item| {
            item.u32(abi::TYPEOF_EXPRESSION, expression);
            item.nest(abi::TYPEOF_DATA, fill);
        });
    }

    /// Appends an expression of a field's type.
    fn typeof_field(&mut self, kind: u8, field: Field) {
        let (protocol, number) = match field {
            Field::Ipv4Addr => (abi::PROTOCOL_IP, abi::IP_DADDR),
            Field::Ipv6Addr => (abi::PROTOCOL_IP6, abi::IP6_DADDR),
            Field::InetService => (abi::PROTOCOL_TH, abi::TH_DPORT),
            Field::Port(protocol) => (abi::protocol_header(protocol), abi::TH_DPORT),
            Field::InetProto => {
                return self.typeof_expression(kind, abi::EXPRESSION_META, |data| {
                    data.u32(0, expression::META_L4PROTO);
                });
            }
            // `numgen random mod 65536`, as in the text.
            Field::Slot => {
                return self.typeof_expression(kind, abi::EXPRESSION_NUMGEN, |data| {
                    data.u32(0, expression::NUMGEN_RANDOM);
                    data.u32(1, 65_536);
                    data.u32(2, 0);
                });
            }
        };
        self.typeof_expression(kind, abi::EXPRESSION_PAYLOAD, |data| {
            data.u32(0, protocol);
            data.u32(1, number);
        });
    }

    fn typeof_fields(&mut self, kind: u8, fields: &[Field]) {
        match fields {
            [one] => self.typeof_field(kind, *one),
            many => self.typeof_expression(kind, abi::EXPRESSION_CONCAT, |data| {
                for (index, field) in many.iter().enumerate() {
                    data.typeof_field(index as u8, *field);
                }
            }),
        }
    }
}

/// The user data of the beginning of an interval that goes on to the last key.
pub(super) fn for_open_interval() -> UserData {
    let mut data = UserData::new();
    data.u32(abi::ELEMENT_FLAGS, abi::ELEMENT_OPEN);
    data
}

/// The user data of a set or map.
pub(super) fn for_set(set: &SetDef) -> UserData {
    let mut data = UserData::new();
    data.u32(abi::SET_KEY_BYTEORDER, byteorder(&set.key));
    match &set.data {
        SetData::None => {}
        SetData::Verdict => data.u32(abi::SET_DATA_BYTEORDER, abi::BYTEORDER_NONE),
        SetData::Value(fields) => data.u32(abi::SET_DATA_BYTEORDER, byteorder(fields)),
    }
    if set.is_typeof() {
        data.typeof_fields(abi::SET_KEY_TYPEOF, &set.key);
        if let SetData::Value(fields) = &set.data {
            data.typeof_fields(abi::SET_DATA_TYPEOF, fields);
        }
    }
    if set.is_map() {
        data.u32(abi::SET_DATA_INTERVAL, 0);
    }
    if let Some(comment) = &set.comment {
        data.comment(abi::SET_COMMENT, &text::set_comment_text(comment));
    }
    debug_assert!(data.as_slice().len() <= abi::MAX);
    data
}

fn byteorder(fields: &[Field]) -> u32 {
    match fields {
        [Field::Slot | Field::InetProto] => abi::BYTEORDER_HOST,
        [_] => abi::BYTEORDER_BIG,
        _ => abi::BYTEORDER_NONE,
    }
}

/// The items of user data that was read, up to the first item whose length cannot be right.
pub(super) fn items(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = bytes else { return None };
        let value = rest.get(..usize::from(*length))?;
        bytes = &rest[value.len()..];
        Some((*kind, value))
    })
}

/// The comment in user data that was read.
pub(in crate::nftables) fn comment(bytes: &[u8], kind: u8) -> Option<&str> {
    let (_, value) = items(bytes).find(|(found, _)| *found == kind)?;
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

#[cfg(test)]
mod tests {
    use Field::{InetProto, InetService, Ipv4Addr, Slot};

    use super::*;

    #[test]
    fn a_map_with_typeof_is_written_as_nft_does() {
        let map = SetDef::map(
            "endpoints",
            [Ipv4Addr, InetProto, InetService, Slot],
            [Ipv4Addr, InetService],
        );
        // nft 1.0.6 and 1.1.3 both write this for the map.
        let expected = "000400000000010400000000036000040d000000015800140004070000000\
            10c00040c00000001040c000000010e00040900000001060004100000000214000407000000010c00040b\
            000000010402000000031a00041700000001120004010000000104000001000204000000000434000\
            40d000000012c0014000407000000010c00040c00000001040c0000000114000407000000010c0004\
            0b000000010402000000060400000000";
        let written: String = for_set(&map).as_slice().iter().map(|b| format!("{b:02x}")).collect();
        if cfg!(target_endian = "little") {
            assert_eq!(written, expected);
        }
    }

    #[test]
    fn comments_are_read_back() {
        let mut data = UserData::new();
        data.item(9, &[1, 2, 3]);
        data.comment(4, "why");
        assert_eq!(comment(data.as_slice(), 4), Some("why"));
        assert_eq!(comment(data.as_slice(), 5), None);
        assert_eq!(items(&[1, 5, 0]).count(), 0);
        assert_eq!(items(&[1]).count(), 0);
    }
}
