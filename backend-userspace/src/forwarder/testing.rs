//! Service ports of unit tests, and what is logged.

use std::{
    fmt::{Debug, Write},
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use switchyard_core::{
    model::Protocol,
    state::{Action, Masquerade, PoolKind, ResolvedServicePort},
    testing::{port_id, resolved_port},
};
use tracing::{Event, Level, Metadata, Subscriber, field::Field, span, subscriber::with_default};

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
    let logged = Arc::<Mutex<Vec<String>>>::default();
    with_default(Log(Arc::clone(&logged)), work);
    mem::take(&mut *logged.lock().unwrap())
}

struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            let _ = write!(text, "{field}={value:?} ");
        });
        self.0.lock().unwrap().push(text);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
