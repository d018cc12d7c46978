//! Endpoints that do not take a connection.

use std::{thread, time::Duration};

use crate::forwarder::support::*;

#[test]
fn another_endpoint_serves_if_one_does_not_answer() {
    let forwarder = forwarder(|config| config.connect_timeouts = vec![Duration::from_millis(20)]);
    let silent = silent();
    let address = serve(&forwarder, "web", &[silent.address, echo("a")]);
    for _ in 0..4 {
        expect(&mut connect(address), "a");
    }
}

#[test]
fn an_endpoint_that_is_alone_is_tried_again() {
    let timeouts = vec![Duration::from_millis(20), PATIENCE];
    let forwarder = forwarder(|config| config.connect_timeouts = timeouts);
    let silent = silent();
    let address = serve(&forwarder, "web", &[silent.address]);
    let mut client = connect(address);
    // The first attempt is over when the endpoint accepts connections.
    thread::sleep(Duration::from_millis(100));
    thread::spawn(move || {
        loop {
            let (accepted, _) = silent.socket.accept().unwrap();
            let _ = accepted.send(b"a");
        }
    });
    expect(&mut client, "a");
}

#[test]
fn a_client_that_goes_away_is_not_connected() {
    let forwarder = forwarder(|config| config.connect_timeouts = vec![PATIENCE * 3]);
    let silent = silent();
    let address = serve(&forwarder, "web", &[silent.address]);
    let client = connect(address);
    until("the connection is there", || forwarder.usage().connections == 1);
    reset(client);
    until("the attempt ends", || forwarder.usage().connections == 0);
}
