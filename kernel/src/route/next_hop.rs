//! The next hop of packets.

use std::net::IpAddr;

use crate::{
    families::{address, octets},
    netlink::{Error, Socket, Writer},
};

/// The length of `struct rtmsg`.
const HEADER: usize = 12;
/// `RTA_VIA`: a gateway of another family, behind the number of that in two bytes.
const VIA: u16 = 18;

/// The input of a route look-up, besides the destination.
#[derive(Clone, Copy, Debug)]
pub struct RoutedBy {
    /// The source address.
    pub source: IpAddr,
    /// The index of the interface that it came through; `None` if the node sends it.
    pub input: Option<u32>,
    /// The mark.
    pub mark: u32,
}

/// Returns the gateway of a packet to an address, which leaves through the interface with this
/// index, in the calling thread's network namespace; `None` if the address is reached without one,
/// or there is no such route.
///
/// Rules on ports, and a route over several gateways, may lead the packet elsewhere. Where the
/// look-up leads to another interface, or the kernel does not take such a packet, the gateway is
/// that to the address through this interface.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn next_hop(to: IpAddr, by: RoutedBy, output: u32) -> Result<Option<IpAddr>, Error> {
    let number = |number: u32| number.to_ne_bytes().to_vec();
    let mut way = vec![(libc::RTA_SRC, octets(by.source)), (libc::RTA_MARK, number(by.mark))];
    way.extend(by.input.map(|input| (libc::RTA_IIF, number(input))));
    match look_up(to, &way) {
        Ok(Some((gateway, through))) if through == output => Ok(gateway),
        _ => Ok(look_up(to, &[(libc::RTA_OIF, number(output))])?.and_then(|(gateway, _)| gateway)),
    }
}

/// Returns the gateway and the interface of a route; `None` if there is no route.
fn look_up(to: IpAddr, by: &[(u16, Vec<u8>)]) -> Result<Option<(Option<IpAddr>, u32)>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let (family, bits) = if to.is_ipv4() { (libc::AF_INET, 32) } else { (libc::AF_INET6, 128) };
    let from_bits = if by.iter().any(|(kind, _)| *kind == libc::RTA_SRC) { bits } else { 0 };
    let fill = |w: &mut Writer| {
        w.raw(&[family as u8, bits, from_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        w.attribute(libc::RTA_DST, &octets(to));
        by.iter().for_each(|(kind, value)| w.attribute(*kind, value));
    };
    let found = socket.find(libc::RTM_GETROUTE, fill, libc::ENETUNREACH, |message| {
        let route = message.attributes(HEADER);
        let gateway = route.find_kind(libc::RTA_GATEWAY).and_then(|found| address(found.payload));
        let via = || address(route.find_kind(VIA)?.payload.get(2..)?);
        Ok(route.ne32(libc::RTA_OIF).map(|index| (gateway.or_else(via), index)))
    })?;
    Ok(found.flatten())
}

#[cfg(test)]
mod kernel_tests {
    use super::*;
    use crate::route::interface_name;

    #[test]
    fn the_gateway_is_that_of_the_interface() {
        test_netns::in_namespace(|| {
            for line in [
                "ip link add one type veth peer name two",
                "ip link set one up",
                "ip link set two up",
                "ip addr add 10.1.0.1/24 dev one",
                "ip addr add fd01::1/64 dev one nodad",
                "ip route add 10.9.0.0/16 via 10.1.0.2",
                "ip route add 10.8.0.0/16 via inet6 fd01::2 dev one",
                "ip route add fd09::/64 via fd01::2",
                "ip link add in type veth peer name out",
                "ip link set in up",
                "ip link set out up",
                "ip addr add 10.2.0.1/24 dev in",
                "ip route add 10.9.0.0/16 via 10.1.0.3 table 7",
                "ip rule add from 10.2.0.9 table 7",
                "ip rule add fwmark 5 table 7",
            ] {
                test_netns::run(line);
            }
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            let index = |name: &str| {
                let has = |index: &u32| interface_name(*index).unwrap().as_deref() == Some(name);
                (1..99).find(has).unwrap()
            };
            let one = index("one");
            let routed = |to: &str, source: &str, input, mark| {
                let by = RoutedBy { source: source.parse().unwrap(), input, mark };
                next_hop(to.parse().unwrap(), by, one).unwrap().map(|hop| hop.to_string())
            };
            let hop = |to: &str| {
                routed(to, if to.contains(':') { "fd01::1" } else { "10.1.0.1" }, None, 0)
            };
            assert_eq!(hop("10.9.0.1").as_deref(), Some("10.1.0.2"));
            assert_eq!(hop("10.8.0.1").as_deref(), Some("fd01::2"));
            assert_eq!(hop("fd09::1").as_deref(), Some("fd01::2"));
            assert_eq!((hop("10.1.0.7"), hop("10.7.0.1")), (None, None));
            // Rules on the source, behind the interface that it came through, and on the mark.
            let input = Some(index("in"));
            for (source, input, mark, gateway) in [
                ("10.2.0.8", input, 0, "10.1.0.2"),
                ("10.2.0.9", input, 0, "10.1.0.3"),
                ("10.2.0.8", input, 5, "10.1.0.3"),
                ("10.1.0.1", None, 5, "10.1.0.3"),
                // The kernel takes no such packet.
                ("10.1.0.1", input, 5, "10.1.0.2"),
            ] {
                let found = routed("10.9.0.1", source, input, mark);
                assert_eq!(found.as_deref(), Some(gateway), "{source} {input:?} {mark}");
            }
        });
    }
}
