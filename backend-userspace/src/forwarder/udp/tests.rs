//! Datagrams, and the flows that they belong to.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use socket2::Socket;
use switchyard_core::model::Protocol;
use test_netns::wait::{PATIENCE, scaled};
use tokio::{runtime::Builder, time::timeout};

use super::*;
use crate::forwarder::{
    platform::Platform,
    shared::{BUFFER, ForwarderConfig, Serving, Shared},
    testing::{self, resolved},
};

/// The target of a listener at `address`, with these endpoints.
pub(crate) fn serving(endpoints: &[SocketAddr], address: SocketAddr) -> Serving {
    testing::serving(resolved(Protocol::Udp, endpoints), address)
}

#[test]
fn other_tasks_have_their_turn_before_all_datagrams_are_received() {
    // What fits into the buffer of a socket that has the system's default size.
    const COUNT: usize = 3 * AT_ONCE;
    let shared = Arc::new(Shared::new(ForwarderConfig::default()));
    let socket = || {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        shared.platform.set_buffers(&SockRef::from(&socket), BUFFER);
        socket
    };
    let (endpoint, listener, client) = (socket(), socket(), socket());
    let address = listener.local_addr().unwrap();
    for _ in 0..COUNT {
        client.send_to(b"x", address).unwrap();
    }
    let serving = serving(&[endpoint.local_addr().unwrap()], address);
    let open = Arc::new(OpenListener::new(&shared, address, serving, None));
    let turns = Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let listener = Arc::new(UdpSocket::from_std(listener).unwrap());
        let served = tokio::spawn(async move { serve(open, &listener).await });
        let count_turns = async {
            let (mut received, mut turns) = (0, 0);
            while received < COUNT {
                yield_now().await;
                let before = received;
                while endpoint.recv(&mut [0; 8]).is_ok() {
                    received += 1;
                }
                turns += usize::from(received > before);
            }
            turns
        };
        let turns = timeout(scaled(PATIENCE), count_turns).await.expect("all datagrams arrive");
        served.abort();
        turns
    });
    assert!(turns >= COUNT / AT_ONCE, "{turns}");
}

/// A system that lets no socket receive, and how often one has tried.
struct Forbidding(Arc<AtomicUsize>);

impl Platform for Forbidding {
    fn receive_datagrams(&self, _: &Socket, _: &mut Receiving) -> io::Result<bool> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_listener_that_cannot_receive_does_not_hold_up_its_thread() {
    let tries = Arc::<AtomicUsize>::default();
    let mut shared = Shared::new(ForwarderConfig::default());
    shared.platform = Box::new(Forbidding(Arc::clone(&tries)));
    let (sender, logged) = std::sync::mpsc::channel();
    // A thread of its own, which a task that never waits would not leave.
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let serve_a_while = async {
            let listener = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let address = listener.local_addr().unwrap();
            let open = OpenListener::new(&Arc::new(shared), address, serving(&[], address), None);
            let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            client.send_to(b"x", address).await.unwrap();
            let served = tokio::spawn(async move { serve(Arc::new(open), &listener).await });
            while tries.load(Ordering::Relaxed) < 2 {
                yield_now().await;
            }
            served.abort();
        };
        sender.send(testing::warnings(|| runtime.block_on(serve_a_while))).unwrap();
    });
    let logged = logged.recv_timeout(scaled(PATIENCE)).expect("others have their turn");
    assert!(matches!(&logged[..], [warning] if warning.contains("Receive failed")), "{logged:?}");
}

/// No endpoint is to blame for what this node drops, as with a full table of conntrack.
#[cfg(unix)]
#[test]
fn errors_are_refusals_if_another_host_sends_them() {
    for (error, is_of_endpoint) in [
        (libc::ECONNREFUSED, true),
        (libc::EHOSTUNREACH, true),
        (libc::EACCES, true),
        (libc::EPERM, false),
        (libc::ENOBUFS, false),
    ] {
        let error = io::Error::from_raw_os_error(error);
        assert_eq!(is_refusal(&error), is_of_endpoint, "{error}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_turn_is_bounded_in_datagrams_rather_than_in_buffers() {
    // Each buffer has two datagrams.
    const BUFFERS: usize = AT_ONCE;
    let shared = Arc::new(Shared::new(ForwarderConfig::default()));
    let endpoint = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listener = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    shared.platform.receive_together(&SockRef::from(&*listener));
    let address = listener.local_addr().unwrap();
    let serving = || serving(&[endpoint.local_addr().unwrap()], address);
    let open = OpenListener::new(&shared, address, serving(), None);
    let mut flows = Flows::new(&open, &listener, mpsc::unbounded_channel().0);
    let (client, two): (_, [&[u8]; 2]) = (SockRef::from(&client), [b"x", b"y"]);
    for _ in 0..BUFFERS {
        shared.platform.send_datagrams(&client, Some(&address.into()), &two, 1).unwrap();
    }
    for _ in 0..2 {
        listener.readable().await.unwrap();
        assert_eq!(receive(&open, &listener, &mut flows).unwrap(), AT_ONCE);
    }
}
