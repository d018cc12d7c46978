//! UDP flows: the datagrams of a client, and the answers.
//!
//! The listener's task receives what clients send, and sends it on by the flow's own socket, which
//! is connected to the flow's endpoint. Each flow has a small task that sends answers back. Nothing
//! waits for a socket that cannot take a datagram now: the datagram is dropped, as routers do.

mod buffer;
mod flow;
mod flows;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use socket2::SockRef;
use tokio::{
    net::UdpSocket,
    select,
    sync::mpsc,
    task::yield_now,
    time::{MissedTickBehavior, interval},
};

use self::{buffer::with_buffer, flows::Flows};
use crate::{counters::Counted, shared::OpenListener};

/// The number of datagrams that are received before anything else is looked at.
const AT_ONCE: usize = 64;

/// The interval at which flows are looked at, at least, to see which are idle.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Serves a listener. The future does not end; when it is dropped, flows end.
pub(crate) async fn serve(open: Arc<OpenListener>, socket: UdpSocket) {
    let size = open.shared.receive_buffer();
    open.shared.platform.set_receive_buffer(&SockRef::from(&socket), size);
    let socket = CloseOnDrop(Some(Arc::new(socket)));
    let Some(listener) = &socket.0 else { return };
    let (failures, mut failed) = mpsc::unbounded_channel();
    let mut flows = Flows::new(&open, listener, failures);
    let mut port = Arc::clone(&open.serving().port);
    let mut changes = port.changes();
    let idle = open.shared.config.udp_idle;
    let mut tick = interval((idle / 4).clamp(Duration::from_millis(1), LONGEST_TICK));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select! {
            _ = listener.readable() => {
                if receive(&open, listener, &mut flows) == AT_ONCE {
                    // Otherwise answers and other Services wait until no datagram is left.
                    yield_now().await;
                }
            }
            Some(failure) = failed.recv() => flows.endpoint_failed(failure),
            _ = changes.changed() => flows.end_unserved(&port),
            _ = tick.tick(), if !flows.is_empty() => flows.tick(Instant::now(), idle),
        }
        let serving = open.serving();
        if !Arc::ptr_eq(&serving.port, &port) {
            port = Arc::clone(&serving.port);
            changes = port.changes();
            flows.end_unserved(&port);
        }
    }
}

/// Forwards what clients have sent, but no more than [`AT_ONCE`]. Returns how many datagrams that
/// were.
fn receive(open: &OpenListener, listener: &UdpSocket, flows: &mut Flows) -> usize {
    let serving = open.serving();
    with_buffer(|buffer| {
        for received in 0..AT_ONCE {
            match listener.try_recv_from(buffer) {
                Ok((length, client)) if serving.listener.allows(client.ip()) => {
                    flows.forward(&serving, client, &buffer[..length]);
                }
                Ok(_) => open.shared.counters.count(Counted::RefusedSource),
                // Windows reports here that a client did not take an answer.
                Err(error) if is_refusal(&error) => {}
                Err(_) => return received,
            }
        }
        AT_ONCE
    })
}

/// Whether an error reports that an earlier datagram could not be delivered: ICMP, by which IPv6
/// also shows that a firewall forbids it, or on Windows a reset.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        error.kind(),
        ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | PermissionDenied
    )
}

/// The socket of a listener. When the value is dropped, the socket is closed: answers that are
/// being sent keep it open for microseconds, which are waited for, so that the address can be bound
/// again.
struct CloseOnDrop(Option<Arc<UdpSocket>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut socket = self.0.take();
        while let Some(shared) = socket {
            socket = Arc::try_unwrap(shared).err();
            if socket.is_some() {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
