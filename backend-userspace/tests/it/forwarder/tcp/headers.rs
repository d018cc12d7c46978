//! The PROXY protocol, and the addresses in it.

use std::{
    fs,
    io::{self, Read},
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use switchyard_core::model::{Protocol, ProxyProtocol};
use switchyard_userspace::forwarder::{Forwarder, Listener};
use test_netns::{in_namespace, run, skipped, try_run};

use crate::forwarder::support::*;

/// Serves a TCP Service whose only endpoint is sent headers of a version, and sends back all that
/// it receives.
fn serve_with(forwarder: &Forwarder, version: ProxyProtocol) -> SocketAddr {
    let id = id("web", Protocol::Tcp);
    let mut port = service(&id, &[echo("")]);
    port.proxy_protocol = Some(version);
    forwarder.serve(&Arc::new(port));
    forwarder.listen(&listener(&id)).unwrap()
}

#[test]
fn an_endpoint_learns_of_a_client_that_sends_nothing() {
    let forwarder = forwarder(|_| {});
    let to = serve_with(&forwarder, ProxyProtocol::V2);
    let mut client = connect_from([127, 0, 1, 7], to);
    let from = client.local_addr().unwrap().port().to_be_bytes();
    let to = to.port().to_be_bytes();
    let mut header = [0; 28];
    client.read_exact(&mut header).unwrap();
    let start = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\x01\x07\x7f\0\0\x01";
    assert_eq!(header[..], [&start[..], &from, &to].concat());
}

#[test]
fn a_redirected_client_has_connected_to_the_service() {
    in_namespace(|| {
        run("ip link set lo up");
        run("ip route add 192.0.2.0/24 dev lo");
        let forwarder = forwarder(|_| {});
        let to = serve_with(&forwarder, ProxyProtocol::V1).port();
        run("nft add table ip redirects");
        run("nft add chain ip redirects output { type nat hook output priority -100 ; }");
        run(&format!(
            "nft add rule ip redirects output ip daddr 192.0.2.1 tcp dport 80 redirect to :{to}"
        ));
        let mut client = connect("192.0.2.1:80".parse().unwrap());
        let from = client.local_addr().unwrap().port();
        expect(&mut client, &format!("PROXY TCP4 127.0.0.1 192.0.2.1 {from} 80\r\n"));
    });
}

/// The window of a SYNPROXY is closed until its server has answered, which it connects to after the
/// handshake.
#[test]
fn a_header_follows_the_handshake_with_a_synproxy() {
    in_namespace(|| {
        run("ip link set lo up");
        run("ip link add eth1 type veth peer name eth0");
        run("ip addr add 192.0.2.1/24 dev eth1");
        run("ip link set eth1 up");
        // The probe of the window comes before the end of the handshake that is late.
        run("ip route change 192.0.2.0/24 dev eth1 rto_min 5ms");
        let id = id("web", Protocol::Tcp);
        let mut port = service(&id, &["192.0.2.2:80".parse().unwrap()]);
        port.proxy_protocol = Some(ProxyProtocol::V1);
        let forwarder = forwarder(|_| {});
        forwarder.serve(&Arc::new(port));
        let address = "192.0.2.1:0".parse().unwrap();
        let to = forwarder.listen(&Listener { address, ..listener(&id) }).unwrap();
        let node = fs::read_link("/proc/thread-self").unwrap();
        in_namespace(|| {
            let host = fs::read_link("/proc/thread-self").unwrap();
            let host = host.file_name().unwrap().display();
            let node = node.display();
            run(&format!("nsenter --net=/proc/{node}/ns/net ip link set eth0 netns {host}"));
            run("ip link set lo up");
            run("ip addr add 192.0.2.2/24 dev eth0");
            run("ip link set eth0 up");
            run("nft add table ip guard");
            run("nft add chain ip guard first { type filter hook prerouting priority raw ; }");
            run("nft add chain ip guard input { type filter hook input priority filter ; }");
            run("nft add rule ip guard first tcp dport 80 tcp flags syn notrack");
            let synproxy = "tcp dport 80 ct state invalid,untracked \
                            synproxy mss 1460 wscale 7 timestamp sack-perm";
            if try_run(&format!("nft add rule ip guard input {synproxy}")).is_err() {
                return skipped("no SYNPROXY in this kernel");
            }
            run("nft add rule ip guard input ct state invalid drop");
            fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0").unwrap();
            let endpoint = TcpListener::bind("192.0.2.2:80").unwrap();
            thread::spawn(move || {
                let (stream, _) = endpoint.accept().unwrap();
                io::copy(&mut &stream, &mut &stream)
            });
            let mut client = connect_from([192, 0, 2, 2], to);
            let (from, to) = (client.local_addr().unwrap().port(), to.port());
            expect(&mut client, &format!("PROXY TCP4 192.0.2.2 192.0.2.1 {from} {to}\r\n"));
        });
    });
}
