//! The PROXY protocol, and the addresses in it.

use std::{io::Read, net::SocketAddr, sync::Arc};

use switchyard_core::model::{Protocol, ProxyProtocol};
use switchyard_userspace::forwarder::Forwarder;
use test_netns::{in_namespace, run};

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
