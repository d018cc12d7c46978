//! Traffic that rules redirect.

use std::{
    io::Read,
    net::{SocketAddr, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};
use switchyard_core::{
    model::IpFamily,
    testing::{NODE, endpoint, service, slice},
};
use switchyard_userspace::CaptureMode;
use test_netns::wait::until;

use crate::common::{
    answers, in_namespace, run, servers, settings, start, switch_ipv6, web, web_slice,
};

/// Runs a test with the rules of each backend.
fn with_each(test: fn(CaptureMode)) {
    for kind in [CaptureMode::Nftables, CaptureMode::Iptables] {
        in_namespace(move || test(kind));
    }
}

const EVERYWHERE: [&str; 2] = ["10.96.0.1:80", "192.0.2.1:30080"];

#[test]
fn changes_of_endpoints_do_not_change_the_rules() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        servers(&[2, 3]);
        node.sync([web().apply(), web_slice(&[2])]);
        assert_eq!(answers(EVERYWHERE[0], 2), [Some(2); 2]);
        let report = node.sync([web_slice(&[3])]);
        assert_eq!((report.bytes, report.added, report.removed), (0, 0, 0), "{kind}");
        assert_eq!(answers(EVERYWHERE[0], 2), [Some(3); 2]);
        // Without endpoints, the rules refuse; and with endpoints again, they redirect again.
        assert!(node.sync([web_slice(&[])]).bytes > 0);
        assert_eq!(answers(EVERYWHERE[0], 1), [None]);
        node.sync([web_slice(&[2])]);
        assert_eq!(answers(EVERYWHERE[1], 1), [Some(2)]);
    });
}

#[test]
fn an_address_goes_from_one_service_to_another() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        servers(&[2]);
        node.sync([web().apply(), web_slice(&[2])]);
        let other = service("other", "10.96.0.1").port("", "TCP", 80);
        node.sync([web().delete(), other.apply()]);
        assert_eq!(answers(EVERYWHERE[0], 1), [None], "{kind}: the other has no endpoints");
        node.sync([other.delete(), web().apply()]);
        assert_eq!(answers(EVERYWHERE[0], 1), [Some(2)], "{kind}");
    });
}

#[test]
fn connections_are_refused_while_a_socket_cannot_be_opened() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        servers(&[2]);
        node.sync([web().apply(), web_slice(&[2])]);
        // Another program takes the address of the sockets.
        run("ip addr del 192.0.0.83/32 dev switchyard0");
        let other = service("other", "10.96.0.2").port("", "TCP", 80).apply();
        let endpoints = slice("other", "1").port("", "TCP", 8080);
        let report = node.sync([other, endpoints.endpoint(endpoint("192.0.2.2", NODE)).apply()]);
        let [skipped] = report.degraded.as_slice() else { panic!("{:?}", report.degraded) };
        assert!(skipped.reason.ends_with("; its connections are refused"), "{}", skipped.reason);
        assert!(report.requeue_after.is_some());
        let (program, arguments, rule) = match kind {
            CaptureMode::Nftables => ("nft", "list ruleset", "goto reject-chain"),
            _ => ("iptables", "-w -S", "REJECT"),
        };
        let rules = run(&format!("{program} {arguments}"));
        let is_refused = |line: &str| line.contains("10.96.0.2") && line.contains(rule);
        assert!(rules.lines().any(is_refused), "{kind}: {rules}");
        assert_eq!(node.full().degraded, []);
        assert_eq!(answers("10.96.0.2:80", 1), [Some(2)], "{kind}");
    });
}

/// Where only devices have IPv6 switched off, the kernel has it.
#[test]
fn ipv6_that_is_switched_off_on_the_device_costs_ipv4_nothing() {
    with_each(|kind| {
        switch_ipv6("default", false);
        let mut node = start(settings(kind));
        servers(&[2, 3]);
        node.sync([web().apply(), web_slice(&[2])]);
        assert!(!node.tracker.transition().programs(IpFamily::V6), "{kind}");
        assert_eq!(answers(EVERYWHERE[0], 2), [Some(2); 2], "{kind}");
        node.sync([web_slice(&[3])]);
        assert_eq!(answers(EVERYWHERE[1], 2), [Some(3); 2], "{kind}");
        switch_ipv6("switchyard0", true);
        let dual = service("dual", "10.96.0.4,fd00::4").port("", "TCP", 80).apply();
        let endpoints = slice("dual", "6").set("addressType", "IPv6").port("", "TCP", 8080);
        let report = node.sync([dual, endpoints.endpoint(endpoint("fd01::1", NODE)).apply()]);
        assert_eq!(report.degraded, [], "{kind}");
        assert!(node.tracker.transition().programs(IpFamily::V6), "{kind}");
        let rules = match kind {
            CaptureMode::Nftables => run("nft list table ip6 switchyard-userspace"),
            _ => run("ip6tables -w -t nat -S"),
        };
        assert!(rules.contains("fd00::4") && rules.contains("fd73:7769:7463::1"), "{rules}");
    });
}

/// Else another Service's endpoints would answer them.
#[test]
fn flows_end_when_the_address_of_their_socket_is_free() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        run("sysctl -qw net.ipv4.ip_local_reserved_ports=20000-24999,25001-29999");
        for last in [2, 3] {
            let server = UdpSocket::bind(SocketAddr::from(([192, 0, 2, last], 53))).expect("free");
            thread::spawn(move || {
                while let Ok((_, client)) = server.recv_from(&mut [0]) {
                    let _ = server.send_to(&[last], client);
                }
            });
        }
        let dns = |name, ip| service(name, ip).port("", "UDP", 53).apply();
        let slice = |name| slice(name, "1").port("", "UDP", 53);
        let client = UdpSocket::bind("192.0.2.1:0").expect("a port");
        client.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
        client.connect("10.96.0.1:53").expect("an address");
        let ask = || {
            let mut answer = [0];
            client.send(b"?").and_then(|_| client.recv(&mut answer)).ok().map(|_| answer[0])
        };
        let first = slice("first");
        let at = |last: u8| endpoint(&format!("192.0.2.{last}"), NODE);
        node.sync([dns("first", "10.96.0.1"), first.clone().endpoint(at(2)).apply()]);
        assert_eq!(ask(), Some(2), "{kind}");
        node.sync([first.apply()]);
        node.sync([dns("second", "10.96.0.2"), slice("second").endpoint(at(3)).apply()]);
        until("the flow has ended", || ask().is_none());
    });
}

/// Without their mark, the proxy's connections to the endpoint would come back to the proxy.
#[test]
fn an_endpoint_may_be_at_the_external_ip_and_port_of_its_service() {
    with_each(|kind| {
        let mut settings = settings(kind);
        settings.forwarder.connections = Some(50);
        let mut node = start(settings);
        servers(&[2]);
        let web = service("web", "10.96.0.1")
            .port("http", "TCP", 8080)
            .set("spec.externalIPs", serde_json::json!(["192.0.2.2"]));
        node.sync([web.apply(), web_slice(&[2])]);
        for address in ["10.96.0.1:8080", "192.0.2.2:8080"] {
            assert_eq!(answers(address, 2), [Some(2); 2], "{kind}: {address}");
        }
    });
}

/// A connection to the proxy itself would pass by source ranges and firewalls.
#[test]
fn the_proxy_is_reached_through_services_alone() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        servers(&[1, 2]);
        node.sync([web().apply(), web_slice(&[2])]);
        // The system gives no client such a port.
        let [port] = ports_of_the_proxy()[..] else { panic!("one socket") };
        assert!((20_000..30_000).contains(&port), "{port}");
        let idle = service("idle", "10.96.0.2").port("", "TCP", 80).node_port(8080);
        node.sync([idle.apply()]);
        let refused = [format!("192.0.0.83:{port}"), "192.0.2.1:8080".to_owned()];
        let none_answers =
            || refused.iter().for_each(|to| assert_eq!(answers(to, 1), [None], "{kind}: {to}"));
        none_answers();
        let outside = std::fs::read_link("/proc/thread-self").expect("proc");
        in_namespace(|| {
            let outside = format!("nsenter --net=/proc/{}/ns/net", outside.display());
            run(&format!("{outside} ip link add eth1 type veth peer name eth0"));
            let inside = std::fs::read_link("/proc/thread-self").expect("proc");
            let inside = inside.file_name().expect("a thread").display().to_string();
            run(&format!("{outside} ip link set eth0 netns {inside}"));
            run(&format!("{outside} ip addr add 192.0.3.1/24 dev eth1"));
            run(&format!("{outside} ip link set eth1 up"));
            run("ip addr add 192.0.3.2/24 dev eth0");
            run("ip link set eth0 up");
            run("ip route add default via 192.0.3.1");
            assert_eq!(answers(EVERYWHERE[0], 1), [Some(2)], "{kind}");
            none_answers();
        });
        if kind == CaptureMode::Nftables {
            // Each packet of all connections enters these. The rest is for the first ones.
            let rules = run("nft list table ip switchyard-userspace");
            let filters = rules.lines().filter(|line| line.contains("type filter hook"));
            let hooks: Vec<_> = filters.filter_map(|line| line.split_whitespace().nth(3)).collect();
            assert_eq!(hooks, ["forward", "prerouting"]);
        }
    });
}

/// The ports at 192.0.0.83 that are listened on.
fn ports_of_the_proxy() -> Vec<u16> {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("proc");
    let port = |line: &str| {
        let address = line.split_whitespace().nth(1)?;
        u16::from_str_radix(address.strip_prefix("530000C0:")?, 16).ok()
    };
    sockets.lines().filter_map(port).collect()
}

/// Connections of other hosts would end at the node's own servers.
#[test]
fn endpoints_at_loopback_addresses_are_rejected() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        let endpoints = slice("web", "1").port("http", "TCP", 8080);
        let problems = node.tracker.apply(endpoints.endpoint(endpoint("127.0.0.2", NODE)).apply());
        let [problem] = problems.as_slice() else { panic!("{kind}: {problems:?}") };
        assert_eq!(problem.field, "endpoints[0].addresses[0]");
    });
}

/// The rules stay, and lead to sockets that are gone.
#[test]
fn connections_wait_for_the_next_start() {
    with_each(|kind| {
        let mut node = start(settings(kind));
        servers(&[2]);
        node.sync([web().apply(), web_slice(&[2])]);
        // The system has the end of the handshake wait for 200 ms for bytes to send with it.
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        sockopt::set_tcp_quickack(&client, false).expect("TCP has the option");
        let to: SocketAddr = EVERYWHERE[0].parse().expect("an address");
        client.connect(&to.into()).expect("the handshake begins");
        let asked = thread::spawn(move || {
            let mut answer = [0];
            TcpStream::from(client).read_exact(&mut answer).map(|()| answer)
        });
        node.proxier.drain(Duration::MAX);
        assert_eq!(asked.join().expect("a result").ok(), Some([2]), "{kind}: the handshake ends");
        let place = std::fs::read_link("/proc/thread-self").expect("proc");
        let sockets = format!("/proc/{}/net/tcp", place.display());
        thread::scope(|scope| {
            // The thread has the same namespace.
            let asked = scope.spawn(|| answers(EVERYWHERE[0], 1));
            // SYN_SENT, of a connection to 10.96.0.1.
            until("a client has tried", || {
                let sockets = std::fs::read_to_string(&sockets).expect("proc");
                sockets.lines().any(|line| line.contains(" 0100600A:0050 02 "))
            });
            node.restart(crate::common::open(settings(kind)));
            assert_eq!(asked.join().expect("an answer"), [Some(2)], "{kind}");
        });
        assert!(!run("nft list tables").contains("switchyard-pause"), "{kind}");
        (node.proxier.forwards().expect("streams").pause)();
        // Such as a sync that was under way.
        node.full();
        assert!(run("nft list tables").contains("switchyard-pause"), "{kind}");
        node.clean_up();
        assert!(!run("nft list tables").contains("switchyard-pause"), "{kind}");
    });
}
