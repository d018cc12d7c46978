//! Too many flows.

use super::*;
use crate::forwarder::support::{counting, forwarder, refused, until};

#[test]
fn a_client_with_too_many_flows_loses_the_longest_idle() {
    let (forwarder, counters) = counting(|config| config.connections = Some(9));
    let address = serve(&forwarder, port(&[echo("a")]));
    let clients: Vec<Client> = (0..4).map(|_| Client::new(1, address)).collect();
    for client in &clients[..3] {
        assert_eq!(client.ask(), "a");
    }
    clients[3].send("?");
    assert!(clients[3].is_silent(), "all flows are in use");
    assert_eq!(refused(&counters), 1);
    until("a flow has been idle for a second", || {
        clients[3].send("?");
        !clients[3].is_silent()
    });
    assert_eq!(forwarder.usage().connections, 3);
}

#[test]
fn clients_with_many_flows_make_room_for_others() {
    let forwarder = forwarder(|config| config.connections = Some(4));
    let address = serve(&forwarder, port(&[echo("a")]));
    // Half of the places are the most that a Service has, while the others are free.
    let held: Vec<Client> = vec![Client::new(1, address), Client::new(2, address)];
    assert!(held.iter().all(|client| client.ask() == "a"));
    let newcomer = Client::new(3, address);
    until("a flow has been idle for a second", || {
        newcomer.send("?");
        !newcomer.is_silent()
    });
    // Clients with as many flows as the others end none of those.
    let again = Client::new(3, address);
    again.send("?");
    assert!(again.is_silent());
    assert_eq!(forwarder.usage().connections, 2);
    assert_eq!(newcomer.ask(), "a");
}

#[test]
fn flows_that_await_an_answer_make_room_later() {
    let forwarder = forwarder(|config| config.connections = Some(9));
    let (endpoint, at) = bind();
    let address = serve(&forwarder, port(&[at]));
    let clients: Vec<Client> = (0..4).map(|_| Client::new(1, address)).collect();
    let receive = || endpoint.recv_from(&mut [0; 16]).unwrap().1;
    clients[0].send("?");
    let slow = receive();
    for client in &clients[1..3] {
        client.send("?");
        endpoint.send_to(b"a", receive()).unwrap();
        client.receive();
    }
    endpoint.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    until("a flow has been idle for a second", || {
        clients[3].send("?");
        endpoint.recv_from(&mut [0; 16]).is_ok()
    });
    endpoint.send_to(b"late", slow).unwrap();
    assert_eq!(clients[0].receive(), "late");
}
