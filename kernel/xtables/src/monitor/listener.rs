//! Notifications of nf_tables: one with each commit, of any program.

use switchyard_netlink::{Error, Socket, nfnetlink, nftables};
use tokio::io::{Interest, unix::AsyncFd};

use crate::nft_tables;

/// A socket that hears of commits, and of nothing else.
#[derive(Debug)]
pub(super) struct Listener(State);

#[derive(Debug)]
enum State {
    /// A socket that no runtime knows yet.
    Open(Socket),
    Registered(AsyncFd<Socket>),
    /// Registration has failed.
    Closed,
}

impl Listener {
    /// Listens in the network namespace of this thread.
    pub(super) fn open() -> Result<Self, Error> {
        let socket = nft_tables::open()?;
        let subsystem = nfnetlink::subsystem::NFTABLES;
        // A commit comes with a message for each rule, which would fill the socket's buffer.
        socket.receive_only(nfnetlink::kind(subsystem, nftables::abi::message::NEW_GENERATION))?;
        socket.join(nftables::abi::GROUP)?;
        Ok(Self(State::Open(socket)))
    }

    /// Waits for a commit. Cancel-safe.
    pub(super) async fn notified(&mut self) -> Result<(), Error> {
        let cannot_wait = |source| Error::Io { action: "wait for nf_tables", source };
        if let State::Open(_) = self.0
            && let State::Open(socket) = std::mem::replace(&mut self.0, State::Closed)
        {
            // SAFETY: the socket is owned, and so keeps the same descriptor until it is dropped.
            let registered = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
            self.0 = State::Registered(registered.map_err(|error| cannot_wait(error.into()))?);
        }
        let State::Registered(socket) = &mut self.0 else {
            return Err(cannot_wait(std::io::ErrorKind::NotConnected.into()));
        };
        loop {
            let mut ready = socket.readable_mut().await.map_err(cannot_wait)?;
            let has_news = drain(ready.get_inner_mut())?;
            ready.clear_ready();
            if has_news {
                return Ok(());
            }
        }
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
