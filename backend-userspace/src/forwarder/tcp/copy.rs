//! Copying what two ends of a connection send each other.
//!
//! Bytes are read into a buffer of the thread, and only what the other end does not take at once is
//! kept; nothing more is read until then, so that a slow reader slows down the writer. After much
//! has come in one direction, the system moves what follows through a pipe, if there is one.

use std::{
    future::poll_fn,
    io::{self, Read},
    mem,
    net::Shutdown,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use socket2::SockRef;
use switchyard_core::model::Protocol;
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{
    ready_io::{is_nothing, poll_io, poll_read, poll_write, with_buffer},
    tune_lasting,
};
use crate::forwarder::{
    counters::Counted,
    pipes::PooledPipe,
    platform::{Message, Platform},
    shared::Shared,
};

/// The amount that a connection moves in one direction before it is another's turn.
const TURN: usize = 512 * 1024;

/// The amount that comes in one direction before a pipe is used.
const BULK: usize = 64 * 1024;

/// Pieces that are smaller than that are not worth a pipe.
const SMALL: usize = 2048;

/// The number of times that a connection is looked at until an end that does not answer is gone.
const LOOKS: u32 = 4;

#[derive(Default)]
struct Direction {
    /// Whether it is the client that sends.
    is_up: bool,
    state: State,
    /// The attributes of the message that the bytes are of, which SCTP has.
    message: Option<Message>,
    /// Bytes read and not yet written, from `written` on.
    kept: Vec<u8>,
    written: usize,
    /// The end, or an error, that was read behind the last bytes.
    last: Option<Result<(), Failed>>,
    /// Whether the end of this direction is passed on, since the other one goes on.
    passes_end_on: bool,
    /// The amount that has come, up to [`BULK`].
    bulk: usize,
    splice: Option<Splice>,
    /// Present once the end that sends is known to be gone.
    gone: Option<Gone>,
}

/// A pipe, and how much is in it.
struct Splice {
    pooled: PooledPipe,
    filled: usize,
}

/// The way in which an end is gone: the end has sent everything before, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gone {
    Complete,
    Cut,
}

/// The error of an end, as long as nothing is read from the end.
type Watch<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Moving,
    /// The end that sends has closed, and this was passed on.
    Ended,
    /// The end that receives is gone.
    Broken,
}

enum Progress {
    Bytes(usize),
    End,
}

enum Failed {
    Read,
    Write(Gone),
}

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Both ends have sent everything.
    Complete {
        /// Whether the client's end was passed on first.
        is_client_first: bool,
    },
    /// Something is lost that an end has sent, or would have sent.
    Failed,
    /// The client has sent everything, which was passed on, and is gone.
    ClientGone,
    /// The endpoint has sent everything, which was passed on, and is gone.
    EndpointGone,
}

/// Copies between two sockets in both directions, until both ends have sent everything or one is
/// gone. `header` is sent to the endpoint first. SCTP cannot close one direction (RFC 9260, section
/// 9.2): there, the end of one is the end of both.
pub(super) async fn copy(
    shared: &Shared,
    protocol: Protocol,
    client: &TcpStream,
    endpoint: &TcpStream,
    header: Vec<u8>,
) -> Ending {
    let platform = &*shared.platform;
    // A pipe does not keep the bounds of SCTP's messages.
    let has_pipes = protocol == Protocol::Tcp;
    let message = (protocol == Protocol::Sctp).then(Message::default);
    let mut is_in_handshake = !header.is_empty();
    let mut up = Direction { is_up: true, message, kept: header, ..Direction::default() };
    let mut down = Direction { message, ..Direction::default() };
    let mut watches: [Option<Watch<'_>>; 2] = [None, None];
    let mut up_first = false;
    let looks = shared.config.dead_after / LOOKS;
    let mut look = pin!(sleep(looks));
    poll_fn(|cx| {
        while look.as_mut().poll(cx).is_ready() {
            look.as_mut().reset(Instant::now() + looks);
            if protocol == Protocol::Tcp {
                // The client's socket has the options of the listener.
                tune_lasting(shared, protocol, &SockRef::from(endpoint));
                let is_silent =
                    |end| platform.is_silent(&SockRef::from(end), shared.config.dead_after);
                if is_silent(client) || is_silent(endpoint) {
                    return Poll::Ready(Ending::Failed);
                }
            }
        }
        // Each direction has its turn, even if the other takes all of the task's budget.
        up_first = !up_first;
        for is_up in [up_first, !up_first] {
            let (direction, back, from, to) = if is_up {
                (&mut up, &mut down, client, endpoint)
            } else {
                (&mut down, &mut up, endpoint, client)
            };
            if direction.state == State::Moving {
                direction.passes_end_on = back.state != State::Ended;
                let moved = direction.poll(cx, shared, has_pipes, from, to);
                if is_up && mem::take(&mut is_in_handshake) {
                    let _ = platform.end_handshake(&SockRef::from(endpoint));
                }
                match moved {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) if direction.gone == Some(Gone::Cut) => {
                        return Poll::Ready(Ending::Failed);
                    }
                    Poll::Ready(Ok(())) => {
                        direction.state = State::Ended;
                        // At the end of both directions, the sockets are closed.
                        if direction.passes_end_on {
                            // An error means that the other end is gone, which its own direction
                            // notices.
                            let _ = SockRef::from(to).shutdown(Shutdown::Write);
                        }
                    }
                    // The end that is gone may have sent something before, which is still to be
                    // passed on.
                    Poll::Ready(Err(Failed::Write(gone))) => {
                        direction.state = State::Broken;
                        back.gone.get_or_insert(gone);
                    }
                    Poll::Ready(Err(Failed::Read)) => return Poll::Ready(Ending::Failed),
                }
            }
            let watch = &mut watches[usize::from(is_up)];
            if direction.gone.is_some() || !direction.is_waiting() {
                *watch = None;
                continue;
            }
            let watch = watch.get_or_insert_with(|| {
                Box::pin(async {
                    let _ = from.ready(Interest::ERROR).await;
                })
            });
            if watch.as_mut().poll(cx).is_ready() {
                let error = from.take_error().ok().flatten();
                let gone = error.map_or(Gone::Cut, |error| gone(platform, &error));
                if direction.state == State::Moving && gone == Gone::Cut {
                    return Poll::Ready(Ending::Failed);
                }
                direction.gone = Some(gone);
            }
        }
        let complete = Ending::Complete { is_client_first: up.passes_end_on };
        match (up.state, down.state) {
            (State::Ended, State::Ended) => Poll::Ready(complete),
            (State::Ended, _) | (_, State::Ended) if protocol == Protocol::Sctp => {
                Poll::Ready(complete)
            }
            (State::Ended, _) if up.gone.is_some() => Poll::Ready(Ending::ClientGone),
            (_, State::Ended) if down.gone.is_some() => Poll::Ready(Ending::EndpointGone),
            (State::Broken, State::Broken) => Poll::Ready(Ending::Failed),
            _ => Poll::Pending,
        }
    })
    .await
}

fn gone(platform: &dyn Platform, error: &io::Error) -> Gone {
    if platform.is_after_end(error) { Gone::Complete } else { Gone::Cut }
}

impl Direction {
    /// Whether nothing is read now: everything was, or the end that receives has to take something
    /// first.
    fn is_waiting(&self) -> bool {
        let is_blocked =
            !self.kept.is_empty() || self.splice.as_ref().is_some_and(|s| s.filled > 0);
        self.state == State::Ended || self.state == State::Moving && is_blocked
    }

    /// Moves what there is to move. Is ready when the sender has closed and everything was moved.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        has_pipes: bool,
        from: &TcpStream,
        to: &TcpStream,
    ) -> Poll<Result<(), Failed>> {
        let failed = |error| Failed::Write(gone(&*shared.platform, &error));
        let mut moved = 0;
        loop {
            ready!(self.flush(cx, &*shared.platform, to)).map_err(failed)?;
            if let Some(last) = self.last.take() {
                return Poll::Ready(last);
            }
            if moved >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let read = if has_pipes && self.use_pipe(shared) {
                self.fill(cx, shared, from)
            } else {
                self.copy(cx, &*shared.platform, from, to)
            };
            match ready!(read)? {
                Progress::Bytes(bytes) => {
                    moved += bytes;
                    let counted = if self.is_up { Counted::BytesIn } else { Counted::BytesOut };
                    shared.counters.add(counted, bytes as u64);
                }
                Progress::End => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Whether the next bytes go through a pipe, which is there then, and empty.
    fn use_pipe(&mut self, shared: &Shared) -> bool {
        if self.bulk < BULK {
            if let Some(Splice { pooled, .. }) = self.splice.take() {
                shared.pipes.give_back(pooled);
            }
            return false;
        }
        if self.splice.is_none() {
            match shared.pipes.lend(&*shared.platform, &shared.slots) {
                Some(pooled) => self.splice = Some(Splice { pooled, filled: 0 }),
                // There may be one after as much again.
                None => self.bulk = 0,
            }
        }
        self.splice.is_some()
    }

    /// Takes bytes into the pipe. When there are none, the pipe is given back.
    fn fill(
        &mut self,
        cx: &mut Context<'_>,
        shared: &Shared,
        from: &TcpStream,
    ) -> Poll<Result<Progress, Failed>> {
        let Some(Splice { pooled, .. }) = self.splice.take() else {
            return Poll::Ready(Ok(Progress::Bytes(0)));
        };
        let socket = SockRef::from(from);
        let kept = &mut self.kept;
        let fill = || match pooled.pipe.fill(&socket) {
            // At urgent data, splice(2) returns that there is nothing, or that this is the end.
            nothing if matches!(&nothing, Ok(0)) || is_nothing(&nothing) => with_buffer(|buffer| {
                let read = (&*socket).read(buffer)?;
                kept.extend_from_slice(&buffer[..read]);
                Ok(read)
            }),
            filled => filled,
        };
        let ready = || from.poll_read_ready(cx);
        match poll_io(from, Interest::READABLE, 0, ready, fill) {
            Poll::Ready(Ok(filled @ 1..)) => {
                if filled < SMALL {
                    self.bulk = 0;
                }
                if self.kept.is_empty() {
                    self.splice = Some(Splice { pooled, filled });
                } else {
                    shared.pipes.give_back(pooled);
                }
                Poll::Ready(Ok(Progress::Bytes(filled)))
            }
            Poll::Ready(Err(error)) if shared.pipes.are_useless(&error) => {
                Poll::Ready(Ok(Progress::Bytes(0)))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Failed::Read)),
            Poll::Ready(Ok(_)) => {
                shared.pipes.give_back(pooled);
                Poll::Ready(Ok(Progress::End))
            }
            Poll::Pending => {
                shared.pipes.give_back(pooled);
                Poll::Pending
            }
        }
    }

    /// Copies bytes. What the other end does not take is kept. The end, if it has come as well, can
    /// so go with the last bytes.
    fn copy(
        &mut self,
        cx: &mut Context<'_>,
        platform: &dyn Platform,
        from: &TcpStream,
        to: &TcpStream,
    ) -> Poll<Result<Progress, Failed>> {
        with_buffer(|buffer| {
            let read = poll_read(cx, platform, from, buffer, &mut self.message);
            let mut read = ready!(read).map_err(|_| Failed::Read)?;
            if read == 0 {
                return Poll::Ready(Ok(Progress::End));
            }
            while self.message.is_none() && self.last.is_none() && read < buffer.len() {
                match from.try_read(&mut buffer[read..]) {
                    Ok(0) => self.last = Some(Ok(())),
                    Ok(more) => read += more,
                    nothing if is_nothing(&nothing) => break,
                    Err(_) => self.last = Some(Err(Failed::Read)),
                }
            }
            let is_last =
                matches!(self.last, Some(Ok(()))) && self.passes_end_on && self.gone.is_none();
            self.bulk = BULK.min(self.bulk + read);
            if self.is_up && self.bulk == BULK {
                // The other direction has the option of the listener.
                let _ = platform.limit_unsent(&SockRef::from(to));
            }
            let mut rest = &buffer[..read];
            while !rest.is_empty() {
                match poll_write(cx, platform, to, rest, self.message, is_last) {
                    Poll::Ready(Ok(written)) => rest = &rest[written..],
                    Poll::Ready(Err(error)) => {
                        return Poll::Ready(Err(Failed::Write(gone(platform, &error))));
                    }
                    // The error is read, so that nothing else shows it.
                    Poll::Pending if matches!(self.last, Some(Err(_))) => {
                        return Poll::Ready(Err(Failed::Read));
                    }
                    Poll::Pending => {
                        self.kept = rest.to_vec();
                        self.written = 0;
                        break;
                    }
                }
            }
            Poll::Ready(Ok(Progress::Bytes(read)))
        })
    }

    /// Writes what was kept, or is in the pipe.
    fn flush(
        &mut self,
        cx: &mut Context<'_>,
        platform: &dyn Platform,
        to: &TcpStream,
    ) -> Poll<io::Result<()>> {
        while self.written < self.kept.len() {
            let rest = &self.kept[self.written..];
            self.written += ready!(poll_write(cx, platform, to, rest, self.message, false))?;
        }
        if !self.kept.is_empty() {
            self.kept = Vec::new();
            self.written = 0;
        }
        if let Some(Splice { pooled, filled }) = &mut self.splice {
            let socket = SockRef::from(to);
            while *filled > 0 {
                let drained = poll_io(
                    to,
                    Interest::WRITABLE,
                    0,
                    || to.poll_write_ready(cx),
                    || pooled.pipe.drain(&socket, *filled),
                );
                *filled -= match ready!(drained)? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    drained => drained,
                };
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    #[cfg(target_os = "linux")]
    use test_netns::wait::{PATIENCE, scaled};
    #[cfg(target_os = "linux")]
    use tokio::time::timeout;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::forwarder::shared::ForwarderConfig;
    #[cfg(target_os = "linux")]
    use crate::forwarder::testing::packets_in;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (one, listener.accept().await.unwrap().0)
    }

    /// Sends pieces from one end to the other, each as soon as the last has arrived, and returns
    /// how many pipes were idle after each.
    async fn idle_pipes_after(pieces: &[usize], most: Option<usize>) -> Vec<usize> {
        let config = ForwarderConfig { connections: most, ..ForwarderConfig::default() };
        let shared = Arc::new(Shared::new(config));
        let (mut client, a) = pair().await;
        let (b, mut endpoint) = pair().await;
        let copied = Arc::clone(&shared);
        let copying =
            tokio::spawn(async move { copy(&copied, Protocol::Tcp, &a, &b, Vec::new()).await });
        let mut idle = Vec::new();
        for (i, size) in pieces.iter().enumerate() {
            let (sent, mut received) = (vec![i as u8 + 1; *size], vec![0; *size]);
            let both = (client.write_all(&sent), endpoint.read_exact(&mut received));
            let (written, read) = tokio::join!(both.0, both.1);
            written.unwrap();
            read.unwrap();
            assert!(sent == received);
            // The one thread runs everything that is ready before it comes back here.
            sleep(Duration::from_millis(1)).await;
            idle.push(shared.pipes.idle());
        }
        drop((client, endpoint));
        assert!(matches!(copying.await.unwrap(), Ending::Complete { .. }));
        let sent = pieces.iter().sum::<usize>() as u64;
        assert_eq!(shared.counters.get(Counted::BytesIn), sent);
        idle
    }

    #[tokio::test]
    #[cfg_attr(not(target_os = "linux"), ignore = "only Linux has pipes to splice")]
    async fn bulk_goes_through_a_pipe_that_is_given_back() {
        assert_eq!(
            idle_pipes_after(&[1000, 1000, 2 * BULK, 1000, BULK], None).await,
            [0, 0, 1, 1, 1]
        );
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn the_last_bytes_go_with_the_end() {
        let shared = Shared::new(ForwarderConfig::default());
        let (mut client, a) = pair().await;
        let (b, mut endpoint) = pair().await;
        endpoint.write_all(b"answer").await.unwrap();
        endpoint.shutdown().await.unwrap();
        while !b.ready(Interest::READABLE).await.unwrap().is_read_closed() {
            tokio::task::yield_now().await;
        }
        let before = packets_in(&client);
        let received = async {
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"answer");
            assert_eq!(packets_in(&client) - before, 1);
            drop((client, endpoint));
        };
        let copied = copy(&shared, Protocol::Tcp, &a, &b, Vec::new());
        assert!(matches!(tokio::join!(copied, received).0, Ending::Complete { .. }));
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_reset_behind_bytes_that_are_not_taken_ends_the_connection() {
        let shared = Shared::new(ForwarderConfig::default());
        let (mut client, a) = pair().await;
        let (b, _endpoint) = pair().await;
        while b.try_write(&[0; BULK]).is_ok() {}
        client.write_all(b"last").await.unwrap();
        a.readable().await.unwrap();
        // The event loop learns of the reset after the error was read.
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let copied = copy(&shared, Protocol::Tcp, &a, &b, Vec::new());
        assert_eq!(timeout(scaled(PATIENCE), copied).await, Ok(Ending::Failed));
    }

    #[tokio::test]
    async fn without_a_pipe_bulk_is_copied() {
        assert_eq!(idle_pipes_after(&[20 * BULK, 20 * BULK], Some(2)).await, [0, 0]);
    }
}
