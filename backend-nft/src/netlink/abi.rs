//! Numbers of the kernel's nf_tables interface (`linux/netfilter/nf_tables.h`), and of what nft
//! keeps in user data beside the kernel's objects (`libnftnl/udata.h`).

/// Types of messages (`NFT_MSG_*`).
pub(super) mod message {
    pub const NEW_TABLE: u8 = 0;
    pub const GET_TABLE: u8 = 1;
    pub const DEL_TABLE: u8 = 2;
    pub const NEW_CHAIN: u8 = 3;
    pub const GET_CHAIN: u8 = 4;
    pub const DEL_CHAIN: u8 = 5;
    pub const NEW_RULE: u8 = 6;
    pub const GET_RULE: u8 = 7;
    pub const DEL_RULE: u8 = 8;
    pub const NEW_SET: u8 = 9;
    pub const GET_SET: u8 = 10;
    pub const DEL_SET: u8 = 11;
    pub const NEW_ELEMENT: u8 = 12;
    pub const GET_ELEMENT: u8 = 13;
    pub const DEL_ELEMENT: u8 = 14;
    pub const NEW_GENERATION: u8 = 15;
}

/// `NFTA_TABLE_*`
pub(super) mod table {
    pub const NAME: u16 = 1;
    pub const USERDATA: u16 = 6;
}

/// `NFTA_CHAIN_*`
pub(super) mod chain {
    pub const TABLE: u16 = 1;
    pub const HANDLE: u16 = 2;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    /// `NF_ACCEPT`
    pub const POLICY_ACCEPT: u32 = 1;
}

/// `NFTA_RULE_*`
pub(super) mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

/// `NFTA_SET_*` and `NFT_SET_*`
pub(super) mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LEN: u16 = 5;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LEN: u16 = 7;
    pub const DESC: u16 = 9;
    pub const ID: u16 = 10;
    pub const TIMEOUT: u16 = 11;
    pub const USERDATA: u16 = 13;
    pub const HANDLE: u16 = 16;
    pub const EXPRESSION: u16 = 17;
    pub const EXPRESSIONS: u16 = 18;
    pub const DESC_SIZE: u16 = 1;
    pub const FLAG_ANONYMOUS: u32 = 0x1;
    pub const FLAG_CONSTANT: u32 = 0x2;
    pub const FLAG_MAP: u32 = 0x8;
    pub const FLAG_TIMEOUT: u32 = 0x10;
    pub const FLAG_DYNAMIC: u32 = 0x20;
    /// The type of data that is a verdict.
    pub const DATA_VERDICT: u32 = 0xffff_ff00;
}

/// `NFTA_SET_ELEM_LIST_*` and `NFTA_SET_ELEM_*`
pub(super) mod element {
    pub const TABLE: u16 = 1;
    pub const SET: u16 = 2;
    pub const ELEMENTS: u16 = 3;
    pub const SET_ID: u16 = 4;
    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const EXPIRATION: u16 = 5;
    pub const USERDATA: u16 = 6;
}

/// `NFTA_LIST_ELEM`
pub(super) const LIST_ELEMENT: u16 = 1;

/// `NFTA_GEN_*`
pub(super) mod generation {
    pub const PROCESS: u16 = 2;
    pub const PROGRAM: u16 = 3;
}

/// The attribute of all messages about objects that has the name of the table they are in.
pub(super) const ANY_TABLE: u16 = 1;

/// `NFTA_DATA_*` and `NFTA_VERDICT_*`
pub(super) mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
    pub const DROP: i32 = 0;
    pub const ACCEPT: i32 = 1;
    pub const JUMP: i32 = -3;
    pub const GOTO: i32 = -4;
    pub const RETURN: i32 = -5;
}

/// Names and attributes of expressions (`NFTA_EXPR_*` and those of each).
pub(super) mod expression {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;

    pub const PAYLOAD_DREG: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LEN: u16 = 4;
    pub const BASE_NETWORK: u32 = 1;
    pub const BASE_TRANSPORT: u32 = 2;

    pub const CMP_SREG: u16 = 1;
    pub const CMP_OP: u16 = 2;
    pub const CMP_DATA: u16 = 3;
    pub const CMP_EQ: u32 = 0;
    pub const CMP_NEQ: u32 = 1;

    pub const BITWISE_SREG: u16 = 1;
    pub const BITWISE_DREG: u16 = 2;
    pub const BITWISE_LEN: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;

    pub const META_DREG: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const META_SREG: u16 = 3;
    pub const META_MARK: u32 = 3;
    pub const META_IIFNAME: u32 = 6;
    pub const META_L4PROTO: u32 = 16;

    pub const CT_DREG: u16 = 1;
    pub const CT_KEY: u16 = 2;
    pub const CT_STATE: u32 = 0;
    pub const CT_STATUS: u32 = 2;
    /// `NF_CT_STATE_BIT(IP_CT_NEW)`
    pub const CT_STATE_NEW: u32 = 8;
    /// `IPS_DST_NAT`
    pub const CT_STATUS_DNAT: u32 = 32;

    pub const FIB_DREG: u16 = 1;
    pub const FIB_RESULT: u16 = 2;
    pub const FIB_FLAGS: u16 = 3;
    pub const FIB_ADDRTYPE: u32 = 3;
    pub const FIB_SADDR: u32 = 1;
    pub const FIB_DADDR: u32 = 2;
    /// `RTN_LOCAL`
    pub const ADDRTYPE_LOCAL: u32 = 2;

    pub const LOOKUP_SET: u16 = 1;
    pub const LOOKUP_SREG: u16 = 2;
    pub const LOOKUP_DREG: u16 = 3;
    pub const LOOKUP_SET_ID: u16 = 4;

    pub const NUMGEN_DREG: u16 = 1;
    pub const NUMGEN_MODULUS: u16 = 2;
    pub const NUMGEN_TYPE: u16 = 3;
    pub const NUMGEN_OFFSET: u16 = 4;
    pub const NUMGEN_RANDOM: u32 = 1;

    pub const NAT_TYPE: u16 = 1;
    pub const NAT_FAMILY: u16 = 2;
    pub const NAT_ADDR_MIN: u16 = 3;
    pub const NAT_PROTO_MIN: u16 = 5;
    pub const NAT_FLAGS: u16 = 7;
    pub const NAT_DNAT: u32 = 1;
    /// `NF_NAT_RANGE_PROTO_SPECIFIED`
    pub const NAT_RANGE_PROTO: u32 = 2;

    pub const MASQ_FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
    pub const NAT_FULLY_RANDOM: u32 = 0x10;

    pub const REJECT_TYPE: u16 = 1;
    pub const REJECT_CODE: u16 = 2;
    /// `NFT_REJECT_ICMP_UNREACH`
    pub const REJECT_UNREACHABLE: u32 = 0;
    /// `ICMP_PORT_UNREACH`
    pub const ICMP_PORT: u8 = 3;
    /// `ICMPV6_PORT_UNREACH`
    pub const ICMPV6_PORT: u8 = 4;

    pub const DYNSET_SET: u16 = 1;
    pub const DYNSET_OP: u16 = 3;
    pub const DYNSET_SREG_KEY: u16 = 4;
    pub const DYNSET_UPDATE: u32 = 1;

    pub const IMMEDIATE_DREG: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;
}

/// nft's user data: type, length and value, a byte each but the value, without padding.
pub(super) mod userdata {
    /// The longest that the kernel takes.
    pub const MAX: usize = 256;
    /// `NFTNL_UDATA_TABLE_COMMENT`, and the same for elements and rules.
    pub const COMMENT: u8 = 0;
    /// The fingerprint of a rule: a type of ours, far from nft's, which ignores those it does not
    /// know.
    pub const RULE_FINGERPRINT: u8 = 0xc5;

    pub const SET_KEY_BYTEORDER: u8 = 0;
    pub const SET_DATA_BYTEORDER: u8 = 1;
    pub const SET_KEY_TYPEOF: u8 = 3;
    pub const SET_DATA_TYPEOF: u8 = 4;
    pub const SET_DATA_INTERVAL: u8 = 6;
    pub const SET_COMMENT: u8 = 7;
    /// nft's `enum byteorder`: none (a concatenation), the machine's, big endian.
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
    pub const PROTOCOL_TH: u32 = 11;
    pub const PROTOCOL_IP: u32 = 12;
    pub const PROTOCOL_IP6: u32 = 13;
    pub const TH_DPORT: u32 = 2;
    pub const IP_DADDR: u32 = 12;
    pub const IP6_DADDR: u32 = 9;
}
