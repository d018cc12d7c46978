//! The running program explains itself over its local socket.

use std::{
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
};

use api_standin::load;
use serde_json::Value;
use switchyard_core::testing::check_schema;
use tempfile::NamedTempFile;

use crate::{
    manifests::{Manifests, NODE, service, slice, web},
    namespace::{HEALTH, Namespace, Program, until, until_ok},
    standin::{Cluster, run},
};

#[test]
fn a_running_proxy_answers_its_own_user() {
    let namespace = Namespace::new();
    let web = service("web", "clusterIP: 10.96.0.10, ports: [{port: 80, protocol: TCP}]");
    let endpoint =
        "{addresses: [10.0.0.5], nodeName: node-1, zone: a, targetRef: {kind: Pod, name: web-x}}";
    let ready = slice("web", "8080, protocol: TCP", endpoint);
    let manifests = Manifests::new(&format!("{NODE}{web}{ready}"));
    let flag = manifests.local_socket();
    let program = manifests.serve(&namespace, &[&flag]);
    assert_eq!(
        fs::metadata(flag.trim_start_matches("--local-socket=")).unwrap().permissions().mode()
            & 0o777,
        0o600
    );
    let run = |status: i32, arguments: &[&str]| {
        let (ended, text) = namespace.answer(arguments);
        assert_eq!(ended, Some(status), "{text}");
        text
    };
    let text = run(0, &["explain", "shop/web", &flag]);
    let begins =
        "shop/web is served on node-1 by its only endpoint.\nThe kernel's rules do the same.";
    assert!(text.starts_with(begins), "{text}");
    assert!(text.contains("\n10.0.0.5:8080/tcp  web-x  here  a     100 % "), "{text}");
    // The start of the proxy is no change.
    assert!(!text.contains("last change"), "{text}");
    run(4, &["explain", "shop/none", &flag]);
    let lines = run(0, &["snapshot", &flag]);
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    lines.lines().for_each(|line| check_schema("snapshot", &json(line)));
    check_schema("verify", &json(&run(0, &["verify", "-o", "json", &flag])));
    let changes = run(0, &["explain", "--since", "1h", "shop/web", &flag]);
    assert!(changes.ends_with("  the proxy began\n"), "{changes}");
    let none = run(0, &["explain", "--since=1h", "shop/none", &flag]);
    assert_eq!(none, "Nothing has changed.\n");
    run(4, &["explain", "--since=1h", "10.96.0.10:80", &flag]);
    // A reader that has seen enough is no failure.
    for command in [&["snapshot"][..], &["top", "--once"], &["verify"], &["doctor"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = namespace.switchyard(&[command, &[&flag]].concat());
        let ended = command.stdout(writer).output().unwrap();
        assert!(ended.status.success() && ended.stderr.is_empty(), "{command:?} {ended:?}");
    }
    // The change is in the history, too.
    assert!(lines.contains("\"added\":[\"10.0.0.5:8080\"]"), "{lines}");
    // So are the kernel's tables and the metrics.
    assert!(
        lines.contains("{\"kernel\":{\"table\":\"ip kube-proxy\",\"text\":\"add chain "),
        "{lines}"
    );
    assert!(lines.contains("\\nadd element ip kube-proxy "), "{lines}");
    assert!(
        lines.contains("{\"otherTables\":[") && lines.contains("{\"metrics\":\"# HELP "),
        "{lines}"
    );
    let taken = NamedTempFile::new().unwrap();
    fs::write(&taken, lines).unwrap();
    let from = taken.path().to_str().unwrap();
    // But for the comparison with the kernel's rules and the flows, which are of the moment.
    let [shown, live] = [&run(0, &["explain", "shop/web", "--from", from]), &text].map(|text| {
        let text = text.split("\nENDPOINT").next().unwrap();
        text.split_once(" node-1, nftables").unwrap().1.to_owned()
    });
    assert_eq!(shown, live);
    let (status, text) = Namespace::new().answer(&["verify", "--from", from]);
    let without_tables = "kernel != objects: no table of a proxy is in this network namespace\n";
    assert!(status == Some(1) && text.starts_with(without_tables), "{text}");
    manifests.write("all", &format!("{NODE}{web}"));
    let refused = || {
        let (status, text) = namespace.answer(&["explain", "shop/web", &flag]);
        status == Some(1) && text.contains("\nlast change  ")
    };
    until("the Service has no endpoint, in the kernel as well", refused);
    let text = run(1, &["explain", "shop/web", &flag]);
    let change = text.split("\nlast change  ").nth(1).unwrap().lines().next().unwrap();
    let (time, _) = change.split_once("Z, in the kernel after ").expect(change);
    assert_eq!(time.len(), "2026-11-27T19:30:29.431".len(), "{text}");
    assert!(change.ends_with(" ms -10.0.0.5:8080"), "{text}");
    let changes = run(0, &["explain", "--since", "1h", "shop/web", &flag]);
    assert!(changes.ends_with("\n    shop/web (TCP, IPv4) -10.0.0.5:8080\n"), "{changes}");
    program.terminate();
    run(4, &["explain", "shop/web", &flag]);
}

/// Starts a proxy for a Service with one endpoint, 10.0.0.5. Returns the flag of its socket, too.
fn proxy_of_web(namespace: &Namespace, mode: &str) -> (Program, Manifests, String) {
    let manifests = Manifests::new(&(NODE.to_owned() + &web()));
    let flag = manifests.local_socket();
    (manifests.serve(namespace, &[&flag, "--proxy-mode", mode]), manifests, flag)
}

/// The comparison of each backend is among the tests of them all.
#[test]
fn a_backend_is_asked_whether_the_kernel_holds_what_it_programmed() {
    for mode in ["iptables", "userspace"] {
        let namespace = Namespace::new();
        let (_proxy, _manifests, flag) = proxy_of_web(&namespace, mode);
        let ask = || namespace.answer(&["explain", "shop/web", &flag]);
        let (status, text) = ask();
        let holds = text.contains("The kernel holds what was programmed. node-1");
        assert!(status == Some(0) && holds, "{mode}: {text}");
        if mode == "iptables" {
            // A chain alone, which the proxy does not look at all the time.
            let save = || namespace.listing("iptables-save", &["-t", "nat"]);
            let chains = save();
            let chain = chains.lines().find_map(|line| line.strip_prefix(":KUBE-SVC-")).unwrap();
            let chain = format!("KUBE-SVC-{}", chain.split(' ').next().unwrap());
            namespace.0.output("iptables", &["-t", "nat", "-F", &chain], "").unwrap();
            let (status, text) = ask();
            let because = format!("the kernel was changed: the IPv4 chain {chain} in nat");
            assert!(status == Some(3) && text.contains(&because), "{text}");
            until("the repair", || save().contains(&format!("-A {chain} ")));
        }
    }
}

#[test]
fn connections_of_endpoints_are_counted_and_stuck_ones_named() {
    let namespace = Namespace::new();
    let inside = &namespace.0;
    inside.ip("addr add 10.0.0.5/32 dev lo\nroute add 10.96.0.10/32 dev lo\n").unwrap();
    let (_proxy, _manifests, flag) = proxy_of_web(&namespace, "nftables");
    let endpoint = || {
        let (status, text) = namespace.answer(&["explain", "shop/web", "-o", "json", &flag]);
        let answer: Value = serde_json::from_str(&text).unwrap();
        let line = &answer["endpoints"][0];
        (status, line["flows"].as_u64(), line["stuckFlows"].as_u64())
    };
    until("the table was read", || endpoint() == (Some(0), Some(0), Some(0)));

    let (mut client, _server) = inside
        .run(|| {
            let listener = TcpListener::bind("10.0.0.5:8080").unwrap();
            let client = TcpStream::connect("10.96.0.10:80").unwrap();
            (client, listener.accept().unwrap())
        })
        .unwrap();
    client.write_all(b"acknowledged").unwrap();
    until("the connection counts", || endpoint() == (Some(0), Some(1), Some(0)));
    // Nothing comes back from the endpoint any more, before connection tracking sees that.
    let rules = "add table ip silence\n\
                 add chain ip silence output { type filter hook output priority -300; }\n\
                 add rule ip silence output ip saddr 10.0.0.5 tcp sport 8080 drop\n";
    inside.nft(rules).unwrap();
    client.write_all(b"not acknowledged").unwrap();
    until("the connection is stuck", || endpoint() == (Some(5), Some(1), Some(1)));
    let expected = "shop/web is served on node-1 by its only endpoint, but connections are stuck: 1 of 1 of 10.0.0.5:8080.\n";
    // Each time that the client sends again, the connection is not stuck for two seconds.
    until_ok(|| {
        let (_, text) = namespace.answer(&["explain", "shop/web", &flag]);
        let is_there = text.starts_with(expected) && text.contains("\nSWY0120 ! ");
        if is_there && text.contains("  FLOWS  STUCK  ") { Ok(()) } else { Err(text) }
    });
}

#[test]
fn a_table_that_drops_is_named_with_its_remedy() {
    let namespace = Namespace::new();
    let inside = &namespace.0;
    let (_proxy, _manifests, flag) = proxy_of_web(&namespace, "nftables");
    let ask = |question: &str| namespace.answer(&["explain", question, &flag]);
    let from_pod = "10.0.0.9 -> 10.96.0.10:80";
    let (status, text) = ask(from_pod);
    let passes = "\nother tables  none is seen to drop these connections\n";
    assert!(status == Some(0) && text.contains(passes), "{text}");
    // A table that was only looked at has no rules.
    inside.output("iptables-legacy", &["-t", "mangle", "-L"], "").unwrap();
    inside.output("iptables-legacy", &["-A", "FORWARD", "-j", "DROP"], "").unwrap();
    let unread = "connections; rules are not read of iptables-legacy filter\n";
    let (_, text) = ask(from_pod);
    assert!(text.contains(unread), "{text}");
    inside.output("iptables-legacy", &["-F", "FORWARD"], "").unwrap();

    // A rule about one endpoint.
    let rule = "table inet guard {\nchain f {\ntype filter hook forward priority 10;\n\
                ip saddr 10.0.0.0/24 tcp dport 8080 drop\n}\n}\n";
    inside.nft(rule).unwrap();
    let (status, text) = ask(from_pod);
    assert!(status == Some(2) && text.contains(" drop those to 10."), "{text}");
    assert_eq!((ask("10.0.1.9 -> 10.96.0.10:80").0, ask("shop/web").0), (Some(0), Some(0)));
    inside.nft("delete table inet guard\n").unwrap();

    // Rules on what is not known here.
    let rule = "table inet guard {\nchain f {\ntype filter hook forward priority 10;\n\
                meta mark 0x4000 drop\n}\n}\n";
    inside.nft(rule).unwrap();
    let (status, text) = ask(from_pod);
    let undecided = "; not decided are conditions on marks in table inet guard, chain f\n";
    assert!(status == Some(0) && text.contains(undecided), "{text}");
    inside.nft("delete table inet guard\n").unwrap();

    inside
        .nft(
            "table inet guard {\nchain f {\ntype filter hook forward priority 10; policy drop;\n\
             ct state established,related accept\n}\n}\n",
        )
        .unwrap();
    let (status, text) = ask(from_pod);
    assert!(
        status == Some(2) && text.contains("\nSWY0301 ! the table inet guard drops "),
        "{text}"
    );
    assert_eq!((ask("shop/web").0, ask("127.0.0.1 -> 10.96.0.10:80").0), (Some(5), Some(0)));
    let remedy = text.split("          try: nft ").nth(1).unwrap().lines().next().unwrap();
    inside.nft(&format!("{remedy}\n")).unwrap();
    assert_eq!((ask(from_pod).0, ask("shop/web").0), (Some(0), Some(0)));

    inside.output("iptables-nft", &["-P", "FORWARD", "DROP"], "").unwrap();
    let (status, text) = ask(from_pod);
    let remedy = text.split("          try: iptables ").nth(1).expect(&text);
    let remedy: Vec<&str> = remedy.lines().next().unwrap().split(' ').collect();
    inside.output("iptables-nft", &remedy, "").unwrap();
    assert_eq!((status, ask(from_pod).0), (Some(2), Some(0)));
}

#[test]
fn pods_are_named_as_the_api_server_names_them() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        load::fill(cluster.server.store(), 2, 3);
        let flag = format!("--local-socket={}", cluster.directory.path().join("p.sock").display());
        let _program = cluster.run_program(&namespace, &[&flag]);
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        let ask = |service: &str| -> Value {
            let (_, text) = namespace.answer(&["explain", service, "-ojson", &flag]);
            serde_json::from_str(&text).unwrap()
        };
        let names = |service: &str| {
            let answer = ask(service);
            let lines = answer["endpoints"].as_array().unwrap();
            let text = |line: &Value| {
                ["pod", "nodeName", "zone"]
                    .map(|name| line[name].as_str().unwrap_or("-").to_owned())
            };
            lines.iter().map(text).collect::<Vec<_>>()
        };
        let name = |service: usize| format!("{}/svc-{service}", load::NAMESPACE);
        // A server that does not answer costs no more than the names.
        cluster.server.faults().withhold_answers(true);
        assert_eq!(names(&name(0)), [["-"; 3]; 3]);
        cluster.server.faults().withhold_answers(false);
        // An answer may come after a question has given up, and is for the next one.
        until("the late answer has the names of the first Service", || {
            names(&name(0))[0] == ["pod-0", "node-0", "zone-0"]
        });
        let requests = cluster.server.requests();
        let asked = |line: &&String| line.contains("service-name%3Dsvc-0");
        assert_eq!(requests.iter().filter(asked).count(), 1, "{requests:#?}");
        let expected = [
            ["pod-3", "node-3", "zone-0"],
            ["pod-4", "node-4", "zone-1"],
            ["pod-5", "node-5", "zone-2"],
        ];
        until("the second Service has names", || names(&name(1)) == expected);
        assert!(ask(&name(1))["serviceSeconds"].is_u64(), "it is known when it was changed");
    });
}
