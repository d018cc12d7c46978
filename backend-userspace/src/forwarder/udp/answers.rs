//! The answers of a flow's endpoint, which a task of the flow's own sends to the client.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use socket2::{SockAddr, SockRef};
use tokio::{io::Interest, net::UdpSocket, sync::mpsc::UnboundedSender};

use super::{
    buffer::{try_receive, with_buffer},
    is_dropped, is_refusal,
    send::{bytes, send},
};
use crate::forwarder::{
    counters::Counted, platform::Receiving, port::Port, shared::Shared, source_ports::SourcePort,
};

/// The number of answers that are sent before other tasks of the thread have their turn.
const AT_ONCE: usize = 64;

/// The endpoint of a client's flow did not take a datagram.
pub(super) struct Failure {
    pub(super) client: SocketAddr,
    /// The number of the client's endpoint: the number of its [`Upstream`].
    pub(super) upstream: u64,
}

/// A socket with its port, which is free again once both tasks have dropped the socket.
pub(super) struct Connected {
    pub(super) socket: UdpSocket,
    pub(super) _port: Option<SourcePort>,
}

/// The datagrams of a flow, as its two tasks show each other.
#[derive(Default)]
pub(super) struct Activity {
    /// Whether a datagram was seen since the last look.
    pub(super) is_used: AtomicBool,
    /// Whether the last datagram has had no answer.
    pub(super) is_awaited: AtomicBool,
    pub(super) answers: AtomicU64,
    /// Whether the socket is of no use any more.
    pub(super) is_broken: AtomicBool,
    /// Whether the ways to the endpoint and to the client take datagrams one by one only.
    pub(super) is_single_in: AtomicBool,
    pub(super) is_single_out: AtomicBool,
}

/// The answers that may be left after some were sent.
enum Rest {
    Nothing,
    More,
    /// The listener is closed, the endpoint refuses, or the socket is broken.
    Over,
}

/// Sends the answers of an endpoint to the client.
pub(super) struct Answers {
    pub(super) listener: Weak<UdpSocket>,
    pub(super) shared: Arc<Shared>,
    pub(super) failures: UnboundedSender<Failure>,
    pub(super) port: Arc<Port>,
    pub(super) socket: Arc<Connected>,
    pub(super) activity: Arc<Activity>,
    pub(super) client: SockAddr,
    pub(super) failure: Failure,
    pub(super) endpoint: SocketAddr,
}

impl Answers {
    pub(super) async fn run(self) {
        // An error without a datagram does not make a socket readable.
        const INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);
        let mut come_together = false;
        while self.socket.socket.ready(INTEREST).await.is_ok() {
            let rest = with_buffer(|buffer| {
                let mut count = 0;
                while count < AT_ONCE {
                    match self.receive(buffer) {
                        Ok(()) if self.send(buffer) => {
                            count += buffer.count();
                            // Most flows have a single answer, which would not be worth the call.
                            if !come_together && buffer.received.len() > 1 {
                                let socket = SockRef::from(&self.socket.socket);
                                self.shared.platform.receive_together(&socket);
                                come_together = true;
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            return Rest::Nothing;
                        }
                        Ok(()) => return Rest::Over,
                        Err(error) if is_refusal(&error) => return Rest::Over,
                        Err(error) if self.is_passing(&error) => count += 1,
                        Err(_) => {
                            self.activity.is_broken.store(true, Ordering::Relaxed);
                            return Rest::Over;
                        }
                    }
                }
                Rest::More
            });
            match rest {
                Rest::Nothing => {}
                // A socket that stays ready is never waited for: others have their turn.
                Rest::More => tokio::task::yield_now().await,
                Rest::Over => break,
            }
        }
        // If the listener is closed, no one is interested.
        let _ = self.failures.send(self.failure);
    }

    fn receive(&self, buffer: &mut Receiving) -> io::Result<()> {
        let (platform, socket) = (&*self.shared.platform, &self.socket.socket);
        // Each on its own: Tokio never tries when it is asked for two interests at once.
        match try_receive(platform, socket, Interest::READABLE, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                try_receive(platform, socket, Interest::ERROR, buffer)
            }
            result => result,
        }
    }

    /// Whether an error may be over with the next call. One that forbids to receive is not.
    fn is_passing(&self, error: &io::Error) -> bool {
        self.shared.platform.is_passing(error) && !is_dropped(error)
    }

    /// Sends the answers that were received. Returns whether the listener is open.
    fn send(&self, received: &Receiving) -> bool {
        let mut answers = received.received.iter().flat_map(|part| received.datagrams(part));
        match (answers.next(), answers.next()) {
            (Some(only), None) => self.send_all(&[only]),
            (first, second) => {
                let all: Vec<&[u8]> = first.into_iter().chain(second).chain(answers).collect();
                self.send_all(&all)
            }
        }
    }

    fn send_all(&self, answers: &[&[u8]]) -> bool {
        let Shared { platform, counters, .. } = &*self.shared;
        let count = answers.len() as u64;
        self.activity.is_used.store(true, Ordering::Relaxed);
        self.activity.is_awaited.store(false, Ordering::Release);
        if self.activity.answers.fetch_add(count, Ordering::AcqRel) == 0 {
            self.port.succeeded(self.endpoint);
        }
        let Some(listener) = self.listener.upgrade() else { return false };
        let (socket, is_single) = (SockRef::from(&*listener), &self.activity.is_single_out);
        send(&**platform, &socket, Some(&self.client), answers, is_single, |part, result| {
            match result {
                Ok(()) => {
                    counters.add(Counted::DatagramsOut, part.len() as u64);
                    counters.add(Counted::BytesOut, bytes(part));
                }
                Err(_) => counters.add(Counted::DroppedOut, part.len() as u64),
            }
            true
        });
        true
    }
}
