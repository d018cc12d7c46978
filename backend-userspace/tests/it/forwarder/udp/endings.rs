//! Endings of flows.

use std::{sync::Arc, time::Duration};

use switchyard_core::model::Protocol;

use super::*;
use crate::forwarder::support::{forwarder, id, listener, pool, service, until};

#[test]
fn idle_flows_end() {
    let forwarder = forwarder(|config| config.udp_idle = Duration::from_secs(1));
    let address = serve(&forwarder, port(&[echo("a"), echo("b")]));
    let client = Client::new(1, address);
    let first = client.ask();
    until("the flow ends", || forwarder.usage().connections == 0);
    assert_ne!(client.ask(), first, "a new flow");
}

#[test]
fn questions_that_are_all_answered_keep_a_place_for_a_shorter_time() {
    let forwarder = forwarder(|config| config.udp_idle = Duration::from_secs(6));
    let (endpoint, at) = bind();
    let address = serve(&forwarder, port(&[at]));
    let (pair, waiting) = (Client::new(1, address), Client::new(1, address));
    let receive = || endpoint.recv_from(&mut [0; 16]).unwrap().1;
    waiting.send("?");
    let flow = receive();
    // Both addresses of a name, from one socket.
    pair.send("A");
    pair.send("AAAA");
    for _ in 0..2 {
        endpoint.send_to(b"a", receive()).unwrap();
        pair.receive();
    }
    until("the questions are forgotten", || forwarder.usage().connections == 1);
    endpoint.send_to(b"late", flow).unwrap();
    assert_eq!(waiting.receive(), "late", "the flow that waits has its place");
}

#[test]
fn flows_end_when_their_endpoints_serve_no_longer() {
    let forwarder = forwarder(|_| {});
    let [a, b, c] = ["a", "b", "c"].map(echo);
    let address = serve(&forwarder, port(&[a, b]));
    let clients = [Client::new(1, address), Client::new(1, address)];
    let asked = [0, 1].map(|i| clients[i].ask());
    let of = |name: &str| &clients[asked.iter().position(|asked| asked == name).unwrap()];

    let mut changed = port(&[c]);
    changed.draining = pool(&[b]);
    forwarder.serve(&Arc::new(changed));
    until("the flow ends", || forwarder.usage().connections == 1);
    assert_eq!(of("b").ask(), "b", "an endpoint that drains keeps its flows");
    assert_eq!(of("a").ask(), "c");

    forwarder.serve(&Arc::new(port(&[])));
    until("all flows end", || forwarder.usage().connections == 0);
    of("a").send("?");
    assert!(of("a").is_silent());
}

#[test]
fn flows_end_with_their_listener_whose_address_is_free_then() {
    let forwarder = forwarder(|_| {});
    let mut address = serve(&forwarder, port(&[echo("a")]));
    for round in 0..20 {
        let client = Client::new(1, address);
        assert_eq!(client.ask(), "a");
        client.send("an answer to this may be on its way");
        if round % 2 == 0 {
            assert_eq!(forwarder.close([(Protocol::Udp, address)]), 1);
        } else {
            forwarder.remove(&[&id("dns", Protocol::Udp)].into());
        }
        drop(UdpSocket::bind(address).expect("the address is free"));
        assert_eq!(forwarder.usage().connections, 0);
        address = serve_at(&forwarder, port(&[echo("a")]), |l| l.address = address);
    }
}

#[test]
fn flows_end_when_another_service_port_gets_the_address() {
    let forwarder = forwarder(|_| {});
    let address = serve(&forwarder, port(&[echo("a")]));
    let client = Client::new(1, address);
    assert_eq!(client.ask(), "a");
    let other = id("other", Protocol::Udp);
    forwarder.serve(&Arc::new(service(&other, &[echo("b")])));
    let mut changed = listener(&other);
    changed.address = address;
    assert_eq!(forwarder.listen(&changed).unwrap(), address);
    assert_eq!(client.ask(), "b");
    assert_eq!(forwarder.usage().connections, 1);
}
