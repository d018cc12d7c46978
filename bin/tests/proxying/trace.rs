//! `switchyard trace` beside the running program, with real connections.

use std::{
    net::{TcpListener, TcpStream, UdpSocket},
    process::{Child, Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use switchyard_core::testing::check_schema;

use crate::{
    manifests::{Manifests, NODE, service, slice, web},
    namespace::{Namespace, until},
};

const TO: &str = "10.96.0.10:80";

/// Starts a trace, and waits until it marks packets.
fn start(namespace: &Namespace, arguments: &[&str]) -> Child {
    let mut command = namespace.switchyard(&[&["trace"], arguments].concat());
    let trace = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the table is there", || has_table(namespace, &trace));
    trace
}

fn has_table(namespace: &Namespace, trace: &Child) -> bool {
    let tables = namespace.list("tables");
    tables.lines().any(|line| line.ends_with(&format!(" switchyard-trace-{}", trace.id())))
}

/// The status and the report of a trace that has ended.
#[track_caller]
fn report(output: &Output) -> (Option<i32>, Value) {
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    check_schema("trace", &report);
    (output.status.code(), report)
}

#[test]
fn packets_are_followed_and_compared_and_no_table_stays() {
    let namespace = Namespace::new();
    let inside = &namespace.0;
    inside.ip("addr add 10.0.0.5/32 dev lo\nroute add 10.96.0.0/24 dev lo\n").unwrap();
    let none = service("none", "clusterIP: 10.96.0.11, ports: [{port: 80, protocol: TCP}]");
    let manifests = Manifests::new(&format!("{NODE}{}{none}", web()));
    let flag = manifests.local_socket();
    let program = manifests.serve(&namespace, &[&flag]);
    let _listener = inside.run(|| TcpListener::bind("10.0.0.5:8080").unwrap()).unwrap();
    let connect = |to: &'static str| {
        let connect = move || {
            TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_millis(200)).is_ok()
        };
        inside.run(connect).unwrap()
    };
    let trace = |to: &'static str, more: &[&str]| {
        let all = ["any", to, "--packets=1", "-o", "json", &flag];
        let trace = start(&namespace, &[&all, more].concat());
        connect(to);
        report(&trace.wait_with_output().unwrap())
    };

    let (status, answer) = trace(TO, &[]);
    assert_eq!(status, Some(0), "{answer}");
    assert_eq!((&answer["service"], &answer["losses"]), (&json!("shop/web"), &json!(0)));
    let packet = &answer["packets"][0];
    let got = ["flags", "input", "end", "lastDestination", "asExplained"].map(|at| &packet[at]);
    assert_eq!(
        got,
        [&json!("SYN"), &json!(null), &json!("received"), &json!("10.0.0.5:8080"), &json!(true)]
    );
    let chains = packet["chains"].as_array().unwrap();
    assert!(chains.iter().all(|chain| chain["isForeign"] == json!(false)), "{packet}");
    let nat = chains.iter().find(|chain| chain["actions"] == json!(["dnat"])).unwrap();
    assert_eq!((&nat["hook"], &nat["kind"]), (&json!("output"), &json!("nat")));
    assert_eq!(nat["then"][1], json!("10.0.0.5:8080"));

    let (status, answer) = trace("10.96.0.11:80", &[]);
    assert_eq!((status, &answer["packets"][0]["end"]), (Some(0), &json!("rejected")), "{answer}");

    // What comes behind the end, such as another trace, changes nothing about it.
    let late = "add table inet late\n\
                add chain inet late in { type filter hook input priority 2000; }\n";
    inside.nft(late).unwrap();
    let (status, answer) = trace(TO, &[]);
    assert_eq!((status, &answer["packets"][0]["end"]), (Some(0), &json!("received")), "{answer}");

    let rules = "add table inet silence\n\
                 add chain inet silence out { type filter hook output priority 20; }\n\
                 add rule inet silence out tcp dport 8080 drop comment \"quiet\"\n";
    inside.nft(rules).unwrap();
    let (status, answer) = trace(TO, &[]);
    assert_eq!((status, &answer["packets"][0]["end"]), (Some(3), &json!("dropped")), "{answer}");
    let last = answer["packets"][0]["chains"].as_array().unwrap().last().unwrap();
    let got = ["table", "comment", "verdict", "isForeign"].map(|at| &last[at]);
    assert_eq!(got, [&json!("silence"), &json!("quiet"), &json!("drop"), &json!(true)]);

    // Without a proxy to ask, the way is shown nevertheless.
    let nobody = format!("--local-socket={}/none.sock", manifests.path());
    let (status, answer) = trace(TO, &[&nobody]);
    assert_eq!((status, &answer["packets"][0]["asExplained"]), (Some(5), &json!(null)), "{answer}");

    assert_eq!(namespace.answer(&["trace", "192.0.2.1", TO, "--for=1s", &flag]).0, Some(4));
    let mut killed = start(&namespace, &["any", TO, "--for=10m", &flag]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(!namespace.list("tables").contains("switchyard-trace-"));
    let (_, log) = program.terminate();
    assert!(!log.contains("by another program"), "traces are no changes of the proxy's: {log}");
}

#[test]
fn datagrams_of_ipv6_are_followed_through_rules_of_iptables() {
    let namespace = Namespace::new();
    let inside = &namespace.0;
    inside.ip("addr add fd00::5/128 dev lo\nroute add fd96::/64 dev lo\n").unwrap();
    let dns = service("dns", "clusterIP: 'fd96::10', ports: [{port: 53, protocol: UDP}]");
    let ready = slice("dns", "5353, protocol: UDP", "{addresses: ['fd00::5'], nodeName: node-1}");
    let ready = ready.replace("addressType: IPv4", "addressType: IPv6");
    let node = NODE.replace("192.0.2.1", "fd00::1");
    let manifests = Manifests::new(&format!("{node}{dns}{ready}"));
    let flag = manifests.local_socket();
    let _program = manifests.serve(&namespace, &["--proxy-mode=iptables", &flag]);
    // A snapshot has these rules.
    let (_, taken) = namespace.answer(&["snapshot", &flag]);
    assert!(taken.contains("{\"table\":\"ip6tables-nft nat\",\"text\":\":KUBE-"), "{taken}");
    let jumps =
        ["\\n-A OUTPUT -m comment", "-j KUBE-SERVICES\\n", " --to-destination [fd00::5]:5353\\n"];
    assert!(jumps.iter().all(|part| taken.contains(part)), "{taken}");
    let ip6tables = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').collect();
        inside.output("ip6tables-nft", &arguments, "")
    };
    for (end, is_explained) in [("received", true), ("dropped", false)] {
        if !is_explained {
            // The kubelet's chain, which is none of the proxy's, and may be there.
            let _ = ip6tables("-N KUBE-FIREWALL");
            ip6tables("-A KUBE-FIREWALL -p udp --dport 5353 -m limit -j DROP").unwrap();
            ip6tables("-A OUTPUT -j KUBE-FIREWALL").unwrap();
        }
        let all = ["any", "[fd96::10]:53/udp", "--packets=1", "-o", "json", &flag];
        let trace = start(&namespace, &all);
        let send = || {
            let client = UdpSocket::bind("[::]:0").unwrap();
            // One that is dropped as it is sent is an error of the sender's.
            let _ = client.send_to(b"a", "[fd96::10]:53");
        };
        inside.run(send).unwrap();
        let (status, answer) = report(&trace.wait_with_output().unwrap());
        let packet = &answer["packets"][0];
        assert_eq!(packet["end"], json!(end), "{answer}");
        assert_eq!(packet["lastDestination"], json!("[fd00::5]:5353"), "{answer}");
        assert_eq!(
            (status, &packet["asExplained"]),
            (Some(if is_explained { 0 } else { 3 }), &json!(is_explained))
        );
        let chains = packet["chains"].as_array().unwrap();
        let nat = chains.iter().find(|chain| chain["actions"] == json!(["DNAT"])).unwrap();
        assert_eq!((&nat["family"], &nat["isForeign"]), (&json!("ip6"), &json!(false)));
        if !is_explained {
            let last = chains.last().unwrap();
            let chain = last["chains"].as_array().unwrap().last();
            assert_eq!((chain, &last["isForeign"]), (Some(&json!("KUBE-FIREWALL")), &json!(true)));
        }
    }
}
