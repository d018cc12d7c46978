//! The networks and addresses that are the node's own by its routes.

use std::net::IpAddr;

use ipnet::IpNet;
use switchyard_model::IpFamily;

use crate::{
    families::{self, family_number},
    netlink::{Error, Socket, Writer, flags},
};

/// Lists the networks of a family that the kernel takes for its own by a route of the table
/// `local`: addresses of interfaces, and others (`ip route add local`).
pub(crate) fn local_networks(socket: &mut Socket, family: IpFamily) -> Result<Vec<IpNet>, Error> {
    let family = family_number(family);
    let listed = socket.dump(
        |writer, sequence| {
            writer
                .message(libc::RTM_GETROUTE, flags::DUMP, sequence, |w| w.raw(&abi::local(family)));
        },
        |found: &mut Vec<IpNet>, message| {
            let is_route = message.payload.len() >= abi::HEADER;
            // Without strict checks, the kernel lists the routes of all kinds and tables.
            if is_route
                && message.payload[abi::KIND] == libc::RTN_LOCAL
                && message.payload[abi::TABLE] == libc::RT_TABLE_LOCAL
            {
                let attributes = message.attributes(abi::HEADER);
                let to = attributes.find_kind(libc::RTA_DST);
                let to = to.and_then(|to| families::address(to.payload));
                let prefix = message.payload[abi::PREFIX];
                found.extend(to.and_then(|to| IpNet::new(to, prefix).ok()));
            }
            Ok(())
        },
    );
    match listed {
        // There is no such table: the namespace has no address.
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Whether a packet of the node to an address is for the node itself.
pub(crate) fn is_local(socket: &mut Socket, to: IpAddr) -> Result<bool, Error> {
    let to = IpNet::from(to);
    let fill = |w: &mut Writer| {
        w.raw(&abi::to(family_number(IpFamily::of(&to.addr())), to.prefix_len()));
        w.attribute(libc::RTA_DST, &families::octets(to.addr()));
    };
    let found = socket.find(libc::RTM_GETROUTE, fill, libc::ENETUNREACH, |message| {
        Ok(message.payload.get(abi::KIND) == Some(&libc::RTN_LOCAL))
    });
    match found {
        // A route that refuses packets.
        Err(Error::Kernel(_)) => Ok(false),
        found => Ok(found?.unwrap_or(false)),
    }
}

/// Routes (`linux/rtnetlink.h`).
mod abi {
    /// The length of `struct rtmsg`.
    pub(super) const HEADER: usize = 12;
    /// The places of `rtm_dst_len`, `rtm_table` and `rtm_type` there.
    pub(super) const PREFIX: usize = 1;
    pub(super) const TABLE: usize = 4;
    pub(super) const KIND: usize = 7;

    /// A header that selects the route to a network.
    pub(super) fn to(family: u8, prefix: u8) -> [u8; HEADER] {
        [family, prefix, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    /// A header that selects the table `local`.
    pub(super) fn local(family: u8) -> [u8; HEADER] {
        [family, 0, 0, 0, libc::RT_TABLE_LOCAL, 0, 0, libc::RTN_LOCAL, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::{in_namespace, run};

    use super::*;

    #[test]
    fn networks_of_other_tables_are_not_the_nodes() {
        in_namespace(|| {
            run("ip link set lo up");
            run("ip route add local 203.0.113.0/24 dev lo");
            run("ip route add local 198.51.100.0/24 dev lo table 100");
            let mut socket = Socket::open(libc::NETLINK_ROUTE).unwrap();
            let networks = local_networks(&mut socket, IpFamily::V4).unwrap();
            let has = |net: &str| networks.contains(&net.parse().unwrap());
            assert!(has("203.0.113.0/24") && !has("198.51.100.0/24"), "{networks:?}");
        });
    }
}
