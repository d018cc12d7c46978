//! Counters of what is forwarded.

use std::{io::Write, net::UdpSocket, sync::Arc};

use switchyard_core::{model::Protocol, state::Action};
use switchyard_userspace::forwarder::Counted;

use crate::forwarder::support::*;

#[test]
fn a_connection_counts_with_its_bytes_and_the_tries_before() {
    let (forwarder, counters) = counting(|_| {});
    let address = serve(&forwarder, "web", &[refusing(), echo("name")]);
    for _ in 0..2 {
        let mut client = connect(address);
        client.write_all(b"hello").unwrap();
        expect(&mut client, "namehello");
        assert_eq!(counters.active(), 1);
        end(&client);
        expect_end(&mut client);
        until("the connection ends", || counters.active() == 0);
    }
    let all = [Counted::Tcp, Counted::BytesIn, Counted::BytesOut];
    assert_eq!(all.map(|counted| counters.get(counted)), [2, 10, 18]);
    // One or two: round robin begins with either endpoint.
    let refused = counters.get(Counted::EndpointRefused);
    assert!((1..=2).contains(&refused), "{refused}");
    assert_eq!(counters.get(Counted::Retries), refused);
}

#[test]
fn clients_that_are_not_served_count_by_reason() {
    let (forwarder, counters) = counting(|_| {});
    expect_reset(&mut connect(serve(&forwarder, "refusing", &[refusing(), refusing()])));
    let id = id("restricted", Protocol::Tcp);
    forwarder.serve(&Arc::new(service(&id, &[echo("name")])));
    let mut restricted = listener(&id);
    restricted.allowed_sources = Some(Arc::from(["192.0.2.0/24".parse().unwrap()]));
    expect_reset(&mut connect(forwarder.listen(&restricted).unwrap()));
    until("both are counted", || counters.get(Counted::RefusedSource) == 1);
    assert_eq!(counters.get(Counted::UnservedTcp), 1);
    restricted.action = Action::Drop;
    restricted.allowed_sources = None;
    expect_reset(&mut connect(forwarder.listen(&restricted).unwrap()));
    until("the connection is counted", || counters.get(Counted::UnservedTcp) == 2);
    assert!(counters.get(Counted::EndpointRefused) > 1 && counters.get(Counted::LeftOut) > 0);
    assert_eq!(counters.get(Counted::Tcp), 0);
}

#[test]
fn datagrams_count_each_way() {
    let (forwarder, counters) = counting(|_| {});
    let endpoint = UdpSocket::bind("127.0.0.1:0").unwrap();
    let id = id("dns", Protocol::Udp);
    forwarder.serve(&Arc::new(service(&id, &[endpoint.local_addr().unwrap()])));
    let address = forwarder.listen(&listener(&id)).unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..2 {
        client.send_to(b"ask", address).unwrap();
        let (_, flow) = endpoint.recv_from(&mut [0; 16]).unwrap();
        endpoint.send_to(b"answer", flow).unwrap();
        client.recv(&mut [0; 16]).unwrap();
    }
    assert_eq!(counters.active(), 1);
    forwarder.close([(Protocol::Udp, address)]);
    until("the flow ends", || counters.active() == 0);
    let ways = [Counted::DatagramsIn, Counted::BytesIn, Counted::DatagramsOut, Counted::BytesOut];
    // An answer is counted once it is sent.
    until("both are counted", || ways.map(|way| counters.get(way)) == [2, 6, 2, 12]);
    assert_eq!(counters.get(Counted::Udp), 1);
}
