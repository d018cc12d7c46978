//! The next hop of packets.

use std::net::IpAddr;

use crate::{
    families::address,
    netlink::{Error, Socket, Writer},
};

/// `RTM_GETROUTE`
const GET_ROUTE: u16 = 26;
/// The length of `struct rtmsg`.
const HEADER: usize = 12;
/// `RTA_DST`
const DESTINATION: u16 = 1;
/// `RTA_OIF`
const OUTPUT: u16 = 4;
/// `RTA_GATEWAY`
const GATEWAY: u16 = 5;
/// `RTA_VIA`: a gateway of another family, behind the number of that in two bytes.
const VIA: u16 = 18;

/// Returns the gateway to an address through the interface with this index, in the calling thread's
/// network namespace; `None` if the address is reached without one, or there is no such route.
///
/// The look-up is by these two alone: a rule on source, mark or incoming interface, or a route over
/// several gateways, may lead a packet elsewhere.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn next_hop(to: IpAddr, output: u32) -> Result<Option<IpAddr>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let fill = |w: &mut Writer| {
        let (family, bits, address) = match to {
            IpAddr::V4(ip) => (libc::AF_INET, 32, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, 128, ip.octets().to_vec()),
        };
        w.raw(&[family as u8, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        w.attribute(DESTINATION, &address);
        w.ne32(OUTPUT, output);
    };
    let mut gateway = None;
    let result = socket.ask(GET_ROUTE, 0, fill, |message| {
        let route = message.attributes(HEADER);
        let found = route.find_kind(GATEWAY).and_then(|found| address(found.payload));
        let via = || address(route.find_kind(VIA)?.payload.get(2..)?);
        gateway = found.or_else(via);
        Ok(())
    });
    match result {
        Ok(()) => Ok(gateway),
        Err(Error::Kernel(error)) if error.errno == libc::ENETUNREACH => Ok(None),
        Err(error) => Err(error),
    }
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
            ] {
                test_netns::run(line);
            }
            let hop = |to: &str, output| {
                next_hop(to.parse().unwrap(), output).unwrap().map(|hop| hop.to_string())
            };
            let is_one = |index: &u32| interface_name(*index).unwrap().as_deref() == Some("one");
            let one = (1..99).find(is_one).unwrap();
            assert_eq!(hop("10.9.0.1", one).as_deref(), Some("10.1.0.2"));
            assert_eq!(hop("10.8.0.1", one).as_deref(), Some("fd01::2"));
            assert_eq!(hop("fd09::1", one).as_deref(), Some("fd01::2"));
            assert_eq!((hop("10.1.0.7", one), hop("10.7.0.1", one)), (None, None));
        });
    }
}
