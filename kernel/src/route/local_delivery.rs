//! A rule of the routing policy that has marked packets delivered to this host, whatever address
//! they are sent to.

use switchyard_model::IpFamily;

use crate::{
    families::family_number,
    netlink::{Awaited, Error, Message, Socket, Writer, flags},
};

use super::list;

/// A rule for packets with a mark, and the table that it leads to: `ip rule add fwmark MARK/MASK
/// lookup TABLE pref PRIORITY`, and `ip route add local default dev lo table TABLE`.
///
/// Both belong to the kernel, as far as others can see (`proto kernel`), since systemd-networkd
/// removes the rules and routes of other programs.
#[derive(Clone, Copy, Debug)]
pub struct LocalDelivery {
    /// The mark.
    pub mark: u32,
    /// The bits of a packet's mark that are compared.
    pub mask: u32,
    /// The number of the routing table, which is no other's: 1 to 252.
    pub table: u8,
    /// The place of the rule: smaller ones come first.
    pub priority: u32,
}

impl LocalDelivery {
    /// Adds what is missing of a family, in the network namespace of the thread.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. `EOPNOTSUPP` or `EAFNOSUPPORT`: the kernel has no
    /// such rules.
    pub fn ensure(&self, family: IpFamily) -> Result<(), Error> {
        let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
        let lo = list::find(&mut socket, "lo")?.ok_or(Error::Malformed("no loopback device"))?;
        let create = flags::CREATE | flags::REPLACE;
        self.route(&mut socket, family, libc::RTM_NEWROUTE, create, lo.index)?;
        match self.add_rule(&mut socket, family) {
            Err(error) if error.errno() == Some(libc::EEXIST) => Ok(()),
            result => result,
        }
    }

    /// Removes what there is of a family, also rules for other marks, in the network namespace of
    /// the thread.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn remove(&self, family: IpFamily) -> Result<(), Error> {
        let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
        let Some(lo) = list::find(&mut socket, "lo")? else { return Ok(()) };
        let was_there = |result: Result<(), Error>| match result {
            Err(error) if error.errno().is_some_and(|errno| abi::MISSING.contains(&errno)) => {
                Ok(false)
            }
            result => result.map(|()| true),
        };
        // One at a time.
        let mut delete_rule =
            || socket.carry_out(libc::RTM_DELRULE, 0, |w| self.write_rule(w, family));
        while was_there(delete_rule())? {}
        was_there(self.route(&mut socket, family, libc::RTM_DELROUTE, 0, lo.index)).map(drop)
    }

    /// Appends what a request about any rule of this place contains.
    fn write_rule(&self, w: &mut Writer, family: IpFamily) {
        w.raw(&[family_number(family), 0, 0, 0, self.table, 0, 0, abi::TO_TABLE, 0, 0, 0, 0]);
        w.attribute(abi::RULE_PRIORITY, &self.priority.to_ne_bytes());
        w.attribute(abi::RULE_PROTOCOL, &[libc::RTPROT_KERNEL]);
    }

    fn add_rule(&self, socket: &mut Socket, family: IpFamily) -> Result<(), Error> {
        socket.carry_out(libc::RTM_NEWRULE, flags::CREATE | flags::EXCLUSIVE, |w| {
            self.write_rule(w, family);
            w.attribute(abi::RULE_MARK, &self.mark.to_ne_bytes());
            w.attribute(abi::RULE_MASK, &self.mask.to_ne_bytes());
        })
    }

    fn route(
        &self,
        socket: &mut Socket,
        family: IpFamily,
        kind: u16,
        flags: u16,
        device: u32,
    ) -> Result<(), Error> {
        let (scope, local) = (libc::RT_SCOPE_HOST, libc::RTN_LOCAL);
        socket.carry_out(kind, flags, |w| {
            let header =
                [family_number(family), 0, 0, 0, self.table, libc::RTPROT_KERNEL, scope, local];
            w.raw(&header);
            w.raw(&[0; 4]);
            w.attribute(libc::RTA_OIF, &device.to_ne_bytes());
        })
    }
}

/// Listens to announcements that the rule or the route goes, in the network namespace of the thread
/// that polls it first.
#[derive(Debug)]
pub struct DeliveryAnnouncements {
    priority: u32,
    table: u8,
    /// `None` before the first poll.
    open: Option<Awaited>,
}

impl DeliveryAnnouncements {
    /// Makes a listener, which opens its socket when it is first polled.
    pub fn new(delivery: &LocalDelivery) -> Self {
        Self { priority: delivery.priority, table: delivery.table, open: None }
    }

    /// Waits until the rule or the route of a family is deleted, or may be, as announcements were
    /// lost. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    pub async fn is_deleted(&mut self) -> Result<(), Error> {
        let announcements = match &mut self.open {
            Some(open) => open,
            None => {
                let socket = Socket::open(libc::NETLINK_ROUTE)?;
                // Routing daemons change thousands of routes of other tables.
                socket.receive_only_of_table(self.table)?;
                for group in abi::GROUPS {
                    socket.join(group)?;
                }
                self.open.insert(Awaited::new(socket))
            }
        };
        let priority = self.priority;
        announcements.announced(|message| is_deletion(message, priority)).await
    }
}

fn is_deletion(message: &Message<'_>, priority: u32) -> bool {
    match message.kind {
        libc::RTM_DELRULE => {
            message.attributes(abi::RULE_HEADER).ne32(abi::RULE_PRIORITY) == Some(priority)
        }
        libc::RTM_DELROUTE => true,
        _ => false,
    }
}

/// The numbers of the kernel's protocol (`linux/rtnetlink.h`, `linux/fib_rules.h`).
mod abi {

    /// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV4_RULE`, `RTNLGRP_IPV6_ROUTE` and `RTNLGRP_IPV6_RULE`
    pub(super) const GROUPS: [i32; 4] = [7, 8, 11, 19];
    /// The size of `fib_rule_hdr`.
    pub(super) const RULE_HEADER: usize = 12;

    /// `FR_ACT_TO_TBL`
    pub(super) const TO_TABLE: u8 = 1;
    /// `FRA_PRIORITY`
    pub(super) const RULE_PRIORITY: u16 = 6;
    /// `FRA_FWMARK`
    pub(super) const RULE_MARK: u16 = 10;
    /// `FRA_FWMASK`
    pub(super) const RULE_MASK: u16 = 16;
    /// `FRA_PROTOCOL`
    pub(super) const RULE_PROTOCOL: u16 = 21;

    /// The answers about a rule or route that is not there, or that the kernel cannot have.
    pub(super) const MISSING: [i32; 4] =
        [libc::ENOENT, libc::ESRCH, libc::EOPNOTSUPP, libc::EAFNOSUPPORT];
}

#[cfg(test)]
mod kernel_tests {
    use std::time::Duration;

    use test_netns::{in_namespace, run};
    use tokio::{runtime, time::timeout};

    use super::*;

    #[test]
    fn what_another_program_deletes_is_noticed() {
        in_namespace(|| {
            run("ip link set lo up");
            let delivery = LocalDelivery { mark: 4, mask: 0xffff, table: 183, priority: 83 };
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut listener = DeliveryAnnouncements::new(&delivery);
            let mut is_noticed = || {
                // What is announced is there at once.
                let noticed = async {
                    timeout(Duration::from_millis(200), listener.is_deleted()).await.is_ok()
                };
                runtime.block_on(noticed)
            };
            assert!(!is_noticed(), "before anything happens");
            for (family, program) in [(IpFamily::V4, "ip -4"), (IpFamily::V6, "ip -6")] {
                delivery.ensure(family).unwrap();
                run(&format!("{program} rule add fwmark 5 lookup 184 pref 84"));
                run(&format!("{program} rule del pref 84"));
                run(&format!("{program} route add local default dev lo table 184"));
                run(&format!("{program} route flush table 184"));
                assert!(!is_noticed(), "{program}: another rule and table");
                for what in ["rule del pref 83", "route flush table 183"] {
                    run(&format!("{program} {what}"));
                    assert!(is_noticed(), "{program} {what}");
                    delivery.ensure(family).unwrap();
                    assert!(!is_noticed(), "{program}: added again");
                }
                assert!(run(&format!("{program} rule")).contains("183"), "{program}");
            }
        });
    }
}
