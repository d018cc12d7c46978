//! UDP flows: the datagrams of a client, and the answers.
//!
//! The listener's task receives what clients send, and sends it on by the flow's own socket; each
//! flow has a small task that sends answers back. The system spreads clients over the sockets of
//! threads by their addresses and ports, so that a flow stays in its thread. Nothing waits for a
//! socket that cannot take a datagram now: the datagram is dropped, as routers do.

mod answers;
mod buffer;
mod flow;
mod flows;
mod send;

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use socket2::SockRef;
use switchyard_core::error::ErrorChain;
use tokio::{
    io::Interest,
    net::UdpSocket,
    select,
    sync::mpsc,
    task::yield_now,
    time::{MissedTickBehavior, interval, sleep},
};

use self::{
    buffer::{try_receive, with_buffer},
    flows::Flows,
};
use crate::forwarder::{
    counters::Counted,
    platform::Receiving,
    rate_limit::RateLimit,
    shared::{OpenListener, Serving},
};

/// The number of datagrams that are received before anything else is looked at.
const AT_ONCE: usize = 64;

/// The time to wait for descriptors, memory or ports to become free, or for an error to be over.
const PAUSE: Duration = Duration::from_millis(100);

/// The interval at which flows are looked at, at least, to see which are idle.
const LONGEST_TICK: Duration = Duration::from_secs(1);

/// Serves a listener. The future does not end; when it is dropped, flows end.
pub(crate) async fn serve(open: Arc<OpenListener>, listener: &Arc<UdpSocket>) {
    let size = open.shared.buffer();
    open.shared.platform.set_buffers(&SockRef::from(&**listener), size);
    open.shared.platform.receive_together(&SockRef::from(&**listener));
    let (failures, mut failed) = mpsc::unbounded_channel();
    let mut flows = Flows::new(&open, listener, failures);
    let mut port = Arc::clone(&open.serving().port);
    let mut changes = port.changes();
    let idle = open.shared.config.udp_idle;
    let mut tick = interval((idle / 4).clamp(Duration::from_millis(1), LONGEST_TICK));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut warned = RateLimit::default();
    loop {
        select! {
            _ = listener.readable() => match receive(&open, listener, &mut flows) {
                // Otherwise answers and other Services wait until no datagram is left.
                Ok(AT_ONCE..) => yield_now().await,
                Ok(_) => {}
                // The listener stays readable, and this task would never wait.
                Err(error) => {
                    if warned.is_due() {
                        tracing::warn!(
                            service = %port.id().name, address = %open.address,
                            err = %ErrorChain(&error), "Receive failed; retrying"
                        );
                    }
                    sleep(PAUSE).await;
                }
            },
            Some(failure) = failed.recv() => flows.endpoint_failed(failure),
            Some(wanted) = flows.wanted.recv() => flows.make_room_for(wanted),
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

/// Forwards what clients have sent, until it was [`AT_ONCE`] datagrams or more, by what one call
/// receives. Returns how many that were. An error may last.
fn receive(open: &OpenListener, listener: &UdpSocket, flows: &mut Flows) -> io::Result<usize> {
    let serving = open.serving();
    let platform = &*open.shared.platform;
    with_buffer(|buffer| {
        let mut count = 0;
        while count < AT_ONCE {
            match try_receive(platform, listener, Interest::READABLE, buffer) {
                Ok(()) => {
                    count += buffer.count();
                    forward(open, &serving, buffer, flows);
                }
                // Windows reports here that a client did not take an answer.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => count += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    })
}

fn forward(open: &OpenListener, serving: &Serving, buffer: &mut Receiving, flows: &mut Flows) {
    // Keeps the order of each flow.
    buffer.received.sort_by_key(|received| received.from);
    for of_client in buffer.received.chunk_by(|one, next| one.from == next.from) {
        let Some(client) = of_client[0].from else { continue };
        let mut datagrams = of_client.iter().flat_map(|received| buffer.datagrams(received));
        if !serving.listener.allows(client.ip()) {
            let count = datagrams.count() as u64;
            open.shared.counters.add(Counted::RefusedSource, count);
            continue;
        }
        match (datagrams.next(), datagrams.next()) {
            (Some(only), None) => flows.forward(serving, client, &[only]),
            (first, second) => {
                let all: Vec<&[u8]> = first.into_iter().chain(second).chain(datagrams).collect();
                flows.forward(serving, client, &all);
            }
        }
    }
}

/// Whether an error reports that this node's own firewall drops the datagram at hand, or that
/// conntrack's table is full.
fn is_dropped(error: &io::Error) -> bool {
    const EPERM: i32 = 1;
    error.raw_os_error() == Some(EPERM)
}

/// Whether an error reports that an earlier datagram could not be delivered: ICMP, by which IPv6
/// also shows that a firewall forbids it (`EACCES`), or on Windows a reset.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    !is_dropped(error)
        && matches!(
            error.kind(),
            ConnectionRefused
                | ConnectionReset
                | HostUnreachable
                | NetworkUnreachable
                | PermissionDenied
        )
}

#[cfg(test)]
pub(crate) mod tests;
