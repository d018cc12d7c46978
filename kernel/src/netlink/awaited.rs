//! Sockets that a task waits for.

use std::io;

use tokio::io::{Interest, unix::AsyncFd};

use crate::netlink::{Error, Message, Socket};

/// The kernel may report that it could not report something, and nothing else.
const INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);

/// A socket that a task waits for, which belongs to the runtime that first polls it.
#[derive(Debug)]
pub struct Awaited {
    /// `None` only while the socket is being registered.
    state: Option<State>,
}

#[derive(Debug)]
enum State {
    /// No runtime knows the socket yet.
    Open(Socket),
    Registered(AsyncFd<Socket>),
}

impl Awaited {
    /// Wraps a socket. The first [`Awaited::ready`] registers it with a runtime.
    pub fn new(socket: Socket) -> Self {
        Self { state: Some(State::Open(socket)) }
    }

    /// Waits until there may be something to receive, if only an error. The caller has to receive
    /// until nothing is left. Cancel-safe.
    ///
    /// # Errors
    /// If the runtime cannot wait for the socket now, or is shutting down.
    pub async fn ready(&mut self) -> Result<&mut Socket, Error> {
        #[cfg(feature = "testing")]
        if crate::netlink::testing::is_replaying() {
            return match &mut self.state {
                Some(State::Open(socket)) if crate::netlink::testing::has_notices() => Ok(socket),
                _ => Err(Error::NoAnswer),
            };
        }
        let registered = self.registered().map_err(cannot_wait)?;
        registered.ready_mut(INTEREST).await.map_err(cannot_wait)?.clear_ready();
        Ok(registered.get_mut())
    }

    /// Waits until a message is announced that concerns the caller, or may have been, as
    /// announcements were lost. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// Those of [`Awaited::ready`], and of receiving.
    pub(crate) async fn announced(
        &mut self,
        mut concerns: impl FnMut(&Message<'_>) -> bool,
    ) -> Result<(), Error> {
        loop {
            let socket = self.ready().await?;
            let mut is_news = false;
            loop {
                match socket.receive() {
                    Ok(None) => break,
                    Ok(Some(mut datagram)) => {
                        is_news |= datagram.any(|message| concerns(&message));
                    }
                    Err(Error::Overrun) => is_news = true,
                    Err(error) => return Err(error),
                }
            }
            if is_news {
                return Ok(());
            }
        }
    }

    fn registered(&mut self) -> io::Result<&mut AsyncFd<Socket>> {
        if let Some(State::Open(socket)) = self.state.take_if(|s| matches!(s, State::Open(_))) {
            // SAFETY: the socket owns its descriptor, which stays the same open one until the
            // socket is dropped.
            let registered = unsafe { AsyncFd::register_with_interest(socket, INTEREST) };
            match registered {
                Ok(registered) => self.state = Some(State::Registered(registered)),
                Err(error) => {
                    let (socket, cause) = error.into_parts();
                    self.state = Some(State::Open(socket));
                    return Err(cause);
                }
            }
        }
        match &mut self.state {
            Some(State::Registered(registered)) => Ok(registered),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

fn cannot_wait(source: io::Error) -> Error {
    Error::Io { action: "wait for the kernel", source }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, time::Duration};

    use tokio::{runtime, time::timeout};

    use super::*;

    /// Like the kernel's report that it had no memory for a report.
    #[test]
    fn an_error_alone_is_something_to_receive() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(nobody).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut awaited = Awaited::new(Socket::from_descriptor(socket.into()));
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            // Registered before there is an error, of which epoll reports the change.
            assert!(timeout(Duration::from_millis(1), awaited.ready()).await.is_err());
            let State::Registered(registered) = awaited.state.as_mut().unwrap() else { panic!() };
            registered.get_mut().send(b"nobody receives this").unwrap();
            let ready = timeout(Duration::from_secs(60), awaited.ready()).await;
            assert!(ready.expect("the error is reported").unwrap().receive().is_err());
        });
    }
}
