//! Reading and writing when a socket is ready, without a buffer for each.

use std::{
    cell::RefCell,
    io::{self, Read, Write},
    task::{Context, Poll, ready},
};

use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

use crate::forwarder::platform::{Message, Platform};

/// The amount that is read at a time.
const PIECE: usize = 32 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| work(buffer))
}

/// Reads at most a buffer, or a message of SCTP; 0 bytes are the end. A buffer that is not filled
/// is no sign that there is no more: reading ends at urgent data.
pub(super) fn poll_read(
    cx: &mut Context<'_>,
    platform: &dyn Platform,
    from: &TcpStream,
    buffer: &mut [u8],
    message: &mut Option<Message>,
) -> Poll<io::Result<usize>> {
    let socket = SockRef::from(from);
    let ready = || from.poll_read_ready(cx);
    poll_io(from, Interest::READABLE, 0, ready, || match message {
        None => (&*socket).read(buffer),
        Some(message) => {
            let received = platform.receive(&socket, buffer)?;
            *message = received.1;
            Ok(received.0)
        }
    })
}

/// Whether there is nothing to read now.
pub(super) fn is_nothing(result: &io::Result<usize>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Writes bytes, or a message of SCTP, or as much as the socket takes. After the last bytes of a
/// connection, the caller sends the end, by which the system sends both.
pub(super) fn poll_write(
    cx: &mut Context<'_>,
    platform: &dyn Platform,
    to: &TcpStream,
    bytes: &[u8],
    message: Option<Message>,
    are_last: bool,
) -> Poll<io::Result<usize>> {
    let socket = SockRef::from(to);
    poll_io(
        to,
        Interest::WRITABLE,
        bytes.len(),
        || to.poll_write_ready(cx),
        || match message {
            None if are_last => platform.write_last(&socket, bytes),
            None => (&*socket).write(bytes),
            Some(message) => platform.send(&socket, bytes, message),
        },
    )
}

/// Reads or writes when a socket is ready. An operation on fewer bytes than `wanted` shows that the
/// socket is not ready for more.
pub(super) fn poll_io(
    socket: &TcpStream,
    interest: Interest,
    wanted: usize,
    mut poll_ready: impl FnMut() -> Poll<io::Result<()>>,
    mut operation: impl FnMut() -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(poll_ready())?;
        let mut part = 0;
        let result = socket.try_io(interest, || {
            let done = operation()?;
            if 0 < done && done < wanted {
                // There is no more now. The error has the socket wait for the next event, which
                // saves a call that would return just that.
                part = done;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(done)
        });
        match result {
            Ok(done) => return Poll::Ready(Ok(done)),
            Err(_) if part > 0 => return Poll::Ready(Ok(part)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
}
