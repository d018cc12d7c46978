//! Notifications of nf_tables: one with each commit, of any program.

use crate::{
    netlink::{Awaited, Error, Socket, nfnetlink},
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

    /// Waits for a commit. Cancel-safe.
    pub(super) async fn notified(&mut self) -> Result<(), Error> {
        while !drain(self.0.ready().await?)? {}
        Ok(())
    }
}

/// Reads all notifications; returns whether there were any.
fn drain(socket: &mut Socket) -> Result<bool, Error> {
    let mut has_news = false;
    loop {
        match socket.receive() {
            Ok(Some(_)) => has_news = true,
            Ok(None) => return Ok(has_news),
            // Something was lost, which is news enough.
            Err(Error::Overrun) => has_news = true,
            Err(error) => return Err(error),
        }
    }
}
