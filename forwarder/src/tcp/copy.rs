//! Copying what two ends of a connection send each other.
//!
//! Nothing is kept for a direction in which nothing moves: bytes are read into a buffer of the thread, and
//! only what the other end does not take at once is kept, at most [`PIECE`]. Until the end has taken that,
//! nothing more is read, so that a slow reader slows down the writer.

use std::{
    cell::RefCell,
    future::poll_fn,
    io::{self, Read, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream};

/// How much is read at a time.
const PIECE: usize = 32 * 1024;

/// How much a connection moves in one direction before it is another's turn.
const TURN: usize = 512 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; PIECE]);
}

/// One direction of a connection.
#[derive(Default)]
struct Half {
    state: State,
    /// What was read and not yet written, from `written` on.
    kept: Vec<u8>,
    written: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Moving,
    /// The end that sends has closed, and this was passed on.
    Ended,
    /// The end that receives is gone.
    Broken,
}

enum Failed {
    Read,
    Write,
}

/// Copies between two sockets in both directions, until both have sent everything. `header` is sent to the
/// endpoint first. Without `half_close`, the end of one direction is the end of both. Returns whether both
/// ended well; if not, they have to be reset.
pub(super) async fn copy(
    client: &TcpStream,
    endpoint: &TcpStream,
    header: Vec<u8>,
    half_close: bool,
) -> bool {
    let mut up = Half { kept: header, ..Half::default() };
    let mut down = Half::default();
    let mut up_first = false;
    // An end that has sent everything can still be reset, which nothing but its error shows, as long as
    // there is nothing to write.
    let mut watch: Option<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = None;
    poll_fn(|cx| {
        // Each direction has its turn, even if the other takes all of the task's budget.
        up_first = !up_first;
        for is_up in [up_first, !up_first] {
            let (half, from, to) =
                if is_up { (&mut up, client, endpoint) } else { (&mut down, endpoint, client) };
            if half.state != State::Moving {
                continue;
            }
            half.state = match half.poll(cx, from, to) {
                Poll::Pending => State::Moving,
                Poll::Ready(Ok(())) => State::Ended,
                Poll::Ready(Err(Failed::Write)) => State::Broken,
                Poll::Ready(Err(Failed::Read)) => return Poll::Ready(false),
            };
        }
        let ended = match (up.state, down.state) {
            (State::Moving, State::Moving) => return Poll::Pending,
            (State::Ended, State::Moving) => client,
            (State::Moving, State::Ended) => endpoint,
            // The end that is gone may have sent something before, which is still to be passed on.
            (State::Broken, State::Moving) | (State::Moving, State::Broken) => {
                return Poll::Pending;
            }
            (State::Ended, State::Ended) => return Poll::Ready(true),
            _ => return Poll::Ready(false),
        };
        if !half_close {
            return Poll::Ready(true);
        }
        let watch = watch.get_or_insert_with(|| {
            Box::pin(async {
                let _ = ended.ready(Interest::ERROR).await;
            })
        });
        watch.as_mut().poll(cx).map(|()| false)
    })
    .await
}

impl Half {
    /// Moves what there is to move. Is ready when the sender has closed and this was passed on.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
    ) -> Poll<Result<(), Failed>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut moved = 0;
            while moved < TURN {
                ready!(self.flush(cx, to)).map_err(|_| Failed::Write)?;
                let read = ready!(poll_read(cx, from, buffer)).map_err(|_| Failed::Read)?;
                if read == 0 {
                    // An error means that the other end is gone, which its own direction notices.
                    let _ = SockRef::from(to).shutdown(std::net::Shutdown::Write);
                    return Poll::Ready(Ok(()));
                }
                moved += read;
                let mut rest = &buffer[..read];
                while !rest.is_empty() {
                    match poll_write(cx, to, rest) {
                        Poll::Ready(Ok(written)) => rest = &rest[written..],
                        Poll::Ready(Err(_)) => return Poll::Ready(Err(Failed::Write)),
                        Poll::Pending => {
                            self.kept = rest.to_vec();
                            self.written = 0;
                            return Poll::Pending;
                        }
                    }
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// Writes what was kept.
    fn flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            self.written += ready!(poll_write(cx, to, &self.kept[self.written..]))?;
        }
        if !self.kept.is_empty() {
            *self = Self { state: self.state, ..Self::default() };
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads at most a buffer; 0 bytes are the end.
fn poll_read(cx: &mut Context<'_>, from: &TcpStream, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    let socket = SockRef::from(from);
    poll_io(
        from,
        Interest::READABLE,
        buffer.len(),
        || from.poll_read_ready(cx),
        || (&*socket).read(buffer),
    )
}

fn poll_write(cx: &mut Context<'_>, to: &TcpStream, bytes: &[u8]) -> Poll<io::Result<usize>> {
    let socket = SockRef::from(to);
    poll_io(
        to,
        Interest::WRITABLE,
        bytes.len(),
        || to.poll_write_ready(cx),
        || (&*socket).write(bytes),
    )
}

/// Reads or writes when a socket is ready.
fn poll_io(
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
                // There is no more now. The error has the socket wait for the next event, which saves a
                // call that would return just that.
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
