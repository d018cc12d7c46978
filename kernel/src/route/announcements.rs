//! Announcements that addresses of a device come and go.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    device::{DeviceError, DummyDevice, OPEN, RECEIVE, failed},
    list::{self, abi},
};
use crate::netlink::{Awaited, Message, Socket};

/// A set of addresses that several parts of a program know. Clones are one set.
#[derive(Clone, Debug, Default)]
pub struct SharedAddresses(Arc<Mutex<BTreeSet<IpAddr>>>);

impl SharedAddresses {
    /// Locks the set.
    pub fn lock(&self) -> MutexGuard<'_, BTreeSet<IpAddr>> {
        // A set is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for SharedAddresses {
    fn eq(&self, other: &Self) -> bool {
        // Not both at once, as they may be one.
        let own = self.lock().clone();
        own == *other.lock()
    }
}

impl Eq for SharedAddresses {}

/// Listens to announcements about the addresses of a device, in the network namespace of the thread
/// that polls it first.
#[derive(Debug)]
pub struct AddressAnnouncements {
    device: &'static str,
    /// The addresses that the device should have. Who changes them holds the lock until the kernel
    /// has done the same.
    bound: SharedAddresses,
    /// `None` before the first poll.
    open: Option<(Awaited, DummyDevice)>,
}

impl AddressAnnouncements {
    /// Makes a listener for the device of this name, which need not exist and should have these
    /// addresses. The listener opens its sockets when it is first polled.
    pub fn new(device: &'static str, bound: SharedAddresses) -> Self {
        Self { device, bound, open: None }
    }

    /// Waits until other addresses than the device should have come to it, or one of these goes
    /// from it. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    pub async fn differs(&mut self) -> Result<(), DeviceError> {
        let (announcements, device) = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(open(self.device)?),
        };
        loop {
            let wanted = self.bound.clone();
            let is_suspect = |message: &Message<'_>| {
                let change = list::change(message);
                change.is_some_and(|(ip, is_there)| wanted.lock().contains(&ip) != is_there)
            };
            // Many at once, of which some are lost, are this program's as a rule.
            announcements.announced(is_suspect).await.map_err(failed(RECEIVE))?;
            // The list alone shows of which device, and what is now. Not half-way through a change
            // of this program's.
            let wanted = self.bound.lock();
            if device.addresses()? != *wanted {
                return Ok(());
            }
        }
    }
}

fn open(device: &'static str) -> Result<(Awaited, DummyDevice), DeviceError> {
    let announcements = Socket::open(libc::NETLINK_ROUTE).map_err(failed(OPEN))?;
    for group in abi::address::GROUPS {
        announcements.join(group).map_err(failed(OPEN))?;
    }
    Ok((Awaited::new(announcements), DummyDevice::open(device)?))
}

#[cfg(test)]
mod kernel_tests {
    use std::time::Duration;

    use test_netns::{in_namespace, run};
    use tokio::{runtime, time::timeout};

    use super::*;

    #[test]
    fn what_others_do_to_the_device_is_noticed() {
        let ip = |line: &str| run(&format!("ip {line}"));
        in_namespace(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                ip("link add name other type bridge");
                let bound = SharedAddresses::default();
                let mut listener = AddressAnnouncements::new("ours", bound.clone());
                let mut differs = async |after: &str| {
                    // What is announced is there at once.
                    let long = Duration::from_millis(200);
                    let first = timeout(long, listener.differs()).await.is_ok();
                    while timeout(long, listener.differs()).await.is_ok() {}
                    (after.to_owned(), first)
                };
                differs("opening").await;
                let [first, second] = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
                *bound.lock() = [first, second].into();
                for (line, is_noticed) in [
                    ("link add name ours type bridge", false),
                    ("addr add 192.0.2.1/32 dev ours", false),
                    ("addr add 2001:db8::1/128 dev ours", false),
                    ("addr add 192.0.2.2/32 dev other", false),
                    ("addr del 192.0.2.2/32 dev other", false),
                    ("addr add 192.0.2.2/32 dev ours", true),
                    ("addr del 192.0.2.2/32 dev ours", false),
                    ("addr del 2001:db8::1/128 dev ours", true),
                    ("addr add 2001:db8::1/128 dev ours", false),
                    ("link del ours", true),
                ] {
                    ip(line);
                    assert_eq!(differs(line).await, (line.to_owned(), is_noticed));
                }
            });
        });
    }
}
