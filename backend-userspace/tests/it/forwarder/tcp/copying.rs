//! Copying between the two ends of a connection.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::mpsc,
    thread,
};

use crate::forwarder::support::*;

/// The amount that the big transfers send in each direction.
const BIG: usize = 48 * 1024 * 1024;

/// Sends bytes that no two directions have in common, in pieces of different sizes.
fn send_big(mut stream: &TcpStream, seed: u64) {
    let mut numbers = Numbers(seed);
    let mut sent = 0;
    while sent < BIG {
        let size = (1 + numbers.next() as usize % 200_000).min(BIG - sent);
        let piece: Vec<u8> = numbers.bytes(sent, size, seed);
        stream.write_all(&piece).unwrap();
        sent += size;
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Receives what [`send_big`] sends, until the end.
fn receive_big(mut stream: &TcpStream, seed: u64) {
    let numbers = Numbers(seed);
    let mut buffer = vec![0; 100_000];
    let mut received = 0;
    loop {
        let size = stream.read(&mut buffer).unwrap();
        if size == 0 {
            break;
        }
        assert!(buffer[..size] == numbers.bytes(received, size, seed), "differs after {received}");
        received += size;
    }
    assert_eq!(received, BIG);
}

struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// The bytes from a position on, each of which depends on its position.
    fn bytes(&self, from: usize, size: usize, seed: u64) -> Vec<u8> {
        let byte = |at: usize| ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed) >> 40) as u8;
        (from..from + size).map(byte).collect()
    }
}

/// Whether there are places for pipes or not.
#[test]
fn big_transfers_in_both_directions_arrive_unchanged() {
    [None, Some(4)].into_iter().for_each(big_transfers);
}

/// Transfers at the same time in both directions, with a number of places.
fn big_transfers(connections: Option<usize>) {
    let forwarder = forwarder(|config| config.connections = connections);
    let both = |stream: TcpStream, mine: u64, other: u64| {
        thread::scope(|scope| {
            scope.spawn(|| send_big(&stream, mine));
            receive_big(&stream, other);
        });
    };
    let (done, is_done) = mpsc::channel();
    let server = endpoint(move |stream| {
        both(stream, 1, 2);
        done.send(()).unwrap();
    });
    let address = serve(&forwarder, "web", &[server]);
    both(connect(address), 2, 1);
    is_done.recv_timeout(PATIENCE).unwrap();
    until("the connection ends", || forwarder.usage().connections == 0);
}

#[test]
fn an_endpoint_that_has_sent_everything_still_reads() {
    let forwarder = forwarder(|_| {});
    let (received, request) = mpsc::channel();
    let server = endpoint(move |mut stream| {
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut request = String::new();
        stream.read_to_string(&mut request).unwrap();
        received.send(request).unwrap();
    });
    let address = serve(&forwarder, "web", &[server]);
    let mut client = connect(address);
    expect(&mut client, "hello");
    expect_end(&mut client);
    client.write_all(b"request").unwrap();
    assert_eq!(forwarder.usage().connections, 1);
    end(&client);
    assert_eq!(request.recv_timeout(PATIENCE).unwrap(), "request");
    until("the connection ends", || forwarder.usage().connections == 0);
}

#[test]
fn a_reset_is_passed_on_in_either_direction() {
    let forwarder = forwarder(|_| {});
    let (ended, how) = mpsc::channel();
    let server = endpoint(move |mut stream| {
        stream.write_all(b"hello").unwrap();
        match stream.read(&mut [0; 16]) {
            Ok(5) => reset(stream),
            other => ended.send(other).unwrap(),
        }
    });
    let address = serve(&forwarder, "web", &[server]);

    let mut client = connect(address);
    expect(&mut client, "hello");
    client.write_all(b"reset").unwrap();
    expect_reset(&mut client);

    let mut client = connect(address);
    expect(&mut client, "hello");
    reset(client);
    let error = how.recv_timeout(PATIENCE).unwrap().expect_err("the endpoint has an error");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    until("the connections end", || forwarder.usage().connections == 0);
}

#[test]
fn the_reset_of_a_client_that_has_sent_everything_is_passed_on() {
    let forwarder = forwarder(|_| {});
    let (ended, how) = mpsc::channel();
    let server = endpoint(move |mut stream| {
        stream.write_all(b"hello").unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
        ended.send(None).unwrap();
        // Writing shows the reset to the endpoint, as on a direct connection.
        until("the endpoint has an error", || stream.take_error().unwrap().is_some());
        ended.send(Some(())).unwrap();
    });
    let address = serve(&forwarder, "web", &[server]);
    let mut client = connect(address);
    expect(&mut client, "hello");
    end(&client);
    assert_eq!(how.recv_timeout(PATIENCE).unwrap(), None);
    reset(client);
    assert_eq!(how.recv_timeout(PATIENCE).unwrap(), Some(()));
    until("the connection ends", || forwarder.usage().connections == 0);
}

#[test]
fn an_answer_before_a_reset_arrives() {
    let forwarder = forwarder(|_| {});
    let server = endpoint(|mut stream| {
        // The answer comes before the request has been read, which closes by RST.
        stream.read_exact(&mut [0; 1]).unwrap();
        stream.write_all(b"too large").unwrap();
    });
    let address = serve(&forwarder, "web", &[server]);
    let mut client = connect(address);
    let _ = client.write_all(&[7; 1000]);
    expect(&mut client, "too large");
}

#[test]
fn a_reader_that_waits_slows_down_the_writer() {
    let forwarder = forwarder(|_| {});
    let (go_on, may_read) = mpsc::channel::<()>();
    let may_read = std::sync::Arc::new(std::sync::Mutex::new(may_read));
    let server = endpoint(move |stream| {
        may_read.lock().unwrap().recv().unwrap();
        receive_big(&stream, 3);
        (&stream).write_all(b"all").unwrap();
    });
    let address = serve(&forwarder, "web", &[server]);
    let client = connect(address);
    let mut other = client.try_clone().unwrap();
    client.set_nonblocking(true).unwrap();
    // No one reads: what sockets and the forwarder keep is bounded.
    let numbers = Numbers(3);
    let mut sent = 0;
    let mut refused = 0;
    while refused < 100 {
        let size = 100_000.min(BIG - sent);
        match (&client).write(&numbers.bytes(sent, size, 3)) {
            Ok(written) => {
                sent += written;
                assert!(sent < BIG, "everything was taken although nobody reads");
                refused = 0;
            }
            Err(_) => {
                refused += 1;
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }
    client.set_nonblocking(false).unwrap();
    go_on.send(()).unwrap();
    while sent < BIG {
        let size = 100_000.min(BIG - sent);
        (&client).write_all(&numbers.bytes(sent, size, 3)).unwrap();
        sent += size;
    }
    end(&client);
    expect(&mut other, "all");
}
