//! The cost of a new connection above a direct one, taken apart by what the kernel does for it.
//!
//! `cargo bench -p switchyard-nft --bench path [-- SERVICES ENDPOINTS]`, as root: everything happens
//! in network namespaces of its own threads. Times are those of `connect` by TCP at the loopback
//! interface, where all packets of the handshake are handled within the call; each is the lowest of
//! the medians of several rounds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use switchyard_core::testing::{
    ManyServices, Stepped,
    bench::{cluster_from_arguments, median, show},
};
use switchyard_nft::NftProxier;
use test_netns::{in_namespace, run, run_with};

const ROUNDS: usize = 5;
const CONNECTIONS: u8 = 250;

/// The measured paths, in this order. Each of the first adds to the one before; the last take away.
const STAGES: [(&str, bool, Do); 9] = [
    ("direct, no tables", false, Do::Nothing),
    (
        "+ connection tracking",
        false,
        Do::Nft(
            "add table ip t; add chain ip t f { type filter hook output priority 0; }; add rule ip t f ct state new",
        ),
    ),
    (
        "+ chains of NAT",
        false,
        Do::Nft(
            "add chain ip t n { type nat hook output priority -100; }; add chain ip t p { type nat hook postrouting priority 100; }",
        ),
    ),
    (
        "+ translation by one constant rule",
        true,
        Do::Nft("add rule ip t n ip daddr 10.96.0.0/11 tcp dport 80 dnat to 10.128.0.1:8080"),
    ),
    ("Switchyard, not to a Service", false, Do::Program),
    ("Switchyard, to a Service", true, Do::Nothing),
    ("- firewall-check", true, Do::Nft("flush chain ip kube-proxy filter-output-pre-dnat")),
    (
        "- service-endpoints-check and others",
        true,
        Do::Nft("flush chain ip kube-proxy filter-output; flush chain ip kube-proxy filter-input"),
    ),
    ("- masquerading", true, Do::Nft("flush chain ip kube-proxy nat-postrouting")),
];

#[derive(Clone, Copy)]
enum Do {
    Nothing,
    /// Commands of nft.
    Nft(&'static str),
    /// Replaces all by the Services.
    Program,
}

fn main() {
    let many = cluster_from_arguments();
    println!("connect, with {} Services x {} endpoints", many.services, many.endpoints);
    let rounds: Vec<_> = (0..ROUNDS).map(|_| in_namespace(|| measure(&many))).collect();
    for (stage, (what, ..)) in STAGES.iter().enumerate() {
        let lowest = rounds.iter().map(|round| round[stage]).min().expect("rounds");
        println!("  {what:<40}{:>12}", show(lowest, 4));
    }
}

fn measure(many: &ManyServices) -> Vec<Duration> {
    run("ip link set lo up");
    run("ip addr add 10.255.0.1/32 dev lo");
    // All Services and all endpoints are here, and clients are a pod.
    run("ip route add local 10.96.0.0/11 dev lo src 10.255.0.1");
    run("ip route add local 10.128.0.0/9 dev lo src 10.255.0.1");
    let listener = TcpListener::bind("0.0.0.0:8080").expect("a port");
    thread::spawn(move || listener.incoming().for_each(drop));
    let stages = STAGES.iter().map(|&(_, to_service, action)| {
        match action {
            Do::Nothing => {}
            Do::Nft(commands) => drop(run_with("nft -f -", &commands.replace("; ", ";\n"))),
            Do::Program => {
                run("nft flush ruleset");
                let proxier = NftProxier::open(Default::default()).expect("nftables");
                let mut node = Stepped::new(many.node(), proxier);
                node.apply(many.lists());
                node.try_sync().expect("synced");
            }
        }
        median((1..=CONNECTIONS).flat_map(|n| [n; 8]).map(|n| connect(n, to_service)).collect())
    });
    stages.collect()
}

/// The time to connect to one of the first Services, or to an endpoint.
fn connect(n: u8, to_service: bool) -> Duration {
    let to = match to_service {
        true => (Ipv4Addr::new(10, 96, 0, n), 80),
        false => (Ipv4Addr::new(10, 128, 0, n), 8080),
    };
    let begun = Instant::now();
    let connection = TcpStream::connect(to).expect("connected");
    let took = begun.elapsed();
    drop(connection);
    took
}
