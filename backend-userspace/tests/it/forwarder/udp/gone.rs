//! Clients that are gone.

use std::net::UdpSocket;

use test_netns::{in_namespace, run};

use super::*;
use crate::forwarder::support::{forwarder, until};

/// Datagrams to a neighbour that does not answer wait for its hardware address, and fill the send
/// buffer of the listener.
#[test]
fn clients_that_are_gone_take_no_answers_from_others() {
    in_namespace(|| {
        run("ip link set lo up");
        run("ip link add br7 type bridge");
        run("ip link set br7 up");
        run("ip addr add 192.0.2.1/24 dev br7");
        let forwarder = forwarder(|_| {});
        let (endpoint, at) = bind();
        let at = serve_at(&forwarder, port(&[at]), |listener| {
            listener.address = "192.0.2.1:0".parse().unwrap();
        });
        for client in ["192.0.2.7", "192.0.2.8", "192.0.2.9"] {
            run(&format!("ip addr add {client}/32 dev lo"));
            let gone = UdpSocket::bind(format!("{client}:0")).unwrap();
            gone.send_to(b"?", at).unwrap();
            let (_, flow) = endpoint.recv_from(&mut [0; 16]).unwrap();
            run(&format!("ip addr del {client}/32 dev lo"));
            for _ in 0..1000 {
                endpoint.send_to(&[7; 200], flow).unwrap();
            }
            let is_awaited = || !run(&format!("ip neigh show to {client}")).is_empty();
            until("the neighbour is asked for", is_awaited);
        }
        let other = Client::new(1, at);
        for _ in 0..9 {
            other.send("?");
            let (_, flow) = endpoint.recv_from(&mut [0; 16]).unwrap();
            endpoint.send_to(b"a", flow).unwrap();
            assert_eq!(other.receive(), "a");
        }
    });
}
