//! The parts of a proxy, with the five lines that embed it; and each part can be off by itself.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    process::Command,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use switchyard::{
    Builder, NodeConfig, Proxy, SyncReport,
    model::PerFamily,
    objects::{EndpointSlice, Kind, Service},
    proxier::Backend,
};
use switchyard_core::testing::until;
use test_netns::wait::PATIENCE;
use tokio::time::timeout;

const NODE: &str = "node-1";

fn in_namespace(test: impl FnOnce() + Send) {
    test_netns::in_namespace(|| {
        for arguments in [
            "link set lo up",
            "addr add 192.0.2.1/32 dev lo",
            "addr add 192.0.2.2/32 dev lo",
            "route add 10.96.0.0/16 dev lo src 192.0.2.1",
        ] {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            assert!(output.status.success(), "ip {arguments}: {output:?}");
        }
        test();
    });
}

/// Service `web` with this address, and what else `spec` has.
fn service(ip: &str, mut spec: Value) -> Service {
    spec["clusterIP"] = json!(ip);
    spec["clusterIPs"] = json!([ip]);
    spec["ipFamilies"] = json!(["IPv4"]);
    let metadata = json!({"name": "web", "namespace": "default"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn slice(ip: &str) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "t", "port": 8080}, {"name": "u", "port": 8080, "protocol": "UDP"}],
        "endpoints": [{"addresses": [ip], "nodeName": NODE, "conditions": {"ready": true}}],
    }))
    .unwrap()
}

/// Starts a proxy of this Service, and waits for the first sync.
fn serve(service: Service, slice: EndpointSlice, set: impl FnOnce(Builder) -> Builder) -> Proxy {
    let builder = Proxy::builder(NodeConfig::new(NODE)).backend(switchyard::nftables());
    let proxy = set(builder).start().unwrap();
    proxy.replace(Kind::Service, [service.into()]).unwrap();
    proxy.replace(Kind::EndpointSlice, [slice.into()]).unwrap();
    assert!(proxy.reports().blocking_recv().unwrap().added > 0);
    proxy
}

#[test]
fn parts_that_are_left_out_do_nothing() {
    /// The name of a part, and what leaves the part out.
    type Part = (&'static str, fn(Builder) -> Builder);
    const SETTING: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";
    let rounds: [Part; 3] = [
        ("conntrack", |it| it.conntrack(false)),
        ("health checks", |it| it.health_checks(false)),
        ("localhost", |it| it.localhost(false)),
    ];
    for (left_out, leave_out) in rounds {
        let is_on = |part: &str| part != left_out;
        in_namespace(|| {
            let server = TcpListener::bind("192.0.2.1:8080").unwrap();
            let servers = ["192.0.2.1", "192.0.2.2"].map(|ip| {
                let socket = UdpSocket::bind((ip, 8080)).unwrap();
                socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
                socket
            });
            let receives = |server: usize| servers[server].recv_from(&mut [0; 9]).is_ok();
            let spec = json!({
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 30999,
                "ports": [
                    {"name": "t", "port": 80, "nodePort": 30080},
                    {"name": "u", "port": 53, "nodePort": 30053, "protocol": "UDP"},
                ],
            });
            let proxy = serve(service("10.96.0.10", spec), slice("192.0.2.1"), leave_out);
            let setting = fs::read_to_string(SETTING).unwrap();
            let connects = TcpStream::connect("127.0.0.1:30080").is_ok();
            assert_eq!([connects, setting.trim() == "1"], [is_on("localhost"); 2]);
            let client = UdpSocket::bind("192.0.2.1:0").unwrap();
            let send = || client.send_to(b"x", "10.96.0.10:53").unwrap();
            until("the first endpoint receives", || {
                send();
                receives(0)
            });
            let mut reports = proxy.reports();
            proxy.apply(slice("192.0.2.2")).unwrap();
            let _: SyncReport = reports.blocking_recv().unwrap();
            if is_on("conntrack") {
                // A conntrack entry keeps a UDP flow at its endpoint, whatever the rules are.
                until("the second endpoint receives", || {
                    send();
                    receives(1)
                });
            } else {
                thread::sleep(Duration::from_millis(500));
                send();
                assert!(!receives(1) && receives(0), "nobody has removed the entry");
            }
            if is_on("health checks") {
                until("an answer", || {
                    health().is_some_and(|it| it.contains("\"localEndpoints\": 1"))
                });
            } else {
                assert_eq!(health(), None);
            }
            drop(server);
            proxy.clean_up().unwrap();
        });
    }
}

/// Without the thread, flows to endpoints that are gone would go on.
#[test]
fn a_panic_while_flows_are_ended_is_noticed() {
    in_namespace(|| {
        let spec = json!({"ports": [{"name": "u", "port": 53, "protocol": "UDP"}]});
        let panics = |builder: Builder| builder.on_reconciled(|_| panic!("as asked"));
        let proxy = serve(service("10.96.0.10", spec), slice("192.0.2.1"), panics);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ended = runtime.block_on(async { timeout(PATIENCE, proxy.ended()).await });
        ended.unwrap();
    });
}

/// The answer of the health check node port.
fn health() -> Option<String> {
    let mut stream = TcpStream::connect("192.0.2.1:30999").ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn families_are_those_of_the_kernel() {
    in_namespace(|| {
        let families = || switchyard::nftables().probe().unwrap().families;
        assert_eq!(families(), PerFamily { v4: true, v6: true });
        fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        assert_eq!(families(), PerFamily { v4: true, v6: false });
        let iptables = switchyard::iptables().probe().unwrap().families;
        assert_eq!(iptables, PerFamily { v4: true, v6: false });
    });
}

/// A program with proxies in several namespaces may end them from any thread.
#[test]
fn a_clean_up_is_one_of_the_proxys_namespace() {
    let started = test_netns::in_namespace(|| {
        let web = service("10.96.0.10", json!({"ports": [{"name": "t", "port": 80}]}));
        let namespace = fs::File::open("/proc/thread-self/ns/net").unwrap();
        Some((serve(web, slice("192.0.2.1"), |it| it.localhost(false)), namespace))
    });
    let (proxy, namespace) = started.unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
    let tables = || test_netns::run(&format!("nsenter --net={path} nft list tables"));
    assert!(tables().contains("kube-proxy"));
    test_netns::in_namespace(|| {
        test_netns::run("nft add table ip kube-proxy");
        proxy.clean_up().unwrap();
        assert_eq!(test_netns::run("nft list tables"), "table ip kube-proxy\n");
    });
    assert_eq!(tables(), "");
}
