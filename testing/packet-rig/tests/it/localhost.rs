//! Node ports on localhost: what they take besides rules, in the kernel and in the configuration.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use packet_rig::{
    Case, NetNs, Outcome, Probe, Rig, Target, backend, binary,
    case::{Expectation, Failure, MANIFESTS, ProbePlan, Reaches},
    objects::{service, slice},
    wait::{until, until_ok},
};

fn web() -> String {
    let spec = "type: NodePort, clusterIP: 10.96.0.10, ports: [{name: t, port: 80, nodePort: 30080}, \
                {name: u, port: 80, nodePort: 30080, protocol: UDP}]";
    let ports = "{name: t, port: 8080}, {name: u, port: 8080, protocol: UDP}";
    service("web", "", spec) + &slice("web", ports, &["10.244.2.10"])
}

/// The kernel's setting, below `/proc/sys/net`.
const SETTING: &str = "ipv4/conf/all/route_localnet";

/// The selected backends that can serve localhost.
fn backends() -> impl Iterator<Item = &'static str> {
    let selected = backend::selected().unwrap();
    selected.into_iter().filter(|name| ["nftables", "iptables"].contains(name))
}

fn start(backend: &str, config: &str) -> Rig {
    let mut rig = prepare(backend, config);
    rig.start_again().unwrap();
    rig
}

fn prepare(backend: &str, config: &str) -> Rig {
    let case = Case {
        name: "localhost".to_owned(),
        config: Some(config.to_owned()),
        manifests: web(),
        cluster_cidr: true,
        ..Case::default()
    };
    Rig::prepare(&case, backend, &binary::find().unwrap()).unwrap()
}

fn targets() -> [Target; 2] {
    ["tcp://127.0.0.1:30080", "udp://127.0.0.1:30080"].map(|text| text.parse().unwrap())
}

fn served() -> [ProbePlan; 1] {
    let reaches = Expectation::Reaches(Reaches::all_of(["c"]));
    [ProbePlan::new(&["node-1"], &targets(), reaches)]
}

fn refused() -> [ProbePlan; 1] {
    [ProbePlan::new(&["node-1"], &targets(), Expectation::Fails(Failure::Refused))]
}

fn setting(rig: &Rig) -> String {
    rig.topology.node().namespace.setting(SETTING).unwrap()
}

#[test]
fn localhost_is_switched_while_the_program_runs() {
    for backend in backends() {
        let on = "nodePortAddresses: [primary, localhost]\n";
        let off =
            "nodePortAddresses: [primary, localhost]\niptables: {localhostNodePorts: false}\n";
        let mut rig = start(backend, off);
        let file = rig.proxy.options_mut().config.clone().unwrap();
        let write = |rig: &mut Rig, fields: &str| {
            let text = rig.proxy.options_mut().configuration(fields);
            fs::write(&file, text).unwrap();
        };
        rig.check(&refused()).unwrap();
        assert_eq!(setting(&rig), "0", "{backend}: nobody asked for it");
        let first = rig.proxy.pid();

        write(&mut rig, on);
        rig.check(&served()).unwrap();
        assert_eq!(setting(&rig), "1");
        let node = &rig.place("node-1").unwrap().namespace;
        let [tcp, _] = targets();
        let mut kept = node.run(|| Probe::new(tcp).converse().unwrap()).unwrap();
        kept.ask().unwrap();

        write(&mut rig, off);
        rig.check(&refused()).unwrap();
        kept.ask().expect("a connection stays");
        write(&mut rig, "nodePortAddresses: [primary]\n");
        rig.check(&refused()).unwrap();
        write(&mut rig, on);
        rig.check(&served()).unwrap();
        assert_eq!(rig.proxy.pid(), first, "{backend}: {}", rig.proxy.log());
        assert_eq!(rig.proxy.ended(), None, "{backend}: {}", rig.proxy.log());

        // A restart finds the rules of the other configuration.
        rig.proxy.kill();
        write(&mut rig, off);
        rig.start_again().unwrap();
        rig.check(&refused()).unwrap();
        rig.proxy.kill();
        write(&mut rig, on);
        rig.start_again().unwrap();
        rig.check(&served()).unwrap();
        kept.ask().expect("a connection stays");
    }
}

#[test]
fn the_kernels_setting_is_kept() {
    for backend in backends() {
        let mut rig = start(backend, "nodePortAddresses: [primary, localhost]\n");
        rig.check(&served()).unwrap();
        // The second time before the program looks again.
        for _ in 0..2 {
            rig.place("node-1").unwrap().namespace.sysctl(&[(SETTING, "0")]).unwrap();
            until_ok(|| match setting(&rig).as_str() {
                "0" => Err(format!("{backend}: {}", rig.proxy.log())),
                _ => Ok(()),
            });
        }
        rig.check(&served()).unwrap();
        // Each change is in the log, once.
        let log = || rig.proxy.log();
        let is_logged = || log().rfind(ROUTED) > log().find(NOT_ROUTED);
        until("the log names both", || log().contains(NOT_ROUTED) && is_logged());
        assert_eq!(log().matches(NOT_ROUTED).count(), 1, "{backend}: {}", log());
    }
}

/// The log lines about localhost.
const ROUTED: &str = "Rules can serve node ports on 127.0.0.1: route_localnet is on";
const NOT_ROUTED: &str = "Node ports are not served on 127.0.0.1: route_localnet is off";

/// Another program's rule keeps iptables from printing a table.
#[test]
fn localhost_is_served_and_guarded_beside_rules_that_iptables_cannot_print() {
    if !backends().any(|backend| backend == "iptables") {
        return;
    }
    let mut rig = prepare("iptables", "nodePortAddresses: [primary, localhost]\n");
    let node = rig.place("node-1").unwrap().namespace.clone();
    let rule = "add table ip nat; \
                add chain ip nat POSTROUTING { type nat hook postrouting priority 100; }; \
                add rule ip nat POSTROUTING ip saddr { 10.1.0.0/16, 10.2.0.0/16 } masquerade";
    node.output("nft", &[rule], "").unwrap();
    let kubelets = ["-N KUBE-FIREWALL", "-A KUBE-FIREWALL -s 192.0.2.1/32 -j DROP"];
    for command in kubelets {
        node.output("iptables", &command.split(' ').collect::<Vec<_>>(), "").unwrap();
    }
    for _ in 0..2 {
        rig.start_again().unwrap();
        rig.check(&served()).unwrap();
        assert_eq!(setting(&rig), "1");
        let rules = node.output("iptables", &["-S"], "").unwrap();
        let count = |text: &str| rules.matches(text).count();
        assert_eq!(count("block incoming localnet connections"), 1, "{rules}");
        assert_eq!((count("-j KUBE-FIREWALL"), count(kubelets[1])), (2, 1), "{rules}");
        rig.proxy.kill();
    }
}

/// A host in the same network that reaches 127.0.0.1 by way of the node, and has a loopback
/// address.
fn attacker(rig: &Rig) -> NetNs {
    let client = rig.place("client").unwrap().namespace.clone();
    client.sysctl(&[(SETTING, "1")]).unwrap();
    client
        .ip("route del local 127.0.0.0/8 dev lo table local\n\
             route del local 127.0.0.1 dev lo table local\n\
             addr add 127.7.7.7/32 dev eth0\n\
             route add 127.0.0.1/32 via 192.168.10.1\n")
        .unwrap();
    client
}

/// A host in the same network sends packets from or to loopback addresses, which the kernel takes
/// with `route_localnet`.
#[test]
fn other_hosts_reach_no_loopback_address() {
    for backend in backends() {
        let mut rig = start(backend, "nodePortAddresses: [primary, localhost]\n");
        rig.check(&served()).unwrap();
        assert_eq!(setting(&rig), "1");
        let client = attacker(&rig);
        let node = rig.place("node-1").unwrap().namespace.clone();
        let bind = |port| {
            let socket = node.run(|| UdpSocket::bind(("0.0.0.0", port)).unwrap()).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            socket
        };
        let server = bind(7000);
        let send = |source: &str, to: &str| {
            let socket = client.run(|| UdpSocket::bind((source, 0)).unwrap()).unwrap();
            socket.send_to(b"x", to).unwrap();
        };
        let arrives = || server.recv_from(&mut [0; 9]).is_ok();
        send("192.168.10.100", "192.168.10.1:7000");
        assert!(arrives(), "{backend}: the road is open");
        send("192.168.10.100", "127.0.0.1:7000");
        assert!(!arrives(), "{backend}: to a loopback address");
        if backend == "nftables" {
            // In iptables mode, as upstream, no one looks at the source.
            send("127.7.7.7", "192.168.10.1:7000");
            assert!(!arrives(), "{backend}: from a loopback address");
            // Nor does a node port open the way.
            let probe = Probe::expecting_silence("tcp://127.0.0.1:30080".parse().unwrap());
            assert_eq!(probe.run(&client).unwrap(), Outcome::TimedOut, "{backend}");
        }
        // Without the proxy's rules, the same packets arrive.
        rig.proxy.stop();
        node.output("nft", &["flush", "ruleset"], "").unwrap();
        send("192.168.10.100", "127.0.0.1:7000");
        assert!(arrives(), "{backend}: nothing else stops them");
    }
}

/// A host in the same network sends packets to 127.0.0.1 all the time, while the node is prepared,
/// or not, the program starts, is killed and starts again, and everything is cleaned up.
#[test]
fn loopback_addresses_are_guarded_before_the_first_sync_and_after_the_clean_up() {
    for (backend, is_prepared) in backends().flat_map(|name| [(name, true), (name, false)]) {
        let mut rig = prepare(backend, "nodePortAddresses: [primary, localhost]\n");
        let client = attacker(&rig);
        let node = rig.place("node-1").unwrap().namespace.clone();
        let server = node.run(|| UdpSocket::bind("0.0.0.0:7000").unwrap()).unwrap();
        let run = |rig: &Rig, argument: &str| {
            let mut arguments = rig.proxy.options().arguments();
            arguments.push(argument.to_owned());
            let output = rig.proxy.command(&arguments).output().unwrap();
            assert!(output.status.success(), "{backend} {argument}: {output:?}");
        };
        let nft = |arguments: &[&str]| node.output("nft", arguments, "").unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let socket = client.run(|| UdpSocket::bind("192.168.10.100:0").unwrap()).unwrap();
            let is_over = &is_over;
            let sender = scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    // A node that answers with ICMP makes the next call fail.
                    let _ = socket.send_to(b"x", "127.0.0.1:7000");
                    thread::sleep(Duration::from_micros(200));
                }
            });
            if is_prepared {
                run(&rig, "--init-only");
                assert_eq!(setting(&rig), "1", "{backend}");
                let prepared = nft(&["list", "ruleset"]);
                assert!(!prepared.contains("30080"), "{backend}: {prepared}");
            } else {
                assert_eq!(setting(&rig), "0", "{backend}");
            }
            rig.start_again().unwrap();
            assert!(!nft(&["list", "ruleset"]).contains("loopback-guard"), "{backend}");
            rig.proxy.kill();
            rig.start_again().unwrap();
            rig.proxy.stop();
            for _ in 0..2 {
                run(&rig, "--cleanup");
            }
            let left = nft(&["list", "ruleset"]);
            assert!(!left.contains("30080"), "{backend}: {left}");
            assert_eq!(setting(&rig), "1", "{backend}: others may rely on it");
            is_over.store(true, Relaxed);
            sender.join().unwrap();
        });
        server.set_nonblocking(true).unwrap();
        assert!(server.recv_from(&mut [0; 9]).is_err(), "{backend}: a packet has arrived");
        // Where nothing routes loopback addresses, nothing is left.
        node.sysctl(&[(SETTING, "0")]).unwrap();
        run(&rig, "--cleanup");
        let left = nft(&["list", "tables"]);
        assert!(!left.contains("kube-proxy") && !left.contains("loopback"), "{backend}: {left}");
        // Without the rules, the same packets arrive.
        node.sysctl(&[(SETTING, "1")]).unwrap();
        nft(&["flush", "ruleset"]);
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let socket = client.run(|| UdpSocket::bind("192.168.10.100:0").unwrap()).unwrap();
        socket.send_to(b"x", "127.0.0.1:7000").unwrap();
        server.recv_from(&mut [0; 9]).unwrap_or_else(|_| panic!("{backend}: the road is open"));
    }
}

/// The socket of a node port on `[::1]` comes and goes with the configuration, also by a restart,
/// and takes turns with another program's.
#[test]
fn a_socket_serves_ipv6s_localhost_when_it_may() {
    const METRIC: &str = "kubeproxy_nftables_localhost_nodeport_listener";
    let spec = "type: NodePort, clusterIP: 'fd00:10:96::10', ipFamilies: [IPv6], \
                ports: [{port: 80, nodePort: 30080}]";
    let web =
        service("web", "", spec) + &slice("web", "{name: '', port: 8080}", &["fd00:10:244:2::10"]);
    let prepare = |backend: &str, config: &str| {
        let rig = prepare(backend, config);
        rig.write(MANIFESTS, &web).unwrap();
        rig
    };
    let target: [Target; 1] = ["tcp://[::1]:30080".parse().unwrap()];
    let served =
        [ProbePlan::new(&["node-1"], &target, Expectation::Reaches(Reaches::all_of(["c"])))];
    let refused = [ProbePlan::new(&["node-1"], &target, Expectation::Fails(Failure::Refused))];
    if backends().any(|backend| backend == "iptables") {
        // As upstream.
        let mut rig = prepare("iptables", "nodePortAddresses: [primary, localhost]\n");
        rig.start_again().unwrap();
        rig.check(&refused).unwrap();
    }
    if !backends().any(|backend| backend == "nftables") {
        return;
    }
    let mut rig = prepare("nftables", "nodePortAddresses: [primary]\n");
    let file = rig.proxy.options().config.clone().unwrap();
    let write = |rig: &Rig, addresses: &str| {
        let fields = format!("nodePortAddresses: [{addresses}]\n");
        fs::write(&file, rig.proxy.options().configuration(&fields)).unwrap();
    };
    let value = |rig: &Rig, name: &str| {
        let metrics = rig.proxy.metrics().unwrap();
        let series = format!("{METRIC}{name}{{ip_family=\"IPv6\"}} ");
        let found = metrics.lines().find_map(|line| line.strip_prefix(&series));
        found.unwrap_or_else(|| panic!("{series}: {metrics}")).parse::<u64>().unwrap()
    };
    rig.start_again().unwrap();
    rig.check(&refused).unwrap();
    rig.proxy.kill();
    write(&rig, "primary, localhost");
    rig.start_again().unwrap();
    rig.check(&served).unwrap();
    assert_eq!((value(&rig, "s"), value(&rig, "_creation_failures_total")), (1, 0));
    write(&rig, "primary");
    rig.check(&refused).unwrap();
    assert_eq!(value(&rig, "s"), 0);

    let node = rig.place("node-1").unwrap().namespace.clone();
    let other = node.run(|| TcpListener::bind("[::1]:30080").unwrap()).unwrap();
    write(&rig, "primary, localhost");
    // More than once, while all else goes on.
    until("it is tried again", || value(&rig, "_creation_failures_total") > 1);
    drop(other);
    rig.check(&served).unwrap();
    let log = rig.proxy.log();
    assert_eq!(log.matches("A node port is not served on [::1]").count(), 1, "{log}");
    // Since the second start, which wrote into the same log.
    let [on, off] = ["are served on [::1], by sockets", "are no longer served on [::1]"];
    assert_eq!((log.matches(on).count(), log.matches(off).count()), (2, 1), "{log}");
}
