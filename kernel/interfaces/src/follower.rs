//! The addresses of the node's interfaces, followed by rtnetlink.
//!
//! Every change of an address makes the kernel's whole list be read again: an announcement reports
//! what happened, the list shows what is, and only the list cannot miss anything.

use std::{collections::BTreeSet, error::Error, io, net::IpAddr, time::Duration};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, TryStreamExt, stream::BoxStream};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use switchyard_core::engine::InterfaceAddresses;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

/// The time between the first of a burst of changes and the reading of the list.
const SETTLE: Duration = Duration::from_millis(50);
/// The list is read that often even if nothing is announced, in case an announcement was lost.
const REFRESH: Duration = Duration::from_secs(60);

/// Why the addresses are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No rtnetlink socket could be opened.
    #[error("cannot open an rtnetlink socket")]
    Socket(#[source] io::Error),
    /// The kernel did not list the addresses.
    #[error("cannot list the node's addresses")]
    List(#[source] rtnetlink::Error),
    /// The socket was closed.
    #[error("the rtnetlink connection ended")]
    Ended,
}

/// Follows the addresses of all interfaces in the network namespace of the thread that polls it
/// first.
#[derive(Default)]
pub struct AddressFollower {
    /// What was returned last.
    known: Option<BTreeSet<IpAddr>>,
    /// `None` before the first call, and after a failure.
    connection: Option<Connection>,
}

impl AddressFollower {
    /// Makes a follower. It opens its socket when it is first polled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until the addresses differ from those returned last.
    async fn next(&mut self) -> Result<BTreeSet<IpAddr>, AddressError> {
        loop {
            let is_new = self.connection.is_none();
            let connection = match &mut self.connection {
                Some(connection) => connection,
                None => self.connection.insert(Connection::open()?),
            };
            // Changes that are announced from the opening on are waited for below, even if the
            // first list has them already.
            if !is_new {
                connection.wait().await?;
            }
            let found = connection.list().await?;
            if self.known.as_ref() != Some(&found) {
                tracing::debug!(addresses = ?found, "The node's addresses");
                return Ok(found);
            }
        }
    }
}

#[async_trait]
impl InterfaceAddresses for AddressFollower {
    async fn changed(&mut self) -> Result<Vec<IpAddr>, Box<dyn Error + Send + Sync>> {
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

/// A socket that lists addresses and receives announcements of changes.
struct Connection {
    handle: Handle,
    announcements: BoxStream<'static, ()>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    fn open() -> Result<Self, AddressError> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, announcements) =
            new_multicast_connection(&groups).map_err(AddressError::Socket)?;
        let announcements = announcements.map(drop).boxed();
        Ok(Self { handle, announcements, task: tokio::spawn(connection) })
    }

    /// Waits until a change was announced and has settled, or until it is time to look anyway.
    async fn wait(&mut self) -> Result<(), AddressError> {
        match timeout(REFRESH, self.announcements.next()).await {
            Ok(None) => return Err(AddressError::Ended),
            Ok(Some(())) => sleep(SETTLE).await,
            Err(_) => {}
        }
        while let Some(Some(())) = self.announcements.next().now_or_never() {}
        Ok(())
    }

    async fn list(&mut self) -> Result<BTreeSet<IpAddr>, AddressError> {
        let messages = self.handle.address().get().execute();
        messages
            .try_filter_map(async |message| Ok(address_of(&message)))
            .try_collect()
            .await
            .map_err(AddressError::List)
    }
}

/// The interface's own address: on a point-to-point link `IFA_ADDRESS` is the other end's.
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests {
    use packet_rig::NetNs;
    use tokio::runtime;

    use super::*;

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
        let namespace = NetNs::new_bare().unwrap();
        let ip = |line: &str| namespace.ip(line).unwrap();
        let test = || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
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
        };
        namespace.run(test).unwrap();
    }
}
