//! The addresses of the node's interfaces, as they come and go.
//!
//! Every change of an address makes the kernel's whole list be read again: an announcement reports
//! what happened, the list shows what is, and only the list cannot miss anything.

use std::{collections::BTreeSet, error, net::IpAddr, time::Duration};

use async_trait::async_trait;
use switchyard_model::InterfaceAddresses;
use tokio::time::timeout;

use crate::{
    netlink::{Awaited, Message, Socket},
    route::{
        device::{DeviceError, OPEN, RECEIVE, failed},
        list::{self, abi},
    },
};

/// The time between the first of a burst of changes and the reading of the list.
const SETTLE: Duration = Duration::from_millis(50);
/// The list is read that often even if nothing is announced, in case an announcement was lost.
const REFRESH: Duration = Duration::from_secs(60);

/// Follows the addresses of all interfaces in the network namespace of the thread that polls it
/// first.
#[derive(Default)]
pub struct AddressFollower {
    /// The names of the devices whose addresses are left out.
    without: Vec<&'static str>,
    /// The addresses that were returned last.
    known: Option<BTreeSet<IpAddr>>,
    /// `None` before the first call, and after a failure.
    connection: Option<Connection>,
}

impl AddressFollower {
    /// Makes a follower. It opens its socket when it is first polled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves out the addresses of the device that has this name whenever the addresses are listed,
    /// and of other devices that were named before. A device may be missing at first, or be deleted
    /// and made again. Changes of its addresses alone are not even a reason to list the addresses.
    pub fn without(mut self, device: &'static str) -> Self {
        self.without.push(device);
        self
    }

    /// Waits until the addresses differ from those returned last.
    async fn next(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        loop {
            let is_new = self.connection.is_none();
            let connection = match &mut self.connection {
                Some(connection) => connection,
                None => self.connection.insert(Connection::open(self.without.clone())?),
            };
            // Changes that are announced from the opening on are waited for below, even if the
            // first list has them already. A first list that the caller gave up is begun again.
            if !is_new && self.known.is_some() {
                connection.wait().await?;
            }
            let found = connection.list()?;
            if self.known.as_ref() != Some(&found) {
                tracing::debug!(addresses = ?found, "The node's addresses");
                return Ok(found);
            }
        }
    }
}

#[async_trait]
impl InterfaceAddresses for AddressFollower {
    async fn changed(&mut self) -> Result<Vec<IpAddr>, Box<dyn error::Error + Send + Sync>> {
        match self.next().await {
            Ok(found) => {
                let addresses = found.iter().copied().collect();
                self.known = Some(found);
                Ok(addresses)
            }
            Err(error) => {
                self.connection = None;
                Err(error.into())
            }
        }
    }
}

/// A socket that receives announcements of changes, and another one that lists addresses.
struct Connection {
    announcements: Awaited,
    requests: Socket,
    /// The names of the devices that are left out.
    without: Vec<&'static str>,
    /// The indices that these devices had when the addresses were listed last.
    without_indices: Vec<u32>,
}

impl Connection {
    fn open(without: Vec<&'static str>) -> Result<Self, DeviceError> {
        let open = || Socket::open(libc::NETLINK_ROUTE).map_err(failed(OPEN));
        let (announcements, requests) = (open()?, open()?);
        for group in abi::address::GROUPS {
            announcements.join(group).map_err(failed(OPEN))?;
        }
        let announcements = Awaited::new(announcements);
        Ok(Self { announcements, requests, without, without_indices: Vec::new() })
    }

    /// Waits until a change was announced and has settled, or until it is time to look anyway.
    async fn wait(&mut self) -> Result<(), DeviceError> {
        if let Ok(announced) = timeout(REFRESH, self.announcement()).await {
            announced?;
            // What is announced until then is in the list, too.
            let settle = async {
                loop {
                    if let Err(error) = self.announcement().await {
                        break error;
                    }
                }
            };
            return timeout(SETTLE, settle).await.map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// Waits for an announcement that is not about a device that is left out. Those that were lost
    /// may have been about any device.
    async fn announcement(&mut self) -> Result<(), DeviceError> {
        let is_left_out =
            |index: Option<u32>| index.is_some_and(|index| self.without_indices.contains(&index));
        let concerns = |message: &Message<'_>| !is_left_out(list::changed_device(message));
        self.announcements.announced(concerns).await.map_err(failed(RECEIVE))
    }

    fn list(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        self.without_indices.clear();
        for &device in &self.without {
            let found = list::find(&mut self.requests, device);
            let found = found.map_err(failed(format!("look for the device {device}")))?;
            self.without_indices.extend(found.map(|link| link.index));
        }
        let is_listed = |index, _| !self.without_indices.contains(&index);
        list::addresses(&mut self.requests, 0, is_listed)
            .map_err(failed("list the node's addresses"))
    }
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::{in_namespace, run};
    use tokio::runtime;

    use super::*;

    /// Runs a test in a namespace of its own.
    fn in_runtime(test: impl AsyncFnOnce() + Send) {
        in_namespace(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(test());
        });
    }

    fn ip(line: &str) {
        run(&format!("ip {line}"));
    }

    async fn next(follower: &mut AddressFollower) -> Vec<String> {
        let addresses = timeout(Duration::from_secs(10), follower.changed()).await;
        let addresses = addresses.unwrap().unwrap();
        // Link-local addresses come and go on their own.
        let lasting = addresses.iter().filter(|ip| !ip.to_string().starts_with("fe80"));
        lasting.map(IpAddr::to_string).collect()
    }

    /// The next list that is not the same as `last`, but for link-local addresses.
    async fn changed(follower: &mut AddressFollower, last: &[String]) -> Vec<String> {
        loop {
            let found = next(follower).await;
            if found != last {
                return found;
            }
        }
    }

    #[test]
    fn changes_are_followed() {
        in_runtime(async || {
            let mut follower = AddressFollower::new();
            assert_eq!(next(&mut follower).await, [""; 0]);

            ip("link set lo up");
            let found = changed(&mut follower, &[]).await;
            assert_eq!(found, ["127.0.0.1", "::1"]);

            ip("link add name veth0 type veth peer name veth1");
            ip("addr add 192.0.2.1/24 dev veth0");
            // The other end's address is not ours.
            ip("addr add 198.51.100.1 peer 198.51.100.2 dev veth1");
            let mut found = found;
            while found.len() < 4 {
                found = changed(&mut follower, &found).await;
            }
            assert_eq!(found, ["127.0.0.1", "192.0.2.1", "198.51.100.1", "::1"]);

            ip("link del veth0");
            while found.len() > 2 {
                found = changed(&mut follower, &found).await;
            }
            assert_eq!(found, ["127.0.0.1", "::1"]);
        });
    }

    #[test]
    fn a_first_list_that_was_given_up_is_read_again_at_once() {
        in_runtime(async || {
            let mut follower = AddressFollower::new();
            // The sockets are open, and the list was not received by the caller.
            follower.connection = Some(Connection::open(Vec::new()).unwrap());
            // Nothing changes, so that nothing is announced.
            assert_eq!(next(&mut follower).await, [""; 0]);
        });
    }

    #[test]
    fn addresses_of_a_device_can_be_left_out() {
        in_runtime(async || {
            let mut follower = AddressFollower::new().without("left-out").without("other");
            ip("link add name veth0 type veth peer name veth1");
            ip("addr add 192.0.2.1/32 dev veth0");
            assert_eq!(next(&mut follower).await, ["192.0.2.1"]);

            // A device that is made later, and made again.
            for round in ["10.0.0.1/32", "10.0.0.2/32"] {
                ip("link add name left-out type bridge");
                ip(&format!("addr add {round} dev left-out"));
                ip("addr add 192.0.2.2/32 dev veth1");
                assert_eq!(next(&mut follower).await, ["192.0.2.1", "192.0.2.2"]);
                ip("link del left-out");
                ip("addr del 192.0.2.2/32 dev veth1");
                assert_eq!(next(&mut follower).await, ["192.0.2.1"]);
            }
            ip("link add name other type bridge");
            ip("addr add 10.0.0.3/32 dev other");
            // The device is known by its name.
            ip("link set veth1 name left-out");
            ip("addr add 192.0.2.2/32 dev left-out");
            ip("addr add 192.0.2.3/32 dev veth0");
            assert_eq!(next(&mut follower).await, ["192.0.2.1", "192.0.2.3"]);
        });
    }

    #[test]
    fn announcements_of_a_device_that_is_left_out_wake_nobody() {
        in_runtime(async || {
            ip("link add name left-out type bridge");
            ip("link add name other type bridge");
            let mut connection = Connection::open(vec!["none", "left-out"]).unwrap();
            connection.list().unwrap();
            let long = Duration::from_millis(500);
            for (device, wakes) in [("left-out", false), ("other", true), ("left-out", false)] {
                for change in ["add", "del"] {
                    ip(&format!("addr {change} 192.0.2.1/32 dev {device}"));
                    let woken = timeout(long, connection.announcement()).await;
                    assert_eq!(woken.is_ok(), wakes, "{change} {device}");
                }
            }
        });
    }
}
