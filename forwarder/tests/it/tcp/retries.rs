//! Endpoints that do not take a connection.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};

use crate::support::*;

/// A listener whose queue is full, so that the system does not answer clients.
struct Silent {
    address: SocketAddr,
    socket: Socket,
    _queue: Vec<Socket>,
}

impl Silent {
    fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap();
        let queue = (0..8).map(|_| {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&address);
            client
        });
        let queue: Vec<Socket> = queue.collect();
        let address = address.as_socket().unwrap();
        let answer = TcpStream::connect_timeout(&address, Duration::from_millis(100));
        assert_eq!(answer.expect_err("the queue is full").kind(), ErrorKind::TimedOut);
        Self { address, socket, _queue: queue }
    }
}

#[test]
fn another_endpoint_serves_if_one_refuses() {
    let forwarder = forwarder(|_| {});
    let address = serve(&forwarder, "web", &[refusing(), echo("a"), refusing()]);
    for _ in 0..6 {
        expect(&mut connect(address), "a");
    }
}

#[test]
fn another_endpoint_serves_if_one_does_not_answer() {
    let forwarder = forwarder(|config| config.connect_timeouts = vec![Duration::from_millis(20)]);
    let silent = Silent::new();
    let address = serve(&forwarder, "web", &[silent.address, echo("a")]);
    for _ in 0..4 {
        expect(&mut connect(address), "a");
    }
}

#[test]
fn a_connection_that_no_endpoint_takes_is_reset() {
    let forwarder = forwarder(|_| {});
    expect_reset(&mut connect(serve(&forwarder, "empty", &[])));
    expect_reset(&mut connect(serve(&forwarder, "refusing", &[refusing(), refusing()])));
    until("the connections end", || forwarder.usage().connections == 0);
}

#[test]
fn an_endpoint_that_is_alone_is_tried_again() {
    let timeouts = vec![Duration::from_millis(20), PATIENCE];
    let forwarder = forwarder(|config| config.connect_timeouts = timeouts);
    let silent = Silent::new();
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
    let silent = Silent::new();
    let address = serve(&forwarder, "web", &[silent.address]);
    let client = connect(address);
    until("the connection is there", || forwarder.usage().connections == 1);
    reset(client);
    until("the attempt ends", || forwarder.usage().connections == 0);
}
