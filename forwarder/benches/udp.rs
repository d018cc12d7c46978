//! How many datagrams pass through a forwarder, and are answered, beside an exchange without it.
//!
//! Clients, forwarder and endpoint share the processors. Each of 32 clients sends a datagram and waits for
//! the answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench fails by panics")]

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use switchyard_core::{
    model::{IpFamily, LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
    state::{Action, Endpoint, Masquerade, PoolKind, ResolvedServicePort},
};
use switchyard_forwarder::{Forwarder, ForwarderConfig, Listener};

const CLIENTS: usize = 32;
const ROUNDS: usize = 5_000;

fn main() {
    let endpoint = echo();
    let forwarder = Forwarder::start(ForwarderConfig::default()).unwrap();
    let through = serve(&forwarder, endpoint);
    println!("{} datagrams of 64 bytes, and as many answers:", CLIENTS * ROUNDS);
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let [direct, through] = [endpoint, through].map(exchange);
        println!("direct {direct:.0} a second, through the forwarder {through:.0} a second");
        ratios.push(through / direct);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2}", ratios[ratios.len() / 2]);
}

/// Returns how many datagrams a second are answered.
fn exchange(to: SocketAddr) -> f64 {
    let client = |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        socket
    };
    let clients: Vec<UdpSocket> = (0..CLIENTS).map(client).collect();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        for client in &clients {
            client.send(&[7; 64]).unwrap();
        }
        for client in &clients {
            client.recv(&mut [0; 64]).expect("no datagram is lost");
        }
    }
    (CLIENTS * ROUNDS) as f64 / start.elapsed().as_secs_f64()
}

fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], client);
        }
    });
    address
}

fn serve(forwarder: &Forwarder, endpoint: SocketAddr) -> SocketAddr {
    let name = ServicePortName {
        service: ServiceName::new("default", "dns"),
        port: "dns".into(),
        protocol: Protocol::Udp,
    };
    let id = ServicePortId { name, family: IpFamily::V4 };
    let endpoint = Endpoint { address: endpoint, is_local: false, may_be_local: false, weight: 1 };
    forwarder.serve(&Arc::new(ResolvedServicePort {
        id: id.clone(),
        frontends: Vec::new(),
        cluster: Arc::new([endpoint]),
        local: Arc::new([]),
        draining: Arc::new([]),
        affinity: None,
        lb_algorithm: LbAlgorithm::RoundRobin,
        proxy_protocol: None,
    }));
    let listener = Listener {
        port: id,
        address: "127.0.0.1:0".parse().unwrap(),
        action: Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always },
        allowed_sources: None,
    };
    forwarder.listen(&listener).unwrap()
}
