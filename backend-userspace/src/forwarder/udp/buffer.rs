//! Receiving datagrams into a buffer of the thread.

use std::{cell::RefCell, io};

use socket2::SockRef;
use tokio::{io::Interest, net::UdpSocket};

use crate::forwarder::platform::{Platform, Receiving};

/// Lends the thread's buffer. There is one for each thread rather than for each flow, since a
/// datagram is in it only while nothing is waited for.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut Receiving) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Receiving> = RefCell::new(Receiving::new());
    }
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => work(&mut buffer),
        Err(_) => work(&mut Receiving::new()),
    })
}

/// Receives datagrams, if the socket may have some.
pub(super) fn try_receive(
    platform: &dyn Platform,
    socket: &UdpSocket,
    interest: Interest,
    buffer: &mut Receiving,
) -> io::Result<()> {
    let mut is_last = false;
    let result = socket.try_io(interest, || {
        if platform.receive_datagrams(&SockRef::from(socket), buffer)? {
            return Ok(());
        }
        is_last = true;
        // Has the socket wait for the next event, which saves a call that would return just that.
        Err(io::ErrorKind::WouldBlock.into())
    });
    if is_last { Ok(()) } else { result }
}
