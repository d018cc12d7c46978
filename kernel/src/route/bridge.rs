//! The bridges of the node that connect containers.

use std::collections::BTreeSet;

use super::list::abi::link::{self, BRIDGE, HEADER, INFO, INFO_KIND, NAME};
use crate::netlink::{Attribute, Error, Message, Socket, flags};

/// `IFLA_MASTER`
const MASTER: u16 = 10;
/// `IFLA_INFO_DATA`
const INFO_DATA: u16 = 2;
/// `IFLA_BR_NF_CALL_IPTABLES`
const CALL_IPTABLES: u16 = 36;

/// A bridge with a veth device among its ports, as CNI plugins make it for pods.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bridge {
    /// The name of the device.
    pub name: String,
    /// Whether this bridge has IPv4 packets between its ports pass the hooks of netfilter, whatever
    /// `net.bridge.bridge-nf-call-iptables` is. It does so only if the module br_netfilter is
    /// loaded.
    pub calls_iptables: bool,
}

/// Returns the bridges of the calling thread's network namespace that have a veth device among
/// their ports.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn bridges_of_veths() -> Result<Vec<Bridge>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let found: Found = socket.dump(
        |writer, sequence| {
            writer.message(libc::RTM_GETLINK, flags::DUMP, sequence, |w| w.raw(&link::NO_INDEX));
        },
        |found: &mut Found, message| found.add(message).ok_or(Error::Malformed("a device")),
    )?;
    let with_veths = |(index, _): &(u32, Bridge)| found.masters_of_veths.contains(index);
    Ok(found.bridges.into_iter().filter(with_veths).map(|(_, bridge)| bridge).collect())
}

#[derive(Default)]
struct Found {
    bridges: Vec<(u32, Bridge)>,
    masters_of_veths: BTreeSet<u32>,
}

impl Found {
    fn add(&mut self, message: Message<'_>) -> Option<()> {
        let index = u32::from_ne_bytes(*message.payload.get(4..)?.first_chunk::<4>()?);
        let find = |kind| message.attributes(HEADER).find_kind(kind);
        let in_info = |kind| find(INFO)?.nested().find_kind(kind);
        match in_info(INFO_KIND).and_then(|kind| kind.str()) {
            Some(BRIDGE) => {
                let option = in_info(INFO_DATA)
                    .and_then(|data| data.nested().find_kind(CALL_IPTABLES)?.u8());
                let name = find(NAME)?.str()?.to_owned();
                self.bridges.push((index, Bridge { name, calls_iptables: option == Some(1) }));
            }
            Some("veth") => {
                self.masters_of_veths.extend(find(MASTER).as_ref().and_then(Attribute::ne32));
            }
            _ => {}
        }
        Some(())
    }
}
