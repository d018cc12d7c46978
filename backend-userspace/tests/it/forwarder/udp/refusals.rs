//! Endpoints that do not exist.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::forwarder::support::forwarder;

#[test]
fn a_datagram_that_is_refused_goes_to_the_next_endpoint() {
    let forwarder = forwarder(|_| {});
    let (refusing, others) = (refusing(), refusing());
    let address = serve(&forwarder, port(&[refusing.1, others.1, echo("a")]));
    for _ in 0..6 {
        let client = Client::new(1, address);
        assert_eq!(client.ask(), "a", "though the client sends the datagram once");
        assert_eq!(client.ask(), "a");
    }
}

#[test]
fn the_rest_of_a_burst_that_is_refused_goes_to_the_next_endpoint() {
    let forwarder = forwarder(|_| {});
    let refusing = refusing();
    let address = serve(&forwarder, port(&[refusing.1, echo("")]));
    for _ in 0..4 {
        let client = Client::new(1, address);
        for text in ["1", "2", "3", "4", "5", "6"] {
            client.send(text);
        }
        // A second one may be sent before the refusal of the first is known.
        let mut answers = vec![client.receive()];
        while answers.last().is_some_and(|last| last != "6") {
            answers.push(client.receive());
        }
        assert!(answers.is_sorted() && answers.len() >= 4, "{answers:?}");
    }
}

#[test]
fn a_flow_moves_when_its_endpoint_dies() {
    let forwarder = forwarder(|_| {});
    let (endpoint, at) = bind();
    let address = serve(&forwarder, port(&[at, echo("b")]));
    let client = (0..2).map(|_| Client::new(1, address)).find(|client| {
        client.send("?");
        let mut buffer = [0; 16];
        endpoint.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let received = endpoint.recv_from(&mut buffer);
        received.is_ok_and(|(_, flow)| endpoint.send_to(b"a?", flow).is_ok())
    });
    let client = client.expect("one of two in turn");
    assert_eq!(client.receive(), "a?");
    drop(endpoint);
    assert_eq!(client.ask(), "b");
}

#[test]
fn endpoints_that_are_tried_once_are_not_tried_again() {
    let forwarder = forwarder(|_| {});
    let refusing = [(); 3].map(|()| refusing());
    let address = serve(&forwarder, port(&refusing.each_ref().map(|(_, at)| *at)));
    let client = Client::new(1, address);
    client.send("?");
    crate::forwarder::support::until("the flow ends", || forwarder.usage().connections == 0);
    assert!(client.is_silent());
    // The next datagram starts another flow.
    forwarder.serve(&Arc::new(port(&[echo("a")])));
    assert_eq!(client.ask(), "a");
}
