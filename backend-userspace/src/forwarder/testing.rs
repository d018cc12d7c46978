//! Service ports of unit tests, and what is logged.

use std::{
    io::{self, Write},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use switchyard_core::{
    model::Protocol,
    state::{Action, Masquerade, PoolKind, ResolvedServicePort},
    testing::{port_id, resolved_port},
};
use tracing::{Level, subscriber::with_default};

use crate::forwarder::{listener::Listener, port::Port, shared::Serving};

/// A Service port with these endpoints, which take turns.
pub(crate) fn resolved(protocol: Protocol, endpoints: &[SocketAddr]) -> ResolvedServicePort {
    resolved_port(&port_id("web", protocol), endpoints)
}

/// The target of a listener at `address` that serves a Service port to all clients.
pub(crate) fn serving(resolved: ResolvedServicePort, address: SocketAddr) -> Serving {
    let action = Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always };
    let port = resolved.id.clone();
    let listener = Listener { port, address, action, allowed_sources: None };
    Serving { port: Arc::new(Port::new(&Arc::new(resolved), &Arc::default())), listener }
}

/// Returns the number of packets that have come for a socket of TCP.
#[cfg(target_os = "linux")]
pub(crate) fn packets_in(socket: &impl std::os::fd::AsRawFd) -> u32 {
    crate::forwarder::platform::options::tcp_info(socket).unwrap().tcpi_segs_in
}

/// Returns the warnings that this thread logs meanwhile, each with its fields.
pub(crate) fn warnings(work: impl FnOnce()) -> Vec<String> {
    let logged = Logged::default();
    let writer = logged.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::WARN);
    with_default(subscriber.with_writer(move || writer.clone()).finish(), work);
    let text = logged.0.lock().unwrap();
    String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
}

/// The text of what is logged.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
