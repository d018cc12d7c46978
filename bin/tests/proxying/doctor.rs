//! `switchyard doctor` on nodes that lack something, and on nodes that lack nothing.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use serde_json::Value;
use switchyard_core::testing::check_schema;
use tempfile::TempDir;

use crate::{
    manifests::{Manifests, NODE, service, slice, web},
    namespace::{METRICS, Namespace},
    standin::{Cluster, run},
    table,
    unprivileged::{AS_USER, Place},
};

/// A report: the exit status, and the findings by code.
pub(crate) struct Examined {
    pub(crate) status: i32,
    findings: BTreeMap<String, Value>,
    pub(crate) report: Value,
}

impl Examined {
    pub(crate) fn codes(&self) -> Vec<&str> {
        self.findings.keys().map(String::as_str).collect()
    }

    #[track_caller]
    pub(crate) fn text(&self, code: &str, field: &str) -> &str {
        let found = self.findings.get(code);
        let finding = found.unwrap_or_else(|| panic!("{code} is not in {}", self.report));
        finding[field].as_str().unwrap()
    }
}

#[track_caller]
pub(crate) fn examine(namespace: &Namespace, arguments: &[&str]) -> Examined {
    let all = [&["doctor", "-o", "json", "--hostname-override=node-1"], arguments].concat();
    let output = namespace.switchyard(&all).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    check_schema("doctor", &report);
    let code = |finding: &Value| finding["code"].as_str().unwrap().to_owned();
    let list = report["findings"].as_array().unwrap();
    let findings = list.iter().map(|finding| (code(finding), finding.clone())).collect();
    Examined { status: output.status.code().unwrap(), findings, report }
}

/// A namespace of a node that lacks nothing.
pub(crate) fn node() -> Namespace {
    let namespace = Namespace::new();
    namespace.0.sysctl(&[("ipv4/ip_forward", "1")]).unwrap();
    namespace
}

#[test]
fn nothing_is_found_on_a_good_node() {
    let namespace = node();
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (0, vec![]), "{}", found.report);

    let manifests = Manifests::new(NODE);
    let _program = manifests.serve(&namespace, &["--proxy-mode=nftables"]);
    let before = namespace.list("ruleset");
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (0, vec![]), "{}", found.report);
    assert!(before.contains("kube-proxy") && namespace.list("ruleset") == before, "{before}");

    let (_, text) = namespace.answer(&["doctor", "--hostname-override=node-1"]);
    let first =
        "node-1: 0 errors, 0 warnings, 14 checks passed, 6 not made. Nothing was changed.\n";
    assert!(text.starts_with(first), "{text}");
    let failure = namespace.switchyard(&["doctor", "--config=/nowhere"]).output().unwrap();
    assert_eq!(failure.status.code(), Some(3));
    assert!(failure.stderr.starts_with(b"switchyard doctor: "), "{failure:?}");
}

#[test]
fn sysctls_are_found() {
    let namespace = node();
    let set = |settings: &[(&str, &str)]| namespace.0.sysctl(settings).unwrap();
    let codes = || -> Vec<String> {
        let found = examine(&namespace, &["--conntrack-tcp-be-liberal"]);
        found.codes().into_iter().map(str::to_owned).collect()
    };
    let two_networks = "link add one type veth peer name peer1\nlink add two type veth peer name peer2\n\
                        link set peer1 up\nlink set peer2 up\nlink set one up\nlink set two up\n\
                        addr add 10.1.0.1/24 dev one\naddr add 10.2.0.1/24 dev two\n\
                        route add default via 10.1.0.2 metric 1\n\
                        route add default via 10.2.0.2 metric 2\n";
    namespace.0.ip(two_networks).unwrap();
    let names = ["all", "one", "two"].map(|name| format!("ipv4/conf/{name}/rp_filter"));
    let filter = |value| set(&names.each_ref().map(|name| (name.as_str(), value)));
    filter("2");
    const LIBERAL: &str = "netfilter/nf_conntrack_tcp_be_liberal";
    const RANGE: &str = "ipv4/ip_local_port_range";
    set(&[(LIBERAL, "1")]);
    assert_eq!(codes(), [""; 0]);
    filter("1");
    set(&[(LIBERAL, "0"), (RANGE, "1024 60999"), ("ipv4/ip_forward", "0")]);
    assert_eq!(codes(), ["SWY0203", "SWY0402", "SWY0403", "SWY0405"]);
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0402", "SWY0403", "SWY0405"]));
    assert!(found.text("SWY0403", "finding").ends_with("dropped at one, two"));
    // IPv4 counts where Services have it.
    let six = service("six", "clusterIP: 'fd00::10', ports: [{port: 80}]");
    let manifests = Manifests::new(&(NODE.to_owned() + &six));
    let forwards = || {
        let found = examine(&namespace, &["--manifests", manifests.path()]);
        !found.codes().contains(&"SWY0402")
    };
    assert!(forwards());
    manifests.write("web", &web());
    assert!(!forwards());
    set(&[("ipv4/ip_forward", "1")]);
    assert_eq!(examine(&namespace, &[]).status, 1, "warnings only");
    set(&[("ipv4/ip_local_reserved_ports", "30000-32767")]);
    namespace.0.ip("route del default via 10.2.0.2\n").unwrap();
    set(&[(LIBERAL, "1")]);
    assert_eq!(codes(), [""; 0]);
}

#[test]
fn bridges_without_rules_are_found() {
    const SETTING: &str = "bridge/bridge-nf-call-iptables";
    let namespace = node();
    // Without the module, the setting is missing in all namespaces.
    let has_module = fs::exists("/proc/sys/net/bridge").unwrap();
    let switch = |value| {
        if has_module {
            namespace.0.sysctl(&[(SETTING, value)]).unwrap();
        }
    };
    namespace.0.ip("link add cni0 type bridge\n").unwrap();
    switch("0");
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0], "no pods");
    namespace.0.ip("link add pod type veth peer name inside\nlink set pod master cni0\n").unwrap();
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0401"]));
    assert!(found.text("SWY0401", "finding").contains("bridge cni0"));
    assert_eq!(examine(&namespace, &["--masquerade-all"]).codes(), [""; 0]);
    if has_module {
        switch("1");
        assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);
    }
    switch("0");
    // The proxy warns of it where it matters.
    let remedy = found.text("SWY0401", "remedy");
    let manifests = Manifests::new(NODE);
    let warns = |arguments: &[&str]| {
        let program = manifests.serve(&namespace, arguments);
        let (_, log) = program.terminate();
        let warned = log.lines().find(|line| line.contains("Bridged packets bypass"));
        warned.is_some_and(|line| {
            let expected = format!("bridge=\"cni0\" remedy=\"{remedy}\"");
            assert!(line.starts_with('W') && line.contains(&expected), "{line}");
            true
        })
    };
    assert!(warns(&["--proxy-mode=nftables"]));
    assert!(!warns(&["--proxy-mode=nftables", "--masquerade-all"]));
    assert!(!warns(&["--proxy-mode=userspace"]));
}

#[test]
fn tables_that_drop_are_found() {
    let namespace = node();
    let gate = |more: &str| {
        let rules = format!(
            "table inet guard\ndelete table inet guard\ntable inet guard {{\nchain f {{\n\
             type filter hook forward priority 10; policy drop;\n\
             ct state established,related accept\n{more}\n}}\n}}\n"
        );
        namespace.0.nft(&rules).unwrap();
    };
    gate("");
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0301"]));
    assert!(found.text("SWY0301", "because").contains("the chain f (hook forward, priority 10)"));
    // The remedy is one.
    let remedy = found.text("SWY0301", "remedy").strip_prefix("nft ").unwrap().to_owned();
    namespace.0.nft(&format!("{remedy}\n")).unwrap();
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);
    gate("iifname \"cni0\" accept");
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0], "it may be enough");
    gate("");
    assert_eq!(examine(&namespace, &["--proxy-mode=userspace"]).codes(), [""; 0]);
}

#[test]
fn second_proxies_and_leftovers_are_found() {
    let namespace = node();
    // As kube-proxy leaves them.
    namespace.0.nft("table ip kube-proxy {\nchain services {\n}\n}\n").unwrap();
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0303"]));
    assert!(found.text("SWY0303", "because").contains("the table ip kube-proxy"));
    namespace.0.output("iptables-nft", &["-t", "nat", "-N", "KUBE-SVC-A"], "").unwrap();
    assert_eq!(examine(&namespace, &[]).codes(), ["SWY0302", "SWY0303"]);

    let manifests = Manifests::new(NODE);
    let program = manifests.serve(&namespace, &["--proxy-mode=nftables"]);
    let gone = || !namespace.list("ruleset").contains("KUBE-SVC-A");
    crate::namespace::until("the leftovers are gone", gone);
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);

    namespace.0.ip("link add kube-ipvs0 type veth peer name other\n").unwrap();
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0302"]));
    assert!(
        found
            .text("SWY0302", "finding")
            .starts_with("Rules of ipvs mode are beside those of nftables")
    );
    namespace.0.ip("link del kube-ipvs0\n").unwrap();

    let other =
        ["--healthz-bind-address=127.0.0.1:20256", "--metrics-bind-address=127.0.0.1:20249"];
    let second = manifests.start(&namespace, &other);
    namespace.wait("127.0.0.1:20256", "/readyz", |status, _| status == 200);
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0304"]));
    second.terminate();
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);
    program.terminate();
    assert_eq!(examine(&namespace, &[]).codes(), ["SWY0303"]);
}

#[test]
fn chains_of_iptables_legacy_are_found() {
    let namespace = node();
    let chain = ["-w", "5", "-t", "nat", "-N", "KUBE-SVC-B"];
    if namespace.0.output("iptables-legacy", &chain, "").is_err() {
        return test_netns::skipped("the kernel has no iptables-legacy");
    }
    let found = examine(&namespace, &[]);
    assert_eq!(found.codes(), ["SWY0303"]);
    assert!(found.text("SWY0303", "because").contains("chains KUBE-SVC-* of iptables-legacy"));
}

#[test]
fn localhost_that_is_not_routed_is_found() {
    let manifests = Manifests::new(NODE);
    for (mode, served, left_out) in [
        ("iptables", &[][..], "--nodeport-addresses=192.0.2.0/24"),
        ("nftables", &["--nodeport-addresses=primary,localhost"], "--nodeport-addresses=primary"),
    ] {
        let namespace = node();
        let _program =
            manifests.serve(&namespace, &[&[&*format!("--proxy-mode={mode}")], served].concat());
        assert_eq!(examine(&namespace, served).codes(), [""; 0]);
        namespace.0.sysctl(&[("ipv4/conf/all/route_localnet", "0")]).unwrap();
        let found = examine(&namespace, served);
        assert_eq!((found.status, found.codes()), (1, vec!["SWY0404"]), "{mode}");
        for other in ["--iptables-localhost-nodeports=false", left_out] {
            assert_eq!(examine(&namespace, &[other]).codes(), [""; 0], "{mode} {other}");
        }
    }
}

#[test]
fn ports_of_another_program_are_found() {
    let namespace = node();
    let listen = |at: &str| namespace.0.run(|| TcpListener::bind(at)).unwrap().unwrap();
    // It does not answer.
    let silent = listen("127.0.0.1:10249");
    let found = examine(&namespace, &[]);
    assert_eq!((found.status, found.codes()), (2, vec!["SWY0406"]));
    assert!(found.text("SWY0406", "finding").contains("the proxy's metrics, 127.0.0.1:10249"));
    drop(silent);
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);
    // It answers otherwise.
    let other = listen("127.0.0.1:10256");
    thread::spawn(move || {
        for stream in other.incoming() {
            let mut stream = stream.unwrap();
            // What is not read when a connection is closed resets it.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello\n");
        }
    });
    let found = examine(&namespace, &[]);
    assert!(found.text("SWY0406", "because").contains("answers otherwise"), "{}", found.report);
}

#[test]
fn a_mode_that_cannot_be_used_is_found() {
    let namespace = node();
    let empty = TempDir::new().unwrap();
    let arguments = ["doctor", "--proxy-mode=nftables", "--nft-transport=json"];
    let mut command = namespace.switchyard(&arguments);
    let output = command.env("PATH", empty.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\nSWY0407 error    This node can run no proxy as configured\n"),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(examine(&namespace, &arguments[1..2]).codes(), [""; 0], "without nft");
}

#[test]
fn checks_that_cannot_be_made_say_so() {
    let namespace = node();
    let place = Place::new();
    let mut command = place.command(&namespace, AS_USER);
    let output = command.args(["doctor", "--hostname-override=n"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for check in ["conntrack table", "conntrack losses", "tables of others", "one mode", "kernel"] {
        let line = format!("\nnot checked       {check}: needs CAP_NET_ADMIN\n");
        assert!(text.contains(&line), "{check} in\n{text}");
    }
}

/// Adds TCP entries to this address until the table of this thread's namespace has `share` percent
/// of its limit.
fn fill(namespace: &Namespace, to: &str, from: u32, share: u32) -> u32 {
    let limit = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let end = limit.trim().parse::<u32>().unwrap() / 100 * share;
    let flow = |number: u32| {
        let [_, high, middle, low] = number.to_be_bytes();
        table::flow("TCP", &format!("10.{high}.{middle}.{low}:4000"), to, to)
    };
    namespace.0.run(|| table::add_all((from..end).map(flow))).unwrap();
    end
}

#[test]
fn a_table_that_is_nearly_full_is_found_and_by_whom() {
    let namespace = node();
    namespace.0.ip("route add 10.96.0.0/16 dev lo").unwrap();
    // Rules have connections tracked.
    namespace
        .0
        .nft("table ip t {\nchain c {\ntype filter hook output priority 0;\nct state new\n}\n}\n")
        .unwrap();
    let manifests = Manifests::new(
        &[service("web", "clusterIP: 10.96.0.11, ports: [{port: 80}]"), slice("web", "8080", "")]
            .concat(),
    );
    let mut filled = fill(&namespace, "10.96.0.11:80", 0, 50);
    assert_eq!(examine(&namespace, &[]).codes(), [""; 0]);
    filled = fill(&namespace, "10.200.0.1:5432", filled, 82);
    let found = examine(&namespace, &manifests.arguments());
    assert_eq!((found.status, found.codes()), (1, vec!["SWY0201"]), "{}", found.report);
    let because = found.text("SWY0201", "because");
    assert!(because.ends_with("; shop/web 60 %, others 39 %"), "{because}");
    let found = examine(&namespace, &[]);
    let because = found.text("SWY0201", "because");
    assert!(
        because.ends_with("; 10.96.0.11:80/tcp 60 %, 10.200.0.1:5432/tcp 39 %, others 0 %"),
        "{because}"
    );

    fill(&namespace, "10.200.0.1:5432", filled, 100);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // New flows, each of which needs an entry.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for port in 20_000..20_200 {
                    let socket =
                        namespace.0.run(|| UdpSocket::bind(("192.0.2.1", 0))).unwrap().unwrap();
                    let _ = socket.send_to(b"?", ("10.96.0.11", port));
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let found = examine(&namespace, &[]);
        over.store(true, Ordering::Relaxed);
        assert_eq!(
            (found.status, found.codes()),
            (2, vec!["SWY0201", "SWY0202"]),
            "{}",
            found.report
        );
        assert_eq!(found.text("SWY0201", "level"), "error");
        assert_eq!(found.text("SWY0202", "finding"), "Connection tracking drops new connections");
    });
}

#[test]
fn a_table_that_is_nearly_full_is_an_event() {
    run(|namespace| async move {
        let cluster = Cluster::start().await;
        fill(&namespace, "10.200.0.1:5432", 0, 81);
        let _program = cluster.run_program(&namespace, &[]);
        let event = cluster.event("ConntrackNearlyFull", "").await;
        assert_eq!(
            (&event["type"], &event["regarding"]["kind"]),
            (&"Warning".into(), &"Node".into())
        );
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("connection tracking is 8"), "{note}");
        namespace.wait(METRICS, "/metrics", |_, text| {
            text.contains("\nswitchyard_conntrack_entries_limit ")
        });
    });
}
