//! Ends that close, reset or vanish while something is on its way to the other end.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, Type};
use switchyard_userspace::forwarder::ForwarderConfig;
use test_netns::{in_namespace, run};

use crate::forwarder::support::*;

/// The time until the system has forgotten a closed socket, and its other end has asked for it.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// Runs a test in a namespace that forgets a socket a second after its close.
fn in_short_namespace(test: impl FnOnce() + Send) {
    in_namespace(|| {
        run("ip link set lo up");
        fs::write("/proc/sys/net/ipv4/tcp_fin_timeout", "1").unwrap();
        test();
    });
}

/// An end that sends nothing is asked after a second. One that answers is there, however long it
/// takes nothing.
fn soon_asked(config: &mut ForwarderConfig) {
    config.dead_after = Duration::from_secs(4);
}

/// Connects with a small receive buffer.
fn slow_reader(to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

fn read_all(mut stream: TcpStream) -> usize {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).expect("the end, without an error");
    read.len()
}

/// The proxy asks the endpoint whether it is there, whose system has forgotten it. By then, the
/// client's socket has taken the shorter answer, and a part of the longer one.
#[test]
fn a_slow_reader_gets_the_whole_answer_of_an_endpoint_that_has_closed() {
    in_short_namespace(|| {
        let forwarder = forwarder(soon_asked);
        let clients = [200_000, 400_000].map(|size| {
            let server = endpoint(move |mut stream| stream.write_all(&vec![7; size]).unwrap());
            (size, slow_reader(serve(&forwarder, &format!("s{size}"), &[server])))
        });
        thread::sleep(FORGOTTEN);
        for (size, client) in clients {
            assert_eq!(read_all(client), size);
        }
        until("the connections end", || forwarder.usage().connections == 0);
    });
}

/// The client has also sent everything, so that nothing more is copied.
#[test]
fn a_client_that_does_not_read_the_answer_keeps_its_place() {
    const SIZE: usize = 150_000;
    let forwarder = forwarder(|_| {});
    let (written, is_written) = mpsc::channel();
    let server = endpoint(move |mut stream| {
        stream.read_to_end(&mut Vec::new()).unwrap();
        stream.write_all(&[7; SIZE]).unwrap();
        drop(stream);
        written.send(()).unwrap();
    });
    let mut client = slow_reader(serve(&forwarder, "web", &[server]));
    client.write_all(b"request").unwrap();
    end(&client);
    is_written.recv_timeout(PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(forwarder.usage().connections, 1);
    assert_eq!(read_all(client), SIZE);
    until("the connection ends", || forwarder.usage().connections == 0);
}

#[test]
fn a_slow_endpoint_gets_the_whole_request_of_a_client_that_has_closed() {
    in_short_namespace(|| {
        let forwarder = forwarder(soon_asked);
        let (read, received) = mpsc::channel();
        let server = endpoint(move |stream| {
            thread::sleep(FORGOTTEN);
            read.send(read_all(stream)).unwrap();
        });
        let to = serve(&forwarder, "web", &[server]);
        // More than the sockets of the endpoint take: the rest waits in the proxy.
        const SIZE: usize = 6 << 20;
        let mut client = connect(to);
        client.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < SIZE {
            match client.write(&vec![7; SIZE - sent]) {
                Ok(written) => sent += written,
                Err(_) => break,
            }
        }
        drop(client);
        assert_eq!(received.recv_timeout(PATIENCE).unwrap(), sent);
        until("the connection ends", || forwarder.usage().connections == 0);
    });
}

/// The whole answer is there when the proxy comes to the urgent byte, with or without its end.
#[test]
fn urgent_data_does_not_stop_bulk() {
    for ends in [false, true] {
        let forwarder = forwarder(|_| {});
        let (read, may_end) = mpsc::channel::<()>();
        let may_end = Arc::new(Mutex::new(may_end));
        let server = endpoint(move |stream| {
            let socket = Socket::from(stream);
            (&socket).write_all(&[7; 1 << 20]).unwrap();
            socket.send_out_of_band(b"!").unwrap();
            (&socket).write_all(b"rest").unwrap();
            if !ends {
                let _ = may_end.lock().unwrap().recv();
            }
        });
        let mut client = slow_reader(serve(&forwarder, "web", &[server]));
        thread::sleep(Duration::from_millis(200));
        client.read_exact(&mut vec![0; 1 << 20]).unwrap();
        expect(&mut client, "rest");
        drop(read);
    }
}

/// Everything is there before the proxy reads.
#[test]
fn urgent_data_does_not_stop_a_line() {
    let timeouts = vec![Duration::from_millis(20), PATIENCE];
    let forwarder = forwarder(|config| config.connect_timeouts = timeouts);
    let silent = silent();
    let mut client = connect(serve(&forwarder, "web", &[silent.address]));
    client.write_all(b"before").unwrap();
    SockRef::from(&client).send_out_of_band(b"!").unwrap();
    client.write_all(b"after").unwrap();
    let (read, received) = mpsc::channel();
    thread::spawn(move || {
        // Others are in the queue that keeps the endpoint silent.
        while let Ok((endpoint, _)) = silent.socket.accept() {
            let read = read.clone();
            thread::spawn(move || {
                let mut bytes = [0; 11];
                TcpStream::from(endpoint).read_exact(&mut bytes).map(|()| read.send(bytes))
            });
        }
    });
    assert_eq!(&received.recv_timeout(PATIENCE).unwrap(), b"beforeafter");
}

/// The direction of the client is blocked, as the endpoint reads nothing.
#[test]
fn the_reset_of_a_client_whose_bytes_wait_is_passed_on() {
    let forwarder = forwarder(|_| {});
    let accepted = Arc::<Mutex<Vec<TcpStream>>>::default();
    let held = Arc::clone(&accepted);
    let server = endpoint(move |stream| held.lock().unwrap().push(stream));
    let mut client = connect(serve(&forwarder, "web", &[server]));
    client.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while client.write(&[7; 100_000]).is_ok() {}
    assert_eq!(forwarder.usage().connections, 1);
    reset(client);
    until("the connection ends", || forwarder.usage().connections == 0);
    let endpoint = accepted.lock().unwrap().pop().unwrap();
    until("the endpoint has an error", || endpoint.take_error().unwrap().is_some());
}

#[test]
fn a_connection_that_the_proxy_cuts_is_reset() {
    let forwarder = forwarder(|_| {});
    let server = endpoint(|mut stream| while stream.write_all(&[7; 10_000]).is_ok() {});
    let mut client = slow_reader(serve(&forwarder, "web", &[server]));
    client.read_exact(&mut [0; 1000]).unwrap();
    drop(forwarder);
    expect_reset(&mut client);
}

#[test]
fn an_end_that_does_not_answer_is_gone_in_time() {
    in_short_namespace(|| {
        let forwarder = forwarder(|config| config.dead_after = Duration::from_secs(2));
        let server = echo("a");
        let mut client = connect(serve(&forwarder, "web", &[server]));
        expect(&mut client, "a");
        run("nft add table ip t");
        run("nft add chain ip t out { type filter hook output priority 0 ; }");
        run(&format!("nft add rule ip t out tcp dport {} drop", server.port()));
        client.write_all(b"is anyone there?").unwrap();
        let error = client.read(&mut [0; 1]).expect_err("the endpoint is gone");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}
