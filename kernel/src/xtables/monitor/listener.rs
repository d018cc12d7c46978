//! Notifications of nf_tables: one with each commit, of any program.

use crate::{
    netlink::{Awaited, Error, nfnetlink},
    nftables,
    xtables::nft_tables,
};

/// A socket that hears of commits, and of nothing else.
#[derive(Debug)]
pub(super) struct Listener(Awaited);

impl Listener {
    /// Listens in the network namespace of this thread.
    pub(super) fn open() -> Result<Self, Error> {
        let socket = nft_tables::open()?;
        let subsystem = nfnetlink::subsystem::NFTABLES;
        // A commit comes with a message for each rule, which would fill the socket's buffer.
        socket.receive_only(nfnetlink::kind(subsystem, nftables::abi::message::NEW_GENERATION))?;
        socket.join(nftables::abi::GROUP)?;
        Ok(Self(Awaited::new(socket)))
    }

    /// Waits for a commit, or for the loss of a notification. Cancel-safe.
    pub(super) async fn notified(&mut self) -> Result<(), Error> {
        self.0.announced(|_| true).await
    }
}
