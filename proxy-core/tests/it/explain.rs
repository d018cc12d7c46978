//! Answers to questions about Services and addresses.

use proptest::prelude::*;
use serde_json::{Value, json};
use switchyard_core::{
    explain::{
        ChainClients, ClosedChain, Explanation, FlowCounts, KernelCheck, Known, Note, Picture,
        Question, Verdict, explain,
    },
    model::{IpFamily, Protocol},
    objects::{Event, Kind},
    proxier::{Capabilities, Mode},
    testing::{
        Builder, NODE, arbitrary_config, arbitrary_events, check_schema, endpoint, node,
        proptest_config, service, service_cidr, slice,
    },
    track::Tracker,
};

use crate::support::{Cluster, hinted, leaving};

const ELSEWHERE: &str = "node-2";

/// A cluster whose objects are all listed.
fn cluster<'b>(builders: impl IntoIterator<Item = &'b Builder>) -> Tracker {
    let mut cluster = Cluster::new();
    cluster.tracker.set_interface_addresses(["192.168.10.1".parse().unwrap()]);
    cluster.events(Kind::ALL.map(Event::Listed));
    cluster.apply(builders);
    cluster.tracker
}

fn ask(known: &dyn Known, question: &str) -> Explanation {
    explain(&question.parse().unwrap(), known)
}

/// The codes of the findings, with `!` for problems.
fn codes(explanation: &Explanation) -> Vec<String> {
    let mark = |is_problem| if is_problem { "!" } else { "" };
    let findings = explanation.findings.iter();
    findings.map(|found| format!("{}{}", found.code, mark(found.is_problem))).collect()
}

/// A Service of type LoadBalancer with policy Local for external traffic.
fn local_balancer() -> Builder {
    service("web", "10.96.0.1")
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31999)
        .port("http", "TCP", 80)
        .node_port(30080)
        .ingress("203.0.113.7")
}

fn with(condition: Value) -> Value {
    let mut made = endpoint("10.1.0.9", ELSEWHERE);
    made["conditions"] = condition;
    made
}

#[test]
fn each_client_of_a_local_policy_has_its_answer() {
    let elsewhere =
        slice("web", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.2.1", ELSEWHERE));
    let tracker = cluster([&local_balancer(), &elsewhere]);
    for (question, verdict, expected) in [
        ("10.1.0.5 -> 203.0.113.7:80", Verdict::Serves, "with the client's address"),
        ("192.168.10.1 -> 203.0.113.7:80", Verdict::Serves, "with the node's address"),
        ("198.51.100.9 -> 203.0.113.7:80", Verdict::Drops, "externalTrafficPolicy Local"),
        ("198.51.100.9 -> 192.168.10.1:30080", Verdict::Drops, "health check on port 31999"),
        ("198.51.100.9 -> 10.96.0.1:80", Verdict::Serves, "with the node's address"),
        ("198.51.100.9 -> 10.96.0.1:81", Verdict::Refuses, "ns/web, which has no port 81/tcp"),
        ("198.51.100.9 -> 10.96.0.1:80/udp", Verdict::Refuses, "no port 80/udp"),
        ("198.51.100.9 -> 203.0.113.7:81", Verdict::Unknown, "left alone"),
        ("203.0.113.7:80", Verdict::Serves, "one endpoint"),
        ("ns/web", Verdict::Serves, "by its only endpoint"),
    ] {
        let answer = ask(&tracker, question);
        assert_eq!(answer.verdict, verdict, "{answer}");
        assert!(answer.sentence.contains(expected), "{answer}");
    }
    let answer = ask(&tracker, "ns/web");
    assert_eq!(codes(&answer), ["SWY0102"]);
    assert!(answer.to_string().contains("health check :31999  503, 0 local endpoints"), "{answer}");
}

/// Of all ports of a Service, and of each family by itself.
#[test]
fn a_health_check_may_succeed_by_another_port() {
    let dual = service("web", "10.96.0.1,fd96::1")
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31999)
        .port("http", "TCP", 80)
        .port("admin", "TCP", 8080)
        .set("spec.externalIPs", json!(["203.0.113.7", "2001:db8::7"]));
    let of = |suffix: &str, port: &str| slice("web", suffix).port(port, "TCP", 8080);
    let tracker = cluster([
        &dual,
        &of("a", "http").endpoint(endpoint("10.1.2.1", ELSEWHERE)),
        &of("b", "admin").endpoint(endpoint("10.1.0.1", NODE)),
        &of("c", "http").set("addressType", "IPv6").endpoint(endpoint("fd01::2:1", ELSEWHERE)),
    ]);
    let answer = ask(&tracker, "198.51.100.9 -> 203.0.113.7:80");
    assert!(answer.to_string().contains("31999 succeeds by another port"), "{answer}");
    let answer = ask(&tracker, "2001:db8::9 -> [2001:db8::7]:80").to_string();
    assert!(answer.contains("health check on port 31999 fails"), "{answer}");
    let line = "health check :31999  IPv4: 200, 1 local endpoint; IPv6: 503, 0 local endpoints";
    assert!(answer.contains(line), "{answer}");
}

#[test]
fn a_note_has_the_worst_that_is_wrong() {
    let web = || service("web", "10.96.0.1").port("http", "TCP", 80);
    let slice = || slice("web", "a").port("http", "TCP", 8080);
    let ready = || slice().endpoint(endpoint("10.1.0.1", NODE));
    let elsewhere = || slice().endpoint(endpoint("10.1.2.1", ELSEWHERE));
    let unready = || with(json!({"ready": false}));
    let local = || web().set("spec.internalTrafficPolicy", "Local");
    for (service, slice, refused, stuck, expected) in [
        (web(), ready(), None, 0, None),
        (web(), slice().endpoint(unready()), None, 3, Some("SWY0101 no ready endpoint")),
        (web(), ready(), Some("no space"), 3, Some("SWY0108 refused: no space")),
        (local(), elsewhere(), None, 0, Some("SWY0102 Local: no endpoint here")),
        (local_balancer(), elsewhere(), None, 1, Some("SWY0120 1 connection is stuck")),
        (local_balancer(), elsewhere(), None, 0, Some("SWY0102 Local: drops outsiders here")),
    ] {
        let tracker = cluster([&service, &slice]);
        let ports: Vec<_> = tracker.state().service_ports.values().cloned().collect();
        let note = Note::of(&ports, refused, stuck);
        let note = note.map(|Note { code, text }| format!("{code} {text}"));
        assert_eq!(note.as_deref(), expected);
        assert_eq!(tracker.slice_endpoints(&ports[0].id), 1);
        assert_eq!(tracker.refused_ports().count(), 0);
    }
}

/// In userspace mode, clients are shown to local endpoints if rules lead to the proxy, but not to
/// the node, and not with SCTP.
#[test]
fn a_proxy_shows_clients_to_some_local_endpoints() {
    let with_rules = Capabilities::KUBE_PROXY.with_rules_of(Mode::NFTABLES);
    for (capabilities, protocol, at, source) in [
        (with_rules, "TCP", "10.1.0.9", "with the client's address"),
        (with_rules, "SCTP", "10.1.0.9", "with the node's address"),
        (with_rules, "TCP", "192.168.10.1", "with the node's address"),
        (Capabilities::KUBE_PROXY, "TCP", "10.1.0.9", "with the node's address"),
    ] {
        let web = service("web", "10.96.0.1")
            .set("spec.type", "LoadBalancer")
            .set("spec.externalTrafficPolicy", "Local")
            .port("http", protocol, 80)
            .ingress("203.0.113.7");
        let here = slice("web", "a").port("http", protocol, 8080).endpoint(endpoint(at, NODE));
        let mut tracker = cluster([&web, &here]);
        tracker.set_capabilities(capabilities, Mode::USERSPACE);
        tracker.resolve();
        let question = format!("198.51.100.9 -> 203.0.113.7:80/{}", protocol.to_lowercase());
        let answer = ask(&tracker, &question);
        assert!(answer.sentence.contains(source), "{protocol} {at}: {answer}");
    }
}

#[test]
fn each_endpoint_that_is_left_out_has_its_reason() {
    let web = || service("web", "10.96.0.1").port("http", "TCP", 80);
    let ready = || slice("web", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    let zoned = node(NODE, "192.168.10.1").label("topology.kubernetes.io/zone", "zone-1");
    let two_zones = slice("web", "a")
        .port("http", "TCP", 8080)
        .endpoint(hinted(1, ELSEWHERE, &["zone-1"], &[]))
        .endpoint(hinted(9, ELSEWHERE, &["zone-2"], &[]));
    let lacks_port =
        slice("web", "b").port("web", "TCP", 8080).endpoint(endpoint("10.1.0.9", NODE));
    let of_v6 = slice("web", "b")
        .set("addressType", "IPv6")
        .port("http", "TCP", 8080)
        .endpoint(endpoint("fd01::9", NODE));
    let left_out = |condition: Value| ready().endpoint(with(condition));
    for (objects, reason, code) in [
        (vec![left_out(json!({"ready": false}))], "not ready", "SWY0110"),
        (
            vec![left_out(json!({"ready": false, "serving": false, "terminating": true}))],
            "does not serve",
            "SWY0111",
        ),
        (
            vec![ready().endpoint(leaving(endpoint("10.1.0.9", ELSEWHERE)))],
            "while others are ready",
            "SWY0111",
        ),
        (
            vec![left_out(json!({})).annotation("switchyard/weights", "10.1.0.9=0")],
            "weight 0",
            "SWY0114",
        ),
        (vec![zoned, two_zones], "others are for this zone", "SWY0112"),
        (vec![ready(), lacks_port], "lacks the port", "SWY0115!"),
        (vec![ready(), of_v6], "no address in its family", "SWY0116"),
    ] {
        let tracker = cluster(objects.iter().chain([&web()]));
        let answer = ask(&tracker, "ns/web");
        assert_eq!(codes(&answer), [code], "{answer}");
        let line =
            answer.endpoints.iter().find(|line| line.address.ip().to_string().ends_with('9'));
        let line = line.unwrap_or_else(|| panic!("{answer}"));
        assert_eq!((line.share, line.local_share), (None, None), "{answer}");
        assert!(!line.state.is_used() && answer.to_string().contains(reason), "{answer}");
        let used: Vec<_> = answer.endpoints.iter().filter(|line| line.share == Some(1.0)).collect();
        assert_eq!(used.len(), 1, "{answer}");
    }
    let local = web().set("spec.internalTrafficPolicy", "Local");
    let both = ready().endpoint(endpoint("10.1.0.9", ELSEWHERE));
    let answer = ask(&cluster([&local, &both]), "ns/web");
    assert_eq!((codes(&answer), answer.verdict), (vec!["SWY0113".to_owned()], Verdict::Serves));
    let last = slice("web", "a")
        .port("http", "TCP", 8080)
        .endpoint(leaving(endpoint("10.1.0.9", ELSEWHERE)));
    let answer = ask(&cluster([&web(), &last]), "ns/web");
    assert_eq!((codes(&answer), answer.verdict), (vec!["SWY0117!".to_owned()], Verdict::Impaired));
}

#[test]
fn endpoints_are_listed_of_the_first_ports_or_of_the_port_that_is_asked_about() {
    let endpoints = |ready| (0..60).map(move |i| (i, ready));
    let endpoints = endpoints(false).chain(endpoints(true)).map(|(i, ready)| {
        let mut made = endpoint(&format!("10.1.{}.{i}", u8::from(ready)), NODE);
        made["conditions"] = json!({ "ready": ready });
        made
    });
    let big = slice("big", "a").set("endpoints", json!(endpoints.collect::<Vec<_>>()));
    let (big, service) = (1..=100).fold((big, service("big", "10.96.0.1")), |(big, of), port| {
        let name = format!("p{port}");
        (big.port(&name, "TCP", 8000 + port), of.port(&name, "TCP", port))
    });
    let known = cluster([&service, &big]);
    let counts = |question| {
        let answer = ask(&known, question);
        check_schema("explain", &json!(answer));
        (answer.endpoints.len(), answer.unlisted_endpoints, answer.to_string())
    };
    let (listed, unlisted, text) = counts("ns/big");
    assert_eq!((listed, unlisted), (84 * 120, 16 * 120));
    assert!(text.starts_with("ns/big is served on node-1 by at least 60 endpoints."), "{text}");
    assert!(text.contains("\nand 1920 more, of other ports; ask about one"), "{text}");
    for question in ["ns/big:p100", "10.96.0.1:100"] {
        let (listed, unlisted, text) = counts(question);
        assert_eq!((listed, unlisted), (120, 0), "{text}");
    }
    assert!(counts("ns/big:none").2.contains("its ports are: p1, p10, p100,"));
}

#[test]
fn what_is_not_served_has_a_reason_a_code_and_a_verdict() {
    let none_ready =
        slice("web", "a").port("http", "TCP", 8080).endpoint(with(json!({"ready": false})));
    let web = service("web", "10.96.0.1")
        .port("http", "TCP", 80)
        .set("spec.externalIPs", json!(["198.51.100.1"]));
    let other = service("other", "198.51.100.1").port("http", "TCP", 80);
    let ranges = local_balancer()
        .set("metadata.name", "ranges")
        .set("spec.clusterIP", "10.96.0.3")
        .set("spec.clusterIPs", json!(["10.96.0.3"]))
        .set("spec.loadBalancerSourceRanges", json!(["198.51.100.0/24"]));
    let here = slice("ranges", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    let cidr = service_cidr("all", &["10.96.0.0/16"]);
    let tracker = cluster([&web, &other, &none_ready, &ranges, &here, &cidr]);
    for (question, verdict, code) in [
        ("ns/web", Verdict::Refuses, "SWY0101!"),
        ("10.96.0.1:80", Verdict::Refuses, "SWY0101!"),
        ("198.51.100.1:80", Verdict::Refuses, "SWY0101!"),
        ("ns/wob", Verdict::Unknown, "SWY0103!"),
        ("ns/ranges:https", Verdict::Unknown, "SWY0105!"),
        ("10.96.7.7:80", Verdict::Drops, "SWY0104!"),
        ("10.97.7.7:80", Verdict::Unknown, "SWY0104!"),
        ("203.0.113.9 -> 203.0.113.7:80", Verdict::Drops, "SWY0106!"),
        ("198.51.100.9 -> 203.0.113.7:80", Verdict::Serves, ""),
        ("192.168.10.1:30081", Verdict::Unknown, "SWY0105!"),
    ] {
        let answer = ask(&tracker, question);
        assert_eq!(answer.verdict, verdict, "{answer}");
        assert_eq!(codes(&answer).first().map_or("", String::as_str), code, "{answer}");
    }
    assert_eq!(
        ask(&tracker, "ns/wob").sentence,
        format!("No Service ns/wob is proxied on {NODE}; did you mean ns/web?")
    );
    let answer = ask(&tracker, "ns/web");
    assert!(
        answer
            .findings
            .iter()
            .any(|found| found.because == "port 80 of 198.51.100.1 belongs to ns/other:http"),
        "{answer}"
    );
    // Nothing is listed.
    let answer = ask(&Cluster::new().tracker, "ns/web");
    assert_eq!((answer.verdict, &codes(&answer)[0] as &str), (Verdict::Unknown, "SWY0119!"));
}

/// The answers to all questions that a picture of the tracker gives rise to.
fn questions(picture: &Picture) -> Vec<Question> {
    let mut questions = Vec::new();
    for service in &picture.services {
        questions.push(Question::Service { service: service.name.clone(), port: None });
        for port in service.ports.iter().filter_map(|port| port.resolved.as_ref()) {
            for frontend in &port.frontends {
                let Some(ip) = frontend.at.ip() else { continue };
                for client in [None, Some("10.1.0.7"), Some("192.0.2.9"), Some("203.0.113.200")] {
                    let client = client.map(|client| client.parse().unwrap());
                    let to = (ip, frontend.port).into();
                    let protocol = port.id.name.protocol;
                    questions.push(Question::Address { client, to, protocol });
                }
            }
        }
    }
    questions
}

proptest! {
    #![proptest_config(proptest_config(64))]

    /// A picture, written and read, gives the same answers; every endpoint of a pool is among the
    /// endpoints as used, and no other one is.
    #[test]
    fn a_picture_answers_as_the_tracker(config in arbitrary_config(), events in arbitrary_events(40)) {
        let mut tracker = Tracker::new(config);
        for event in events {
            tracker.apply(event);
        }
        tracker.resolve();
        let services = tracker.names().filter_map(|name| Known::service(&tracker, name, &|_| true));
        let picture = Picture { node: Known::node(&tracker), services: services.collect() };
        let text = serde_json::to_string(&picture).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Picture>(&text).unwrap(), &picture);
        for question in questions(&picture) {
            let answer = explain(&question, &tracker);
            prop_assert_eq!(answer.to_string(), explain(&question, &picture).to_string());
            let json = serde_json::to_value(&answer).unwrap();
            check_schema("explain", &json);
        }
        for port in picture.services.iter().flat_map(|service| &service.ports) {
            let used = port.endpoints.iter().filter(|e| e.state.is_used()).map(|e| e.address);
            let pools = port.resolved.iter().flat_map(|port| port.reachable()).map(|e| e.address);
            prop_assert_eq!(used.collect::<Vec<_>>(), pools.collect::<Vec<_>>(), "{:?}", port);
        }
    }
}

#[test]
fn the_mode_decides_about_addresses_that_no_port_has() {
    let cidr = service_cidr("all", &["10.96.0.0/16"]);
    let by_rules = [Verdict::Refuses, Verdict::Unknown, Verdict::Drops];
    let by_none = [Verdict::Unknown; 3];
    for (mode, rules_of, expected) in [
        (Mode::NFTABLES, None, by_rules),
        (Mode::IPTABLES, None, by_none),
        (Mode::IPVS, None, [Verdict::Refuses, Verdict::Refuses, Verdict::Drops]),
        (Mode::USERSPACE, Some(Mode::NFTABLES), by_rules),
        (Mode::USERSPACE, Some(Mode::IPTABLES), by_none),
        (Mode::USERSPACE, None, [Verdict::Refuses, Verdict::Refuses, Verdict::Unknown]),
    ] {
        let mut tracker = cluster([&local_balancer(), &cidr]);
        let capabilities = rules_of
            .map_or(Capabilities::KUBE_PROXY, |mode| Capabilities::KUBE_PROXY.with_rules_of(mode));
        tracker.set_capabilities(capabilities, mode);
        tracker.resolve();
        for (question, verdict) in
            ["10.96.0.1:99", "203.0.113.7:99", "10.96.9.9:80"].iter().zip(expected)
        {
            let answer = ask(&tracker, question);
            assert_eq!(answer.verdict, verdict, "{mode}: {answer}");
        }
        let health = ask(&tracker, "203.0.113.7:31999");
        assert_eq!(health.verdict, Verdict::Unknown, "{mode}: {health}");
    }
}

#[test]
fn flows_count_for_the_service_whose_frontend_they_met() {
    let pods = slice("web", "a")
        .port("http", "TCP", 8080)
        .endpoint(endpoint("10.1.0.1", NODE))
        .endpoint(endpoint("10.1.2.1", ELSEWHERE));
    let mut answer = ask(&cluster([&local_balancer(), &pods]), "ns/web");
    assert!(!answer.to_string().contains("FLOWS"), "{answer}");
    let mut counts = FlowCounts::new(&answer);
    let mut add = |protocol, to: &str, by: &str, is_stuck| {
        counts.add(protocol, to.parse().unwrap(), by.parse().unwrap(), is_stuck);
    };
    for to in ["10.96.0.1:80", "203.0.113.7:80", "192.168.10.1:30080", "127.0.0.1:30080"] {
        add(Protocol::Tcp, to, "10.1.0.1:8080", false);
    }
    add(Protocol::Tcp, "10.96.0.1:80", "10.1.2.1:8080", true);
    // Of another Service, protocol or endpoint, and past the Service.
    add(Protocol::Tcp, "10.96.0.2:80", "10.1.0.1:8080", true);
    add(Protocol::Udp, "10.96.0.1:80", "10.1.0.1:8080", true);
    add(Protocol::Tcp, "10.96.0.1:80", "10.1.0.7:8080", true);
    add(Protocol::Tcp, "10.1.0.1:8080", "10.1.0.1:8080", true);
    let counted = |answer: &Explanation| {
        answer.endpoints.iter().map(|line| (line.flows, line.stuck_flows)).collect::<Vec<_>>()
    };

    let mut without = answer.clone();
    without.set_flows(&counts, false);
    assert_eq!(counted(&without), [(Some(4), None), (Some(1), None)]);
    assert_eq!(without.verdict, Verdict::Serves);
    answer.set_flows(&counts, true);
    assert_eq!(counted(&answer), [(Some(4), Some(0)), (Some(1), Some(1))]);
    assert_eq!((answer.verdict, codes(&answer)[0].as_str()), (Verdict::Impaired, "SWY0120!"));
    assert!(
        answer.sentence.ends_with("endpoints, but connections are stuck: 1 of 1 of 10.1.2.1:8080.")
    );

    answer.set_unsynced(Some(("2026-01-01T00:00:00Z", "no space left")));
    assert_eq!(codes(&answer)[..2], ["SWY0120!", "SWY0121!"]);
    assert!(answer.to_string().contains("no space left"), "{answer}");

    answer.set_kernel(KernelCheck::Differs { classes: 9, different: 3 }, Some("refused"));
    assert_eq!((answer.verdict, codes(&answer)[2].as_str()), (Verdict::Differs, "SWY0122!"));
    assert!(answer.to_string().contains("the kernel does otherwise: refused; and 2 more\n"));
}

#[test]
fn chains_of_others_drop_those_whose_packets_come_to_them() {
    let pods = slice("web", "a")
        .port("http", "TCP", 8080)
        .endpoint(endpoint("10.1.0.1", NODE))
        .endpoint(endpoint("192.168.10.1", NODE));
    let known = cluster([&service("web", "10.96.0.1").port("http", "TCP", 80), &pods]);
    let chain = |clients, family| ClosedChain {
        table: "ip filter".to_owned(),
        chain: "FORWARD".to_owned(),
        hook: "forward",
        priority: 0,
        family,
        clients,
        only: None,
        program: Some("ufw".to_owned()),
        remedy: "accept them".to_owned(),
    };
    let node = ["192.168.10.1".parse().unwrap()];
    let asked = |question: &str, closed: &[ClosedChain], node| {
        let mut answer = ask(&known, question);
        assert!(answer.to_string().contains("\nother tables  not read"), "{answer}");
        answer.set_other_tables(closed.to_vec(), node);
        check_schema("explain", &json!(answer));
        answer
    };
    let [forward, output, all] =
        [ChainClients::ExceptNode, ChainClients::Node, ChainClients::ByNode]
            .map(|clients| chain(clients, None));
    let mut open = asked("ns/web", &[], &[]);
    assert_eq!((open.verdict, codes(&open).len()), (Verdict::Serves, 0));
    assert!(open.to_string().contains("\nother tables  none is seen to drop these connections\n"));
    open.undecided_chains = vec!["marks in table ip t, chain c".to_owned()];
    let text = open.to_string();
    assert!(
        text.contains("; not decided are conditions on marks in table ip t, chain c\n"),
        "{text}"
    );

    let closed = asked("10.1.9.9 -> 10.96.0.1:80", std::slice::from_ref(&forward), &[]);
    assert_eq!((closed.verdict, codes(&closed)), (Verdict::Drops, vec!["SWY0301!".to_owned()]));
    assert!(
        closed.sentence.ends_with(
            ", but the table ip filter (of ufw) drops new connections of pods and other hosts: \
             no rule of the chain FORWARD (hook forward, priority 0) accepts one."
        ),
        "{closed}"
    );
    assert!(closed.to_string().contains("          try: accept them\n"), "{closed}");
    let one = ClosedChain { only: Some(vec!["10.1.0.1:8080".parse().unwrap()]), ..forward.clone() };
    let other = ClosedChain { only: Some(vec!["10.1.0.7:8080".parse().unwrap()]), ..one.clone() };
    let closed = asked("10.1.9.9 -> 10.96.0.1:80", std::slice::from_ref(&one), &node);
    assert!(closed.sentence.ends_with(" drop those to 10.1.0.1:8080."), "{closed}");
    for (question, closed, node, verdict) in [
        ("10.1.9.9 -> 10.96.0.1:80", one, &[][..], Verdict::Impaired),
        ("10.1.9.9 -> 10.96.0.1:80", other, &[], Verdict::Serves),
        // What is of another family or another way, and what the node sends to itself.
        (
            "10.1.9.9 -> 10.96.0.1:80",
            chain(ChainClients::ExceptNode, Some(IpFamily::V6)),
            &[][..],
            Verdict::Serves,
        ),
        ("10.1.9.9 -> 10.96.0.1:80", output.clone(), &[], Verdict::Serves),
        ("192.168.10.1 -> 10.96.0.1:80", forward.clone(), &[], Verdict::Serves),
        ("192.168.10.1 -> 10.96.0.1:80", output, &[], Verdict::Drops),
        ("10.1.9.9 -> 10.96.0.1:80", forward.clone(), &node, Verdict::Impaired),
        ("ns/web", forward, &[], Verdict::Impaired),
        ("10.96.0.1:80", all, &[], Verdict::Drops),
    ] {
        let answer = asked(question, std::slice::from_ref(&closed), node);
        assert_eq!(answer.verdict, verdict, "{question} {closed:?}");
    }
}
