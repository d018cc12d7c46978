//! The future of a listener, which outlives a panic of what serves the listener.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use switchyard_core::error::ErrorChain;
use tokio::time::sleep;

use crate::forwarder::{
    counters::Counted,
    rate_limit::RateLimit,
    shared::{OpenListener, Sharing},
    socket::{Address, Socket},
    tcp, udp,
};

/// The time to wait before a socket is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// A future whose panic is its end.
struct Caught(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Future for Caught {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // The future is dropped after a panic, and shared state is behind locks that allow for it.
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context)));
        polled.unwrap_or(Poll::Ready(()))
    }
}

/// Serves a listener on one thread. A panic ends the flows of that thread: the panic is logged and
/// counted, and the socket is opened again after a pause. Where other threads have sockets at the
/// address, the system leads some of their clients of UDP elsewhere for the pause, where these get
/// other flows. The future does not end.
pub(crate) async fn serve(open: Arc<OpenListener>, mut socket: Socket) {
    let mut warned = RateLimit::default();
    loop {
        let serving: Pin<Box<dyn Future<Output = ()> + Send>> = match socket {
            Socket::Stream(socket) => Box::pin(tcp::serve(Arc::clone(&open), socket)),
            Socket::Datagram(socket) => Box::pin(udp::serve(Arc::clone(&open), socket)),
        };
        Caught(serving).await;
        let id = open.serving().port.id().clone();
        let (shared, name) = (&open.shared, id.name.clone());
        if warned.is_due() {
            tracing::error!(
                service = %name, address = %open.address,
                "Listener panicked; opening its socket again"
            );
        }
        shared.counters.count(Counted::Restarts);
        shared.panicked.add(id);
        socket = loop {
            sleep(PAUSE).await;
            let how = match open.sharing {
                Sharing::Sockets => Address::Shared,
                Sharing::Alone | Sharing::Connections(_) => Address::Own,
            };
            match Socket::bind(shared, name.protocol, open.address, how) {
                Ok(socket) => break socket,
                Err(error) => {
                    tracing::debug!(service = %name, err = %ErrorChain(&error), "Cannot listen");
                }
            }
        };
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
    use tokio::runtime::Builder;

    use super::*;
    use crate::forwarder::{
        platform::{self, Platform},
        shared::{ForwarderConfig, Shared},
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
    fn a_listener_that_panics_is_opened_again_and_reported() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let mut shared = Shared::new(ForwarderConfig::default());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = Socket::bind(&shared, Protocol::Udp, any, Address::Own).unwrap();
        shared.platform = Box::new(Panics::default());
        let shared = Arc::new(shared);
        let endpoint = UdpSocket::bind(any).unwrap();
        let address = socket.address().unwrap();
        let serving = serving([endpoint.local_addr().unwrap()], address);
        let open = OpenListener::new(&shared, address, serving, Sharing::Alone);
        let serving = runtime.spawn(serve(Arc::new(open), socket));
        let client = UdpSocket::bind(any).unwrap();
        client.send_to(b"?", address).unwrap();
        runtime.block_on(shared.panicked.added());
        assert_eq!(shared.panicked.take().len(), 1);
        assert_eq!(shared.counters.get(Counted::Restarts), 1);
        // The socket is not there at once.
        endpoint.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let arrives = || {
            let _ = client.send_to(b"!", address);
            endpoint.recv(&mut [0; 16]).is_ok()
        };
        test_netns::wait::until("datagrams arrive again", arrives);
        serving.abort();
    }
}
