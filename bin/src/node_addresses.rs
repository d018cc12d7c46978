//! The addresses of the node's interfaces, followed by rtnetlink.
//!
//! Node ports are served on them. Every change of an address makes the kernel's whole list be read
//! again: an announcement says what happened, the list says what is, and only the list cannot
//! miss anything.

use std::{collections::BTreeSet, io, net::IpAddr, time::Duration};

use futures::{StreamExt, TryStreamExt, channel::mpsc::UnboundedReceiver};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use proxy_core::runner::Input;
use rtnetlink::{Handle, MulticastGroup, new_multicast_connection};
use tokio::{
    sync::mpsc::Sender,
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Changes come in bursts: this long after the first one the list is read.
const SETTLE: Duration = Duration::from_millis(50);
/// The list is read that often even if nothing is announced, in case an announcement was lost.
const REFRESH: Duration = Duration::from_secs(60);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Why the addresses are not known.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// There is no rtnetlink socket.
    #[error("cannot open an rtnetlink socket")]
    Socket(#[source] io::Error),
    /// The kernel did not list them.
    #[error("cannot list the node's addresses")]
    List(#[source] rtnetlink::Error),
    /// The socket was closed.
    #[error("the rtnetlink connection ended")]
    Ended,
}

/// All addresses of the node's interfaces, as of now.
pub async fn list() -> Result<Vec<IpAddr>, AddressError> {
    Ok(Follower::connect()?.list().await?.into_iter().collect())
}

/// Sends the full list at the start and whenever it changes, until nobody listens any more.
pub async fn follow(sender: Sender<Input>) {
    let mut known = None;
    loop {
        match Follower::connect() {
            Ok(mut follower) => match follower.run(&sender, &mut known).await {
                Ok(()) => return,
                Err(error) => report(&error),
            },
            Err(error) => report(&error),
        }
        sleep(RETRY).await;
    }
}

fn report(error: &AddressError) {
    tracing::error!(err = crate::error_chain(error), "Failed to follow the node's addresses");
}

/// A socket that lists addresses and hears of changes.
struct Follower<M> {
    handle: Handle,
    announcements: UnboundedReceiver<M>,
    connection: JoinHandle<()>,
}

impl<M> Drop for Follower<M> {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Follower<()> {
    fn connect() -> Result<Follower<impl Send>, AddressError> {
        let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, announcements) =
            new_multicast_connection(&groups).map_err(AddressError::Socket)?;
        Ok(Follower { handle, announcements, connection: tokio::spawn(connection) })
    }
}

impl<M> Follower<M> {
    /// Returns when nobody listens any more.
    async fn run(
        &mut self,
        sender: &Sender<Input>,
        known: &mut Option<BTreeSet<IpAddr>>,
    ) -> Result<(), AddressError> {
        loop {
            // What is announced from here on is heard below, even if this list has it already.
            let found = self.list().await?;
            if known.as_ref() != Some(&found) {
                tracing::debug!(addresses = ?found, "The node's addresses");
                let input = Input::InterfaceAddresses(found.iter().copied().collect());
                if sender.send(input).await.is_err() {
                    return Ok(());
                }
                *known = Some(found);
            }
            tokio::select! {
                () = sender.closed() => return Ok(()),
                change = self.change() => change?,
            }
        }
    }

    /// Waits until something has changed and settled, or until it is time to look anyway.
    async fn change(&mut self) -> Result<(), AddressError> {
        match timeout(REFRESH, self.announcements.next()).await {
            Ok(None) => return Err(AddressError::Ended),
            Ok(Some(_)) => sleep(SETTLE).await,
            Err(_) => {}
        }
        while self.announcements.try_recv().is_ok() {}
        Ok(())
    }

    async fn list(&self) -> Result<BTreeSet<IpAddr>, AddressError> {
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
    use tokio::{
        runtime,
        sync::mpsc::{self, Receiver},
    };

    use super::*;

    async fn next(receiver: &mut Receiver<Input>) -> Vec<String> {
        let input = timeout(Duration::from_secs(10), receiver.recv()).await.unwrap().unwrap();
        let Input::InterfaceAddresses(addresses) = input else { panic!("{input:?}") };
        // Link-local addresses come and go on their own.
        let lasting = addresses.iter().filter(|ip| !ip.to_string().starts_with("fe80"));
        lasting.map(IpAddr::to_string).collect()
    }

    /// The next list that is not the same as `last`, but for link-local addresses.
    async fn changed(receiver: &mut Receiver<Input>, last: &[String]) -> Vec<String> {
        loop {
            let found = next(receiver).await;
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
                let (sender, mut receiver) = mpsc::channel(4);
                let following = tokio::spawn(follow(sender));
                assert_eq!(next(&mut receiver).await, [""; 0]);

                ip("link set lo up");
                let found = changed(&mut receiver, &[]).await;
                assert_eq!(found, ["127.0.0.1", "::1"]);

                ip("link add name veth0 type veth peer name veth1");
                ip("addr add 192.0.2.1/24 dev veth0");
                // The other end's address is not ours.
                ip("addr add 198.51.100.1 peer 198.51.100.2 dev veth1");
                let mut found = found;
                while found.len() < 4 {
                    found = changed(&mut receiver, &found).await;
                }
                assert_eq!(found, ["127.0.0.1", "192.0.2.1", "198.51.100.1", "::1"]);

                ip("link del veth0");
                while found.len() > 2 {
                    found = changed(&mut receiver, &found).await;
                }
                assert_eq!(found, ["127.0.0.1", "::1"]);

                drop(receiver);
                timeout(Duration::from_secs(10), following).await.unwrap().unwrap();
            });
        };
        namespace.run(test).unwrap();
    }
}
