//! The ports of this node that connections and flows come from: few, in a namespace of the test's
//! own.

#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use switchyard_core::model::Protocol;
use switchyard_userspace::forwarder::{Counted, Forwarder};
use test_netns::{in_namespace, run};

use crate::forwarder::{
    support::*,
    udp::{echo_at, serve_at, socket as udp},
};

/// Runs a test in a namespace with so many ports for sockets that are not bound.
fn with_ports(count: u16, test: impl FnOnce() + Send) {
    in_namespace(|| {
        run("ip link set lo up");
        let range = format!("40000 {}", 40_000 + count - 1);
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
        test();
    });
}

/// Serves an endpoint at a port beyond those for sockets that are not bound.
fn serve_udp(forwarder: &Forwarder, name: &str, port: u16, endpoint: SocketAddr) -> SocketAddr {
    let service = service(&id(name, Protocol::Udp), &[endpoint]);
    serve_at(forwarder, service, |listener| listener.address.set_port(port))
}

fn ask(client: &UdpSocket, to: SocketAddr) {
    client.send_to(b"?", to).unwrap();
    client.recv_from(&mut [0; 16]).unwrap();
}

#[test]
fn flows_of_one_client_leave_ports_to_other_clients_services_and_programs() {
    with_ports(300, || {
        let (forwarder, counters) = counting(|_| {});
        let dns = serve_udp(&forwarder, "dns", 1053, echo_at(2053, ""));
        let other = serve_udp(&forwarder, "other", 1054, echo_at(2054, ""));
        let flood: Vec<UdpSocket> = (10_000..10_600).map(|port| udp(2, port)).collect();
        for client in &flood {
            client.send_to(b"?", dns).unwrap();
        }
        let usage = || forwarder.usage();
        until("all are forwarded or refused", || {
            usage().connections as u64 + refused(&counters) == 600
        });
        assert_eq!(usage().connections, 88, "half of two thirds of the ports, but an eighth");
        (1..=40).for_each(|i| ask(&udp(3, 11_000 + i), dns));
        (1..=80).for_each(|i| ask(&udp(5, 11_000 + i), other));
        assert_eq!(usage().connections, 208, "endpoints share ports");
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.connect(dns).unwrap();
        // Flows that are idle make room for those of clients with fewer.
        for last in 10..110 {
            let client = udp(last, 12_000);
            client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            until("flows have been idle for a second", || {
                client.send_to(b"?", dns).unwrap();
                client.recv_from(&mut [0; 16]).is_ok()
            });
        }
    });
}

#[test]
fn ports_of_other_programs_are_not_shared() {
    with_ports(30, || {
        let forwarder = forwarder(|_| {});
        let endpoint = udp(1, 2053);
        endpoint.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let dns = serve_udp(&forwarder, "dns", 1053, endpoint.local_addr().unwrap());
        // All but one, also with the option by which the forwarder shares ports.
        let taken = (40_000..40_029).map(|port| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).unwrap();
            socket
        });
        let _taken: Vec<Socket> = taken.collect();
        let client = udp(2, 10_000);
        until("the port that is left is found", || {
            client.send_to(b"?", dns).unwrap();
            let received = endpoint.recv_from(&mut [0; 16]);
            received.is_ok_and(|(_, flow)| {
                assert_eq!(flow.port(), 40_029);
                true
            })
        });
    });
}

#[test]
fn another_program_cannot_bind_the_port_of_a_flow() {
    with_ports(30, || {
        let forwarder = forwarder(|_| {});
        let endpoints = [2053, 2054].map(|port| udp(1, port));
        let flows: Vec<u16> = (0..14)
            .map(|i| {
                // The ports are so few that flows share some.
                let (endpoint, listener) = (&endpoints[i % 2], 1053 + i as u16);
                let at = endpoint.local_addr().unwrap();
                let to = serve_udp(&forwarder, &format!("s{i}"), listener, at);
                udp(2, 10_000 + i as u16).send_to(b"?", to).unwrap();
                endpoint.recv_from(&mut [0; 16]).unwrap().1.port()
            })
            .collect();
        for port in flows {
            let program = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            program.set_reuse_address(true).unwrap();
            let bound = program.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into());
            assert_eq!(bound.unwrap_err().kind(), ErrorKind::AddrInUse, "{port}");
        }
    });
}

#[test]
fn flows_whose_end_would_leave_no_port_go_on() {
    with_ports(30, || {
        let forwarder = forwarder(|_| {});
        let (old, new) = (echo_at(2053, ""), echo_at(2054, ""));
        let other = serve_udp(&forwarder, "other", 1054, new);
        let busy: Vec<UdpSocket> = (0..18).map(|i| udp(10 + i, 10_000)).collect();
        busy.iter().for_each(|client| ask(client, other));
        let dns = serve_udp(&forwarder, "dns", 1053, old);
        (0..3).for_each(|i| ask(&udp(2, 10_000 + i), dns));
        let mut changed = service(&id("dns", Protocol::Udp), &[new]);
        changed.draining = pool(&[old]);
        forwarder.serve(&Arc::new(changed));
        let newcomer = udp(3, 10_000);
        newcomer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        for _ in 0..50 {
            newcomer.send_to(b"?", dns).unwrap();
            assert!(newcomer.recv(&mut [0; 16]).is_err());
        }
        assert_eq!(forwarder.usage().connections, 21);
    });
}

#[test]
fn an_endpoint_that_all_ports_are_connected_to_is_passed_over() {
    with_ports(30, || {
        let (forwarder, counters) = counting(|_| {});
        let serve_name = |name: &'static str, last: u8| {
            let socket = TcpListener::bind(SocketAddr::from(([127, 0, 0, last], 2080))).unwrap();
            let address = socket.local_addr().unwrap();
            thread::spawn(move || {
                let mut held = Vec::new();
                for stream in socket.incoming().flatten() {
                    let _ = std::io::Write::write_all(&mut &stream, name.as_bytes());
                    held.push(stream);
                }
            });
            address
        };
        let (first, second) = (serve_name("a", 1), serve_name("b", 2));
        let web = id("web", Protocol::Tcp);
        let mut both = service(&web, &[first, second]);
        both.affinity = Some(Duration::from_secs(100));
        forwarder.serve(&Arc::new(both));
        let mut at = listener(&web);
        at.address.set_port(1080);
        let to = forwarder.listen(&at).unwrap();
        let mut client = connect_from([127, 0, 0, 3], to);
        let mut name = [0];
        client.read_exact(&mut name).unwrap();
        let (remembered, other) = if name == *b"a" { (first, "b") } else { (second, "a") };

        let held: Vec<TcpStream> =
            std::iter::from_fn(|| TcpStream::connect(remembered).ok()).collect();
        assert!((28..=30).contains(&held.len()), "{}", held.len());
        expect(&mut connect_from([127, 0, 0, 3], to), other);
        assert!(counters.get(Counted::Exhausted) > 0);
    });
}

#[test]
fn a_client_that_opens_and_closes_connections_leaves_ports_to_others() {
    with_ports(60, || {
        // As with endpoints elsewhere.
        fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "0").unwrap();
        let (forwarder, counters) = counting(|_| {});
        let socket = TcpListener::bind("127.0.0.1:2080").unwrap();
        let endpoint = socket.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in socket.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        let web = id("web", Protocol::Tcp);
        forwarder.serve(&Arc::new(service(&web, &[endpoint])));
        let mut at = listener(&web);
        at.address.set_port(1080);
        let to = forwarder.listen(&at).unwrap();
        // Ports of the clients' own, which are not in the range.
        let is_served = |last: u8, port: u16| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 0, last], port)).into()).unwrap();
            socket.connect(&to.into()).unwrap();
            let mut client = TcpStream::from(socket);
            let sent = std::io::Write::write_all(&mut client, b"x");
            let _ = client.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let read = client.read_to_end(&mut answer);
            sent.is_ok() && read.is_ok() && answer == b"x"
        };
        let served = (10_000..10_060).filter(|port| is_served(2, *port)).count();
        assert!((28..=32).contains(&served), "{served}");
        assert!((10_000..10_010).all(|port| is_served(3, port)));
        assert!(refused(&counters) >= 28);
    });
}

#[test]
fn a_server_can_listen_at_the_port_of_a_connection_and_of_one_that_has_ended() {
    with_ports(30, || {
        let forwarder = forwarder(|_| {});
        let socket = TcpListener::bind("127.0.0.1:2080").unwrap();
        let to = serve(&forwarder, "web", &[socket.local_addr().unwrap()]);
        let client = connect(to);
        let (mut at_endpoint, from) = socket.accept().unwrap();
        let listen = || {
            let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            server.set_reuse_address(true).unwrap();
            server.bind(&SocketAddr::from(([0, 0, 0, 0], from.port())).into()).unwrap();
            server.listen(1).unwrap();
        };
        listen();
        end(&client);
        expect_end(&mut at_endpoint);
        end(&at_endpoint);
        until("the connection ends", || forwarder.usage().connections == 0);
        listen();
    });
}

#[test]
fn a_listener_is_no_endpoint() {
    let (forwarder, counters) = counting(|config| config.connections = Some(60));
    let to = serve(&forwarder, "web", &[echo("a")]);
    expect(&mut connect(to), "a");
    forwarder.serve(&Arc::new(service(&id("web", Protocol::Tcp), &[to])));
    expect_reset(&mut connect(to));
    until("the connections end", || forwarder.usage().connections == 0);
    assert_eq!(refused(&counters), 0, "one connection makes no other");
}
