//! Parts shared by the tests: a node with the backend, servers, and clients.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use switchyard_core::{
    config::{NodeConfig, NodePortAddressConfig},
    model::PerFamily,
    objects::Event,
    proxier::{Backend, Proxier},
    testing::{Builder, NODE, Stepped, endpoint, service, slice},
};
use switchyard_userspace::{CaptureMode, UserspaceBackend, UserspaceConfig};
pub use test_netns::{in_namespace, run, switch_ipv6};

pub type Node = Stepped<Box<dyn Proxier>>;

/// Settings with one capture mode.
pub fn settings(capture: CaptureMode) -> UserspaceConfig {
    let mut made = UserspaceConfig::default();
    made.capture = Some(capture);
    made.families = PerFamily { v4: true, v6: true };
    made.forwarder.threads = Some(1);
    made
}

/// A node in the namespace of this thread, whose endpoints are servers in it.
pub fn start(settings: UserspaceConfig) -> Node {
    run("ip link set lo up");
    run("ip addr add 192.0.2.1/24 dev lo");
    // The rules see a packet once it has a route.
    run("ip route add 10.96.0.0/16 dev lo");
    let mut config = NodeConfig::new(NODE);
    config.loopback_endpoints = true;
    config.node_port_addresses =
        vec![NodePortAddressConfig::Cidr("192.0.2.0/24".parse().expect("a network"))];
    let mut node = Stepped::new(config, open(settings));
    node.tracker.set_interface_addresses(vec!["192.0.2.1".parse().expect("an address")]);
    node
}

pub fn open(settings: UserspaceConfig) -> Box<dyn Proxier> {
    UserspaceBackend::new(settings)
        .probe()
        .expect("a capture mode")
        .open()
        .expect("the backend opens")
}

/// A Service with a node port.
pub fn web() -> Builder {
    service("web", "10.96.0.1").port("http", "TCP", 80).node_port(30080)
}

/// The endpoints of [`web`] at addresses of the node, which end with these numbers.
pub fn web_slice(last: &[u8]) -> Event {
    let made = slice("web", "1").port("http", "TCP", 8080);
    last.iter()
        .fold(made, |made, last| made.endpoint(endpoint(&format!("192.0.2.{last}"), NODE)))
        .apply()
}

/// Starts servers at addresses of the node that send the last number of their address.
pub fn servers(last: &[u8]) {
    for last in last.iter().copied() {
        let listener = TcpListener::bind(SocketAddr::from(([192, 0, 2, last], 8080)))
            .expect("the port is free");
        thread::spawn(move || {
            for client in listener.incoming() {
                let _ = client.and_then(|mut client| client.write_all(&[last]));
            }
        });
    }
}

/// Connects, and returns the number that the server sends; `None` if the connection is refused or
/// reset.
pub fn ask(address: SocketAddr) -> Option<u8> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    let mut answer = [0];
    stream.read_exact(&mut answer).ok()?;
    Some(answer[0])
}

/// The servers that answer to so many connections, sorted.
pub fn answers(address: &str, count: usize) -> Vec<Option<u8>> {
    let address = address.parse().expect("an address");
    let mut all: Vec<Option<u8>> = (0..count).map(|_| ask(address)).collect();
    all.sort_unstable();
    all
}
