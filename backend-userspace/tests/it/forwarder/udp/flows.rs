//! Where datagrams go, and answers.

use std::sync::Arc;

use super::*;
use crate::forwarder::support::forwarder;

#[test]
fn a_flow_stays_at_its_endpoint_and_flows_are_spread() {
    let forwarder = forwarder(|_| {});
    let address = serve(&forwarder, port(&[echo("a"), echo("b")]));
    let clients = [Client::new(1, address), Client::new(1, address)];
    let [one, other] = [0, 1].map(|i| clients[i].ask());
    assert_ne!(one, other, "they take turns");
    for _ in 0..10 {
        assert_eq!(clients[0].ask(), one);
        assert_eq!(clients[1].ask(), other);
    }
    assert_eq!(forwarder.usage().connections, 2);
}

#[test]
fn datagrams_of_any_size_pass() {
    let forwarder = forwarder(|_| {});
    let address = serve(&forwarder, port(&[echo("")]));
    let client = Client::new(1, address);
    for size in [0, 1, 1500, 9000, 65_507] {
        let datagram: Vec<u8> = (0..size).map(|i| i as u8).collect();
        client.socket.send_to(&datagram, address).unwrap();
        let mut answer = vec![0; 65_536];
        let length = client.socket.recv(&mut answer).unwrap();
        assert!(answer[..length] == datagram, "{length} of {size} bytes");
    }
}

#[test]
fn bursts_come_back_whole_and_in_order_to_each_client() {
    let forwarder = forwarder(|_| {});
    let address = serve(&forwarder, port(&[echo("")]));
    let clients = [(); 4].map(|()| Client::new(1, address));
    let mut buffer = [0; 2000];
    for round in 0..50 {
        let datagrams = clients.each_ref().map(|client| {
            let port = client.socket.local_addr().unwrap().port();
            let datagram = |i: usize| {
                let size = [1200, 1200, 1200, 1200, 30, 30, 8][(round + i) % 7];
                let mut datagram = format!("{port} {i} ").into_bytes();
                datagram.resize(size.max(datagram.len()), b'x');
                datagram
            };
            (0..16).map(datagram).collect::<Vec<_>>()
        });
        for i in 0..16 {
            for (client, datagrams) in clients.iter().zip(&datagrams) {
                client.socket.send_to(&datagrams[i], address).unwrap();
            }
        }
        for (client, datagrams) in clients.iter().zip(&datagrams) {
            for datagram in datagrams {
                let length = client.socket.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], datagram);
            }
        }
    }
}

#[test]
fn endpoints_may_send_as_many_answers_as_they_like() {
    let forwarder = forwarder(|_| {});
    let (endpoint, at) = bind();
    let address = serve(&forwarder, port(&[at]));
    let client = Client::new(1, address);
    client.send("?");
    let (_, flow) = endpoint.recv_from(&mut [0; 16]).unwrap();
    for i in 0..20 {
        endpoint.send_to(format!("{i}").as_bytes(), flow).unwrap();
        assert_eq!(client.receive(), format!("{i}"));
    }
}

#[test]
fn only_allowed_sources_are_served() {
    let forwarder = forwarder(|_| {});
    let address = serve_at(&forwarder, port(&[echo("a")]), |listener| {
        listener.allowed_sources = Some(Arc::new(["127.0.0.2/32".parse().unwrap()]));
    });
    let (denied, allowed) = (Client::new(1, address), Client::new(2, address));
    denied.send("?");
    assert_eq!(allowed.ask(), "a");
    assert!(denied.is_silent());
    assert_eq!(forwarder.usage().connections, 1);
}
