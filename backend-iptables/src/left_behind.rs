//! Rules of iptables mode on a node that has no programs to remove them.
//!
//! They would go on translating addresses, to endpoints of long ago, before any other rules are
//! asked. An image without iptables cannot remove them, but it can tell.

use netlink::{
    Socket, Writer, flags,
    nfnetlink::{self, subsystem},
};
use proxy_core::model::IpFamily;

use crate::tool::{Flavour, find::may_have_rules};

/// `NFT_MSG_GETCHAIN`, `NFTA_CHAIN_TABLE` and `NFTA_CHAIN_NAME`
const GET_CHAIN: u8 = 4;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;

/// In which flavour there are rules of iptables mode, found out without any program. With the
/// legacy flavour that is only likely: it is in use.
pub fn left_behind() -> Option<Flavour> {
    if IpFamily::ALL.into_iter().any(has_services_chain) {
        Some(Flavour::Nft)
    } else if IpFamily::ALL.into_iter().any(|family| may_have_rules(Flavour::Legacy, family)) {
        Some(Flavour::Legacy)
    } else {
        None
    }
}

/// Whether nftables has what iptables-nft calls the chain KUBE-SERVICES of the table nat.
fn has_services_chain(family: IpFamily) -> bool {
    let Ok(mut socket) = Socket::open(libc::NETLINK_NETFILTER) else { return false };
    let protocol = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    };
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    let kind = nfnetlink::kind(subsystem::NFTABLES, GET_CHAIN);
    request.message(kind, flags::ACK, sequence, |message| {
        nfnetlink::header(message, protocol as u8, 0);
        message.string(CHAIN_TABLE, "nat");
        message.string(CHAIN_NAME, "KUBE-SERVICES");
    });
    let mut found = false;
    let answer = socket.request(request.as_slice(), sequence, |_| {
        found = true;
        Ok(())
    });
    // No such chain, or no such table, is an error.
    answer.is_ok() && found
}
