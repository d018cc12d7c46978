//! The future of a listener, which outlives a panic of what serves the listener.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::sleep;

use crate::forwarder::{
    counters::Counted, rate_limit::RateLimit, shared::OpenListener, socket::Socket, tcp, udp,
};

/// The time to wait before a socket is served again.
const PAUSE: Duration = Duration::from_secs(1);

/// A future whose panic is its end.
struct Caught<'a>(Pin<Box<dyn Future<Output = ()> + Send + 'a>>);

impl Future for Caught<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The future is dropped after a panic, and shared state is behind locks that allow for it.
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(()))
    }
}

/// Serves a listener on one thread. A panic ends the flows of that thread: the panic is logged and
/// counted, and the socket served again after a pause. It stays open, so that what comes waits, and
/// the system leads no client of another thread's socket elsewhere. The future does not
/// end.
pub(crate) async fn serve(open: Arc<OpenListener>, socket: Socket) {
    let mut warned = RateLimit::default();
    loop {
        let serving: Pin<Box<dyn Future<Output = ()> + Send + '_>> = match &socket {
            Socket::Stream(socket) => Box::pin(tcp::serve(Arc::clone(&open), socket)),
            Socket::Datagram(socket) => Box::pin(udp::serve(Arc::clone(&open), socket)),
        };
        Caught(serving).await;
        let id = open.serving().port.id().clone();
        if warned.is_due() {
            tracing::error!(
                service = %id.name, address = %open.address,
                "Listener panicked; serving it again"
            );
        }
        open.shared.counters.count(Counted::Restarts);
        open.shared.panicked.add(id);
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        net::{SocketAddr, UdpSocket},
        sync::atomic::{AtomicBool, Ordering},
    };

    use switchyard_core::model::Protocol;
    use test_netns::wait::{PATIENCE, scaled};
    use tokio::runtime::Builder;

    use super::*;
    use crate::forwarder::{
        platform::{self, Platform},
        shared::{ForwarderConfig, Shared},
        socket::Address,
        udp::tests::serving,
    };

    /// A system whose first socket makes the caller panic.
    #[derive(Default)]
    struct Panics(AtomicBool);

    impl Platform for Panics {
        fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<socket2::Socket> {
            assert!(self.0.swap(true, Ordering::Relaxed), "a panic of a test");
            platform::current().socket(protocol, address)
        }
    }

    #[test]
    fn a_listener_that_panics_keeps_its_socket_and_is_reported() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let mut shared = Shared::new(ForwarderConfig::default());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = Socket::bind(&shared, Protocol::Udp, any, Address::Own).unwrap();
        shared.platform = Box::new(Panics::default());
        let shared = Arc::new(shared);
        let endpoint = UdpSocket::bind(any).unwrap();
        let address = socket.address().unwrap();
        let serving = serving(&[endpoint.local_addr().unwrap()], address);
        let open = OpenListener::new(&shared, address, serving, None);
        let serving = runtime.spawn(serve(Arc::new(open), socket));
        let client = UdpSocket::bind(any).unwrap();
        client.send_to(b"?", address).unwrap();
        runtime.block_on(shared.panicked.added());
        assert_eq!(shared.panicked.take().count(), 1);
        assert_eq!(shared.counters.get(Counted::Restarts), 1);
        // Waits in the socket until that is served again.
        client.send_to(b"!", address).unwrap();
        endpoint.set_read_timeout(Some(scaled(PATIENCE))).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(endpoint.recv(&mut buffer).map(|length| &buffer[..length]).unwrap(), b"!");
        serving.abort();
    }
}
