//! Tests of the rig without a proxy: hand-written rules of known effect, and every kind of outcome
//! from every place, in both protocols and families.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    os::unix::process::ExitStatusExt,
    panic,
    process::Child,
    thread,
    time::{Duration, Instant},
};

use packet_rig::{EchoServer, NetNs, Outcome, Place, Probe, Protocol, Target, Topology};

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// Rules for a cluster IP of pod `a`: masquerading of packets that are not from a pod, a hairpin, a
/// port that is rejected and a port that is dropped.
const RULES: &str = "
table ip rig {
    chain prerouting {
        type nat hook prerouting priority -100
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 dnat to 10.244.1.10:8080
    }
    chain output {
        type nat hook output priority -100
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 80 dnat to 10.244.1.10:8080
    }
    chain postrouting {
        type nat hook postrouting priority 100
        ct status dnat ip saddr != 10.244.0.0/16 masquerade
        ct status dnat ip saddr 10.244.1.10 ip daddr 10.244.1.10 masquerade
    }
    chain forward {
        type filter hook forward priority 0
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 81 reject
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 82 drop
    }
    chain filter-output {
        type filter hook output priority 0
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 81 reject
        ip daddr 10.96.0.10 meta l4proto { tcp, udp } th dport 82 drop
    }
}
table ip6 rig {
    chain prerouting {
        type nat hook prerouting priority -100
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 80 dnat to [fd00:10:244:1::10]:8080
    }
    chain output {
        type nat hook output priority -100
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 80 dnat to [fd00:10:244:1::10]:8080
    }
    chain postrouting {
        type nat hook postrouting priority 100
        ct status dnat ip6 saddr != fd00:10:244::/48 masquerade
        ct status dnat ip6 saddr fd00:10:244:1::10 ip6 daddr fd00:10:244:1::10 masquerade
    }
    chain forward {
        type filter hook forward priority 0
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 81 reject
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 82 drop
    }
    chain filter-output {
        type filter hook output priority 0
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 81 reject
        ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp } th dport 82 drop
    }
}
";

fn targets(port: u16) -> impl Iterator<Item = Target> {
    let addresses: [IpAddr; 2] = ["10.96.0.10".parse().unwrap(), "fd00:10:96::10".parse().unwrap()];
    addresses.into_iter().flat_map(move |address| {
        BOTH.map(|protocol| Target { protocol, address: SocketAddr::new(address, port) })
    })
}

fn probe(from: &Place, target: Target) -> Outcome {
    let probe = match target.address.port() {
        82 => Probe::expecting_silence(target),
        _ => Probe::new(target),
    };
    probe.run(&from.namespace).unwrap()
}

#[test]
fn every_outcome_is_seen_from_every_place() {
    let _calm = crate::stay_calm();
    let started = Instant::now();
    let topology = Topology::new().unwrap();
    println!("topology built in {:?}", started.elapsed());
    let _server = EchoServer::start(&topology.place("a").unwrap().namespace, "a", 8080, &BOTH);
    topology.node().namespace.nft(RULES).unwrap();

    // At the same time, because waiting for a timeout takes long.
    thread::scope(|scope| {
        for from in ["a", "b", "node-1", "node-2", "c", "client"] {
            let topology = &topology;
            scope.spawn(move || check_outcomes(topology, topology.place(from).unwrap()));
        }
    });
}

fn check_outcomes(topology: &Topology, from: &Place) {
    for target in targets(80) {
        let outcome = probe(from, target);
        let Outcome::Reached { endpoint, seen } = &outcome else {
            panic!("{} to {target}: {outcome}", from.name);
        };
        assert_eq!(endpoint, "a");
        // Pods keep their address, except in the hairpin; everything else is masqueraded.
        let is_kept = ["b", "c"].contains(&from.name.as_str());
        let expected = if is_kept { from } else { topology.node() };
        assert_eq!(
            seen.ip(),
            expected.addresses[0].of_family(target.address.ip()),
            "{} to {target}",
            from.name
        );
    }
    for target in targets(81) {
        assert_eq!(probe(from, target), Outcome::Refused, "{} to {target}", from.name);
    }
    for target in targets(82) {
        assert_eq!(probe(from, target), Outcome::TimedOut, "{} to {target}", from.name);
    }
}

#[test]
fn without_rules_pods_and_nodes_reach_each_other_and_nobody_reaches_a_service() {
    let _calm = crate::stay_calm();
    let topology = Topology::new().unwrap();
    let servers: Vec<EchoServer> = topology
        .places()
        .iter()
        .map(|place| EchoServer::start(&place.namespace, &place.name, 8080, &BOTH).unwrap())
        .collect();
    for from in topology.places() {
        for to in topology.places() {
            // The client has no routes to pods, as hosts outside a cluster usually have none.
            let names = [from.name.as_str(), to.name.as_str()];
            if names.contains(&"client") && topology.pods().any(|pod| names.contains(&&*pod.name)) {
                continue;
            }
            for address in [IpAddr::V4(to.addresses[0].v4), IpAddr::V6(to.addresses[0].v6)] {
                for protocol in BOTH {
                    let address = SocketAddr::new(address, 8080);
                    let target = Target { protocol, address };
                    let outcome = Probe::new(target).run(&from.namespace).unwrap();
                    let Outcome::Reached { endpoint, seen } = &outcome else {
                        panic!("{} to {} at {target}: {outcome}", from.name, to.name);
                    };
                    assert_eq!(*endpoint, to.name);
                    assert!(from.has(seen.ip()), "{} to {target}: seen {seen}", from.name);
                }
            }
        }
    }
    for target in targets(82) {
        for from in ["a", "c", "node-1", "node-2", "client"] {
            let outcome = Probe::new(target).run(&topology.place(from).unwrap().namespace);
            assert_eq!(outcome.unwrap(), Outcome::Unrouted, "{from} to {target}");
        }
    }
    drop(servers);
    // The port is closed now: the pod's own kernel refuses.
    let target = "tcp://10.244.1.10:8080".parse().unwrap();
    let outcome = Probe::new(target).run(&topology.node().namespace).unwrap();
    assert_eq!(outcome, Outcome::Refused);
}

#[test]
fn a_probe_can_choose_its_source() {
    let _calm = crate::stay_calm();
    let topology = Topology::new().unwrap();
    let server = topology.node();
    let _server = EchoServer::start(&server.namespace, "node-1", 9000, &BOTH).unwrap();
    for text in ["tcp://192.168.10.1:9000", "udp://[fd00:192:168:10::1]:9000"] {
        let target: Target = text.parse().unwrap();
        let source = topology.client().addresses[3].of_family(target.address.ip());
        let probe = Probe { source: Some(source), source_port: 40_000, ..Probe::new(target) };
        let outcome = probe.run(&topology.client().namespace).unwrap();
        let seen = SocketAddr::new(source, 40_000);
        assert_eq!(outcome, Outcome::Reached { endpoint: "node-1".to_owned(), seen });
    }
}

/// The kernel removes a namespace with everything in it, so a link whose other end is inside
/// disappears with it. That is seen from a namespace of our own.
#[test]
fn nothing_is_left_after_a_drop_even_by_panic() {
    let observer = NetNs::new().unwrap();
    let spawned = {
        let observer = observer.clone();
        thread::spawn(move || {
            let topology = Topology::new().unwrap();
            let _server =
                EchoServer::start(&topology.node().namespace, "node-1", 9000, &BOTH).unwrap();
            for (index, place) in topology.places().iter().enumerate() {
                observer
                    .ip(&format!(
                        "link add watch{index} type veth peer name watched netns {}",
                        place.namespace.path().display()
                    ))
                    .unwrap();
            }
            let child = topology.client().namespace.command("sleep").arg("600").spawn().unwrap();
            assert_eq!(links(&observer).len(), topology.places().len());
            // Ends the thread without running the rest of the test.
            panic::resume_unwind(Box::new(child));
        })
    };
    let mut child: Child = *spawned.join().unwrap_err().downcast().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !links(&observer).is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(links(&observer), BTreeSet::new(), "namespaces are still there");
    let killed = child.wait().unwrap();
    assert_eq!(killed.signal(), Some(libc::SIGKILL), "it was to end with its thread");
}

/// The veth links of the namespace.
fn links(observer: &NetNs) -> BTreeSet<String> {
    let listed = observer.output("ip", &["-o", "link", "show", "type", "veth"], "").unwrap();
    listed.lines().map(str::to_owned).collect()
}
