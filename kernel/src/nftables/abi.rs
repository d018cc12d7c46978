//! Numbers of the kernel's nf_tables interface: those that Switchyard uses of
//! `linux/netfilter/nf_tables.h`, and a few of the headers that it includes. The kernel's name of a
//! number is that of the constant after its module's prefix, unless the documentation names it.

/// `NFNLGRP_NFTABLES`: the multicast group of changes.
pub const GROUP: i32 = 7;

/// `NFNLGRP_NFTRACE`: the multicast group of what rules do with traced packets.
pub const TRACE_GROUP: i32 = 9;

/// `NFTA_LIST_ELEM`
pub const LIST_ELEMENT: u16 = 1;

/// The attribute that holds the table's name, in the messages about any kind of object.
pub const ANY_TABLE: u16 = 1;

/// Types of messages (`NFT_MSG_`): the lower byte of a netlink message's type.
pub mod message {
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
    /// `NFT_MSG_NEWSETELEM`
    pub const NEW_ELEMENT: u8 = 12;
    /// `NFT_MSG_GETSETELEM`
    pub const GET_ELEMENT: u8 = 13;
    /// `NFT_MSG_DELSETELEM`
    pub const DEL_ELEMENT: u8 = 14;
    /// `NFT_MSG_NEWGEN`
    pub const NEW_GENERATION: u8 = 15;
    /// `NFT_MSG_GETGEN`
    pub const GET_GENERATION: u8 = 16;
    pub const TRACE: u8 = 17;
    pub const NEW_FLOWTABLE: u8 = 22;
}

/// Attributes of tables (`NFTA_TABLE_`).
pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    /// `NFT_TABLE_F_DORMANT`
    pub const FLAG_DORMANT: u32 = 1;
    /// `NFT_TABLE_F_OWNER`
    pub const FLAG_OWNER: u32 = 2;
    pub const USERDATA: u16 = 6;
    pub const OWNER: u16 = 7;
}

/// Attributes of chains (`NFTA_CHAIN_`), and of the hook in one.
pub mod chain {
    pub const TABLE: u16 = 1;
    pub const HANDLE: u16 = 2;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    /// `NFTA_HOOK_HOOKNUM`
    pub const HOOK_NUMBER: u16 = 1;
    /// `NFTA_HOOK_PRIORITY`
    pub const HOOK_PRIORITY: u16 = 2;
    /// `NF_ACCEPT`
    pub const POLICY_ACCEPT: u32 = 1;
}

/// Attributes of flowtables (`NFTA_FLOWTABLE_`), and of the hook in one.
pub mod flowtable {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const HOOK: u16 = 3;
    pub const FLAGS: u16 = 7;
    /// `NFT_FLOWTABLE_COUNTER`
    pub const FLAG_COUNTER: u32 = 2;
    /// `NFTA_FLOWTABLE_HOOK_NUM`
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    /// `NFTA_FLOWTABLE_HOOK_DEVS`
    pub const HOOK_DEVICES: u16 = 3;
    /// `NF_NETDEV_INGRESS`
    pub const INGRESS: u32 = 0;
}

/// Attributes of rules (`NFTA_RULE_`).
pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

/// Attributes (`NFTA_SET_`) and flags of sets and maps.
pub mod set {
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
    /// `NFTA_SET_EXPR`
    pub const EXPRESSION: u16 = 17;
    pub const EXPRESSIONS: u16 = 18;
    pub const DESC_SIZE: u16 = 1;
    /// `NFT_SET_ANONYMOUS`
    pub const FLAG_ANONYMOUS: u32 = 0x1;
    /// `NFT_SET_INTERVAL`
    pub const FLAG_INTERVAL: u32 = 0x4;
    /// `NFT_SET_MAP`
    pub const FLAG_MAP: u32 = 0x8;
    /// `NFT_SET_TIMEOUT`
    pub const FLAG_TIMEOUT: u32 = 0x10;
    /// `NFT_SET_EVAL`
    pub const FLAG_DYNAMIC: u32 = 0x20;
    /// `NFT_DATA_VERDICT`: the type of data that is a verdict
    pub const DATA_VERDICT: u32 = 0xffff_ff00;
}

/// Attributes of lists of elements (`NFTA_SET_ELEM_LIST_`), and from `KEY` on of
/// the elements (`NFTA_SET_ELEM_`).
pub mod element {
    pub const TABLE: u16 = 1;
    pub const SET: u16 = 2;
    pub const ELEMENTS: u16 = 3;
    pub const SET_ID: u16 = 4;
    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const FLAGS: u16 = 3;
    /// `NFT_SET_ELEM_INTERVAL_END`
    pub const FLAG_INTERVAL_END: u32 = 1;
    pub const TIMEOUT: u16 = 4;
    pub const EXPIRATION: u16 = 5;
    pub const USERDATA: u16 = 6;
    pub const KEY_END: u16 = 10;
}

/// Attributes of a generation of the ruleset (`NFTA_GEN_`).
pub mod generation {
    pub const ID: u16 = 1;
    /// `NFTA_GEN_PROC_PID`
    pub const PROCESS: u16 = 2;
    /// `NFTA_GEN_PROC_NAME`
    pub const PROGRAM: u16 = 3;
}

/// Attributes of data (`NFTA_DATA_`) and verdicts (`NFTA_`), and the codes of verdicts (`NF_`, and
/// `NFT_` where they are negative).
pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
    pub const DROP: i32 = 0;
    pub const ACCEPT: i32 = 1;
    pub const JUMP: i32 = -3;
    pub const STOLEN: i32 = 2;
    pub const QUEUE: i32 = 3;
    pub const GOTO: i32 = -4;
    pub const RETURN: i32 = -5;
}

/// Attributes of what a rule did with a traced packet (`NFTA_TRACE_`), and the types of that.
pub mod trace {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const RULE_HANDLE: u16 = 3;
    pub const TYPE: u16 = 4;
    pub const VERDICT: u16 = 5;
    pub const ID: u16 = 6;
    pub const NETWORK_HEADER: u16 = 8;
    pub const TRANSPORT_HEADER: u16 = 9;
    /// `NFTA_TRACE_IIF`
    pub const INPUT: u16 = 10;
    /// `NFTA_TRACE_OIF`
    pub const OUTPUT: u16 = 12;
    pub const MARK: u16 = 14;
    pub const POLICY: u16 = 16;
    /// `NFT_TRACETYPE_POLICY`
    pub const TYPE_POLICY: u32 = 1;
    /// `NFT_TRACETYPE_RETURN`
    pub const TYPE_RETURN: u32 = 2;
    /// `NFT_TRACETYPE_RULE`
    pub const TYPE_RULE: u32 = 3;
}

/// Attributes of expressions (`NFTA_EXPR_`), and those of each kind of expression (`NFTA_`) with
/// their values (`NFT_`).
pub mod expression {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;
    pub const PAYLOAD_DREG: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LEN: u16 = 4;
    /// `NFT_PAYLOAD_NETWORK_HEADER`
    pub const BASE_NETWORK: u32 = 1;
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`
    pub const BASE_TRANSPORT: u32 = 2;
    /// The offset of the protocol in the header of IPv4 (`struct iphdr`).
    pub const IPV4_PROTOCOL: u32 = 9;
    pub const CMP_SREG: u16 = 1;
    pub const CMP_OP: u16 = 2;
    pub const CMP_DATA: u16 = 3;
    pub const CMP_EQ: u32 = 0;
    pub const CMP_NEQ: u32 = 1;
    pub const CMP_LT: u32 = 2;
    pub const CMP_LTE: u32 = 3;
    pub const CMP_GT: u32 = 4;
    pub const CMP_GTE: u32 = 5;
    pub const BITWISE_SREG: u16 = 1;
    pub const BITWISE_DREG: u16 = 2;
    pub const BITWISE_LEN: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;
    pub const BYTEORDER_SREG: u16 = 1;
    pub const BYTEORDER_DREG: u16 = 2;
    pub const BYTEORDER_OP: u16 = 3;
    pub const BYTEORDER_LEN: u16 = 4;
    pub const BYTEORDER_SIZE: u16 = 5;
    pub const BYTEORDER_HTON: u32 = 1;
    /// `NFTA_FLOW_TABLE_NAME`
    pub const FLOW_OFFLOAD_TABLE: u16 = 1;
    pub const META_DREG: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const META_SREG: u16 = 3;
    pub const META_MARK: u32 = 3;
    pub const META_IIF: u32 = 4;
    pub const META_OIF: u32 = 5;
    pub const META_IIFNAME: u32 = 6;
    pub const META_OIFNAME: u32 = 7;
    pub const META_NFTRACE: u32 = 12;
    pub const META_NFPROTO: u32 = 15;
    pub const META_L4PROTO: u32 = 16;
    pub const META_IIFKIND: u32 = 26;
    pub const CT_DREG: u16 = 1;
    pub const CT_KEY: u16 = 2;
    pub const CT_DIRECTION: u16 = 3;
    pub const CT_SREG: u16 = 4;
    /// `IP_CT_DIR_ORIGINAL`
    pub const CT_DIR_ORIGINAL: u8 = 0;
    /// `IP_CT_DIR_REPLY`
    pub const CT_DIR_REPLY: u8 = 1;
    pub const CT_STATE: u32 = 0;
    /// `NFT_CT_DIRECTION`
    pub const CT_DIRECTION_KEY: u32 = 1;
    pub const CT_STATUS: u32 = 2;
    pub const CT_MARK: u32 = 3;
    pub const CT_PROTO_DST: u32 = 12;
    /// `NFT_CT_PKTS`
    pub const CT_PACKETS: u32 = 14;
    pub const CT_SRC_IP: u32 = 19;
    pub const CT_DST_IP: u32 = 20;
    pub const CT_SRC_IP6: u32 = 21;
    pub const CT_DST_IP6: u32 = 22;
    /// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`
    pub const CT_STATE_ESTABLISHED: u32 = 2;
    /// `NF_CT_STATE_BIT(IP_CT_NEW)`
    pub const CT_STATE_NEW: u32 = 8;
    /// `IPS_DST_NAT`
    pub const CT_STATUS_DNAT: u32 = 32;
    pub const SOCKET_KEY: u16 = 1;
    pub const SOCKET_DREG: u16 = 2;
    pub const SOCKET_TRANSPARENT: u32 = 0;
    pub const SOCKET_WILDCARD: u32 = 2;

    pub const FIB_DREG: u16 = 1;
    pub const FIB_RESULT: u16 = 2;
    pub const FIB_FLAGS: u16 = 3;
    /// `NFT_FIB_RESULT_ADDRTYPE`
    pub const FIB_ADDRTYPE: u32 = 3;
    /// `NFTA_FIB_F_SADDR`
    pub const FIB_SADDR: u32 = 1;
    /// `NFTA_FIB_F_DADDR`
    pub const FIB_DADDR: u32 = 2;
    /// `RTN_LOCAL`
    pub const ADDRTYPE_LOCAL: u32 = 2;
    pub const LOOKUP_SET: u16 = 1;
    pub const LOOKUP_SREG: u16 = 2;
    pub const LOOKUP_DREG: u16 = 3;
    /// `NFTA_OBJREF_IMM_TYPE`
    pub const OBJREF_TYPE: u16 = 1;
    pub const LOOKUP_FLAGS: u16 = 5;
    /// `NFTA_NG_DREG`
    pub const NUMGEN_DREG: u16 = 1;
    /// `NFTA_NG_MODULUS`
    pub const NUMGEN_MODULUS: u16 = 2;
    /// `NFTA_NG_TYPE`
    pub const NUMGEN_TYPE: u16 = 3;
    /// `NFTA_NG_OFFSET`
    pub const NUMGEN_OFFSET: u16 = 4;
    /// `NFT_NG_INCREMENTAL`
    pub const NUMGEN_IN_TURN: u32 = 0;
    /// `NFT_NG_RANDOM`
    pub const NUMGEN_RANDOM: u32 = 1;
    pub const HASH_SREG: u16 = 1;
    pub const HASH_DREG: u16 = 2;
    pub const HASH_LEN: u16 = 3;
    pub const HASH_MODULUS: u16 = 4;
    pub const HASH_SEED: u16 = 5;
    pub const HASH_OFFSET: u16 = 6;
    pub const HASH_TYPE: u16 = 7;
    pub const HASH_JENKINS: u32 = 0;
    pub const NAT_TYPE: u16 = 1;
    pub const NAT_FAMILY: u16 = 2;
    /// `NFTA_NAT_REG_ADDR_MIN`
    pub const NAT_ADDR_MIN: u16 = 3;
    /// `NFTA_NAT_REG_PROTO_MIN`
    pub const NAT_PROTO_MIN: u16 = 5;
    pub const NAT_DNAT: u32 = 1;
    pub const MASQ_FLAGS: u16 = 1;
    /// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`
    pub const NAT_FULLY_RANDOM: u32 = 0x10;
    pub const REJECT_TYPE: u16 = 1;
    /// `NFTA_REJECT_ICMP_CODE`
    pub const REJECT_CODE: u16 = 2;
    /// `NFT_REJECT_ICMP_UNREACH`
    pub const REJECT_UNREACHABLE: u32 = 0;
    /// `ICMP_PORT_UNREACH`
    pub const ICMP_PORT: u8 = 3;
    /// `ICMPV6_PORT_UNREACH`
    pub const ICMPV6_PORT: u8 = 4;
    /// `NFTA_DYNSET_SET_NAME`
    pub const DYNSET_SET: u16 = 1;
    pub const DYNSET_OP: u16 = 3;
    pub const DYNSET_SREG_KEY: u16 = 4;
    pub const DYNSET_SREG_DATA: u16 = 5;
    /// `NFT_DYNSET_OP_UPDATE`
    pub const DYNSET_UPDATE: u32 = 1;
    pub const MATCH_NAME: u16 = 1;
    pub const MATCH_REV: u16 = 2;
    pub const MATCH_INFO: u16 = 3;
    pub const TARGET_NAME: u16 = 1;
    pub const LIMIT_RATE: u16 = 1;
    pub const LIMIT_UNIT: u16 = 2;
    pub const LIMIT_BURST: u16 = 3;
    pub const IMMEDIATE_DREG: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;
}
