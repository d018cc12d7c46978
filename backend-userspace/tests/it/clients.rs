//! The addresses of clients that endpoints see.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc::channel,
    thread,
    time::Duration,
};

use serde_json::json;
use socket2::SockRef;
use switchyard_core::{
    config::NodeConfig,
    testing::{Builder, NODE, Stepped, endpoint, service, slice},
};
use switchyard_userspace::CaptureMode;
use tokio::time::timeout;

use crate::common::{Node, in_namespace, open, run, settings};

/// The time in which what is announced is read, which is there at once.
const ANNOUNCED: Duration = Duration::from_millis(200);

/// The place of the thread's namespace.
fn here() -> String {
    let thread = fs::read_link("/proc/thread-self").expect("proc");
    format!("/proc/{}/ns/net", thread.display())
}

/// Runs `then` on another host, with an address of a network of `node`, which has the first
/// one, on the interface with this name.
fn on_a_host(node: &str, name: &str, network: &str, last: u8, then: impl FnOnce() + Send) {
    let (node, name, network) = (node.to_owned(), name.to_owned(), network.to_owned());
    in_namespace(move || {
        let on_node = |command: &str| run(&format!("nsenter --net={node} {command}"));
        on_node(&format!("ip link add {name} type veth peer name eth0 netns {}", process(&here())));
        on_node(&format!("ip addr add {network}.1/24 dev {name}"));
        on_node(&format!("ip link set {name} up"));
        run(&format!("ip addr add {network}.{last}/24 dev eth0"));
        run("ip link set eth0 up");
        run("ip link set lo up");
        run(&format!("ip route add default via {network}.1"));
        then();
    });
}

/// The thread of a namespace, as `ip` takes it.
fn process(namespace: &str) -> &str {
    namespace.split('/').nth(4).expect("a thread")
}

/// Starts servers in this namespace that answer with the address of the client.
fn serve() {
    let tcp = TcpListener::bind("0.0.0.0:8080").expect("the port is free");
    thread::spawn(move || {
        for client in tcp.incoming().flatten() {
            let seen = client.peer_addr().expect("a client").ip().to_string();
            let _ = (&client).write_all(seen.as_bytes());
        }
    });
    let udp = UdpSocket::bind("0.0.0.0:8080").expect("the port is free");
    thread::spawn(move || {
        while let Ok((_, client)) = udp.recv_from(&mut [0; 9]) {
            let _ = udp.send_to(client.ip().to_string().as_bytes(), client);
        }
    });
}

/// The client that the servers of [`serve`] see.
fn seen_by_tcp(address: &str) -> String {
    let address: SocketAddr = address.parse().expect("an address");
    let mut seen = String::new();
    let client = TcpStream::connect_timeout(&address, Duration::from_secs(5));
    client.and_then(|mut client| client.read_to_string(&mut seen)).expect("an answer");
    seen
}

fn seen_by_udp(address: &str) -> String {
    seen_by_udp_from("0.0.0.0:0", address)
}

fn seen_by_udp_from(client: &str, address: &str) -> String {
    let client = UdpSocket::bind(client).expect("a port");
    client.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
    client.send_to(b"?", address).expect("sent");
    let mut answer = [0; 50];
    let length = client.recv(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// The client that the pod's server sees without the Service. The port is one at which another
/// program of the node listens.
fn seen_by_forwarding(_: &str) -> String {
    seen_by_udp_from("0.0.0.0:8080", "10.0.1.2:8080")
}

/// A node with a Service of one pod, at the external IP 198.51.100.1 for clients from elsewhere.
fn node(kind: CaptureMode) -> Node {
    run("ip link set lo up");
    run("sysctl -qw net.ipv4.ip_forward=1");
    // Strict, as distributions have it.
    run("sysctl -qw net.ipv4.conf.all.rp_filter=1");
    let mut node = Stepped::new(NodeConfig::new(NODE), open(settings(kind)));
    node.tracker.set_interface_addresses(vec!["10.0.1.1".parse().expect("an address")]);
    node
}

/// The table and the rule that have answers to clients come back, as far as they are there.
fn rules() -> [bool; 2] {
    let has_table = run("nft list tables").contains("switchyard-answers");
    [has_table, !run("ip rule show pref 83").is_empty()]
}

fn web() -> Builder {
    service("web", "10.96.0.1")
        .port("t", "TCP", 80)
        .port("u", "UDP", 80)
        .set("spec.type", json!("NodePort"))
        .set("spec.externalTrafficPolicy", json!("Local"))
        .set("spec.externalIPs", json!(["198.51.100.1"]))
}

fn sync(node: &mut Node) {
    let pod = slice("web", "1").port("t", "TCP", 8080).port("u", "UDP", 8080);
    node.sync([web().apply(), pod.endpoint(endpoint("10.0.1.2", NODE)).apply()]);
}

#[test]
fn a_local_endpoint_sees_a_client_from_elsewhere_as_far_as_the_node_allows_it() {
    for kind in [CaptureMode::Nftables, CaptureMode::Iptables] {
        in_namespace(move || {
            let mut node = node(kind);
            let place = here();
            on_a_host(&place, "pod", "10.0.1", 2, serve);
            let (ask, asked) = channel::<fn(&str) -> String>();
            let (answer, answers) = channel();
            thread::scope(|scope| {
                scope.spawn(|| {
                    on_a_host(&place, "outside", "10.0.2", 7, move || {
                        for seen in asked {
                            let _ = answer.send(seen("198.51.100.1:80"));
                        }
                    });
                });
                let seen_by = |server| {
                    ask.send(server).expect("the client waits");
                    answers.recv().expect("an answer")
                };
                let seen = || {
                    let seen = seen_by(seen_by_tcp);
                    assert_eq!(seen_by(seen_by_udp), seen, "{kind}");
                    seen
                };
                // Without such a Service, no packet has to pass the rules.
                let other = slice("other", "1").port("t", "TCP", 8080);
                node.sync([
                    service("other", "10.96.0.2").port("t", "TCP", 80).apply(),
                    other.endpoint(endpoint("10.0.1.2", NODE)).apply(),
                ]);
                assert_eq!(rules(), [false; 2], "{kind}");
                sync(&mut node);
                assert_eq!(rules(), [true; 2], "{kind}");
                assert_eq!(seen(), "10.0.2.7", "{kind}");
                let other = UdpSocket::bind("0.0.0.0:8080").expect("the port is free");
                SockRef::from(&other).set_ip_transparent_v4(true).expect("root");
                assert_eq!(seen_by(seen_by_forwarding), "10.0.2.7", "{kind}: past the other");
                assert_eq!(seen(), "10.0.2.7", "{kind}");
                drop(other);
                // As an older kernel has it.
                let chain = "chain ip switchyard-answers prerouting";
                let listed = run(&format!("nft -a list {chain}"));
                let rule = listed.lines().find(|rule| rule.contains("socket wildcard 1"));
                let handle = rule.and_then(|rule| rule.rsplit(' ').next()).expect("a handle");
                run(&format!("nft delete rule ip switchyard-answers prerouting handle {handle}"));
                assert!(node.full().drift.is_none());
                assert_eq!(seen(), "10.0.2.7", "{kind}");
                // What another program removes is noticed, comes back, and costs TCP the address
                // alone.
                let mut monitor = node.proxier.monitor().expect("something to watch");
                let mut is_noticed = |node: &Node| {
                    let changed = monitor.externally_changed();
                    let noticed = async { timeout(ANNOUNCED, changed).await.is_ok() };
                    node.runtime.block_on(noticed)
                };
                for command in [
                    "nft delete table ip switchyard-answers",
                    "nft flush chain ip switchyard-answers prerouting",
                    "nft add table ip switchyard-answers { flags dormant; }",
                    "ip rule del pref 83",
                    "ip route flush table 183",
                ] {
                    assert!(!is_noticed(&node), "{kind}: what the proxy does");
                    run(command);
                    assert!(is_noticed(&node), "{kind}: {command}");
                    assert_eq!(seen_by(seen_by_tcp), "10.0.1.1", "{kind}: {command}");
                    node.full();
                    assert_eq!(seen(), "10.0.2.7", "{kind}: {command}");
                }
                run("sysctl -qw net.ipv4.conf.all.src_valid_mark=1");
                node.full();
                assert_eq!(seen(), "10.0.1.1", "{kind}: answers would not come back");
                run("sysctl -qw net.ipv4.conf.all.src_valid_mark=0");
                node.full();
                assert_eq!(seen(), "10.0.2.7", "{kind}");
                // A program that leads answers past the rules is noticed by the first connections.
                node.restart(open(settings(kind)));
                run("nft add table ip other");
                let chain = "type filter hook prerouting priority -140;";
                run(&format!("nft add chain ip other pre {{ {chain} }}"));
                run("nft add rule ip other pre iifname pod meta mark set 0");
                for _ in 0..4 {
                    assert_eq!(seen_by(seen_by_tcp), "10.0.1.1", "{kind}");
                }
                assert_eq!(seen(), "10.0.1.1", "{kind}");
                run("nft delete table ip other");
                node.full();
                assert_eq!(seen(), "10.0.2.7", "{kind}");
                // Connections outlive their Service, but not the program.
                node.sync([web().delete()]);
                node.full();
                assert_eq!(rules(), [true; 2], "{kind}");
                node.restart(open(settings(kind)));
                assert_eq!(rules(), [false; 2], "{kind}");
                sync(&mut node);
                assert_eq!(rules(), [true; 2], "{kind}");
                node.clean_up();
                assert_eq!(rules(), [false; 2], "{kind}");
                drop(ask);
            });
        });
    }
}

/// The same as another client of the host, with the address 10.0.2.8.
fn other_seen_by_tcp(address: &str) -> String {
    run("ip route replace default via 10.0.2.1 src 10.0.2.8");
    let seen = seen_by_tcp(address);
    run("ip route replace default via 10.0.2.1");
    seen
}

#[test]
fn failures_are_judged_by_whose_they_are() {
    in_namespace(|| {
        let mut node = node(CaptureMode::Nftables);
        let place = here();
        on_a_host(&place, "pod", "10.0.1", 2, || {
            // As a NetworkPolicy does.
            run("nft add table ip blocked");
            run("nft add chain ip blocked in { type filter hook input priority 0; }");
            run("nft add rule ip blocked in ip saddr 10.0.2.8 drop");
            serve();
        });
        sync(&mut node);
        on_a_host(&place, "outside", "10.0.2", 7, || {
            let here = "198.51.100.1:80";
            run("ip addr add 10.0.2.8/24 dev eth0");
            for _ in 0..4 {
                assert_eq!(other_seen_by_tcp(here), "10.0.1.1", "kept away by its address");
            }
            assert_eq!([seen_by_tcp(here), seen_by_udp(here)], ["10.0.2.7"; 2]);
            // After a success, too, answers may come back no longer.
            run(&format!("nsenter --net={place} ip rule del pref 83"));
            assert_eq!([seen_by_tcp(here), seen_by_udp(here)], ["10.0.1.1"; 2]);
        });
    });
}
