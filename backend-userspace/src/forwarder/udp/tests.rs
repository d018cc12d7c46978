//! Datagrams, and the flows that they belong to.

use std::net::SocketAddr;

use switchyard_core::model::Protocol;
use test_netns::wait::{PATIENCE, scaled};
use tokio::{runtime::Builder, time::timeout};

use super::*;
use crate::forwarder::{
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
#[test]
fn a_turn_is_bounded_in_datagrams_rather_than_in_buffers() {
    // Each buffer has two datagrams.
    const BUFFERS: usize = AT_ONCE;
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let shared = Arc::new(Shared::new(ForwarderConfig::default()));
    let endpoint = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    runtime.block_on(async {
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
            assert_eq!(receive(&open, &listener, &mut flows), AT_ONCE);
        }
    });
}
