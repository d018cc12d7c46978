//! Answers of this machine's kernel and programs, which the targets read. A replay of the answers
//! is read as they were. `SWITCHYARD_WRITE_CORPUS=1` writes them to the corpus.

use std::{env, fmt::Debug, fs, net::UdpSocket, thread, time::Duration};

use switchyard_core::{
    config::NodeConfig,
    model::{InterfaceAddresses, IpFamily},
    testing::{NODE, Stepped, endpoint, service, slice, web_slice},
};
use switchyard_fuzz::TARGETS;
use switchyard_kernel::{
    conntrack::UsageReader,
    ipset::IpSets,
    ipvs::{Batch, Ipvs, RealServer, Selector, VirtualServer},
    netlink::testing::{Traffic, record, replay},
    nftables::{
        Elements, Family, Table, Transport, TransportKind,
        gates::Chains,
        netlink::{Listener, NetlinkTransport},
        trace::{TraceListener, TraceTable, TracedFlow},
    },
    route::{AddressFollower, bridges_of_veths},
    xtables::testing::{count_nft_tables, legacy_table},
};
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::{in_namespace, run, run_with};
use tokio::runtime;

use crate::mutations::corpus;

/// Has a target read an input, which is written to the corpus if that is asked for.
fn input(target: &str, name: &str, bytes: &[u8]) {
    assert!(!bytes.is_empty(), "{target}: nothing was recorded of {name}");
    TARGETS.iter().find(|(known, _)| *known == target).unwrap().1(bytes);
    if env::var_os("SWITCHYARD_WRITE_CORPUS").is_some() {
        fs::create_dir_all(corpus(target)).unwrap();
        fs::write(corpus(target).join(name), bytes).unwrap();
    }
}

/// Records what `read` asks, and compares the result with that of a replay.
fn answers<T: PartialEq + Debug>(target: &str, name: &str, read: impl Fn() -> T) -> T {
    let mut result = None;
    let traffic = record(|| result = Some(read()));
    let result = result.unwrap();
    input(target, name, &traffic.answers);
    assert_eq!(replay(Traffic { notices: Vec::new(), ..traffic }, read), result, "{target}");
    result
}

/// A Service of each kind in nftables mode.
fn start() -> Stepped<NftProxier> {
    let proxier = NftProxier::new(NftConfig::default(), TransportKind::Netlink.open().unwrap());
    let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
    let lb = service("lb", "10.0.0.3")
        .port("", "UDP", 53)
        .node_port(30053)
        .ingress("192.0.2.9")
        .set("spec.loadBalancerSourceRanges", vec!["198.51.100.0/24", "203.0.113.1/32"]);
    let sticky = service("sticky", "10.0.0.2")
        .port("http", "TCP", 80)
        .set("spec.sessionAffinity", "ClientIP");
    let endpoints = |name| {
        let made = slice(name, "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
        made.endpoint(endpoint("10.1.0.2", "node-2"))
    };
    let unnamed = slice("lb", "a").port("", "UDP", 5353).endpoint(endpoint("10.1.0.3", NODE));
    let none = service("none", "10.0.0.4").port("", "SCTP", 1);
    let web = service("web", "10.0.0.1").port("http", "TCP", 80);
    let objects = [web, endpoints("web"), sticky, endpoints("sticky"), lb, unnamed, none];
    node.sync(objects.iter().map(|object| object.apply()));
    node
}

#[test]
fn tables_of_nftables_mode() {
    in_namespace(|| {
        let mut node = start();
        let notices = record(|| {
            let tables = [Family::Ip, Family::Ip6].map(|family| Table::new(family, "kube-proxy"));
            let mut listener = Listener::open(&[], tables.to_vec()).unwrap();
            node.sync([service("none", "10.0.0.4").delete(), web_slice(&[1, 2, 3])]);
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(listener.changed()).unwrap();
        });
        input("nftables-notices", "sync", &notices.notices);
        for family in [Family::Ip, Family::Ip6] {
            let read = || {
                let mut transport = NetlinkTransport::open().unwrap();
                transport.read(&Table::new(family, "kube-proxy"), Elements::Include).unwrap()
            };
            let name = family.as_str();
            let table = answers("nftables", name, read).unwrap();
            assert!(table.chains.len() > 3 && table.sets.len() > 3);
            let listing = run(&format!("nft -j list table {name} kube-proxy"));
            input("nft-json", name, listing.as_bytes());
        }
    });
}

#[test]
fn chains_of_other_programs() {
    const RULES: &str = "
table inet t {
  set states { type ct_state; elements = { established, related }; }
  chain next { meta l4proto icmp accept; tcp dport 22 drop; counter; return; }
  chain forward {
    type filter hook forward priority 5; policy drop;
    ct state established,related accept
    ct state @states accept
    iifname \"lo\" accept
    ip saddr 10.0.0.0/8 log prefix \"seen\" jump next
    ct state vmap { invalid : drop }
    goto next
  }
  chain output { type filter hook output priority 0; policy accept; reject with icmpx admin-prohibited; }
}
table ip dormant { flags dormant; chain c { type filter hook forward priority 0; policy drop; }; }";
    in_namespace(|| {
        run_with("nft -f -", RULES);
        let closed = || Chains::list().unwrap().closed_gates(|_| false).unwrap();
        assert_eq!(answers("gates", "inet", closed).len(), 2);
    });
}

#[test]
fn traced_packets() {
    const RULES: &str = "table inet t {
  chain out { type filter hook output priority 5; meta l4proto udp jump next; }
  chain next { udp dport 9 reject; return; }
}";
    in_namespace(|| {
        run("ip link set lo up");
        run_with("nft -f -", RULES);
        let mut events = Vec::new();
        let traffic = record(|| {
            let mut listener = TraceListener::open().unwrap();
            for address in ["127.0.0.1:8", "[::1]:9"] {
                let to: std::net::SocketAddr = address.parse().unwrap();
                let flow = TracedFlow { client: None, by_node: None, to, protocol: 17 };
                let _table = TraceTable::add("t1", &flow, 20, Duration::from_secs(60)).unwrap();
                let from = UdpSocket::bind((to.ip(), 0)).unwrap();
                // What is rejected is an error of the sender.
                let _ = from.send_to(b"a", to);
            }
            while let Some(more) = listener.receive().unwrap() {
                events.extend(more);
            }
        });
        assert!(events.len() > 8, "{events:?}");
        input("trace", "udp", &traffic.notices);
        let read = || TraceListener::open().unwrap().receive().unwrap().unwrap();
        assert_eq!(replay(traffic, read), events);
    });
}

#[test]
fn tables_of_iptables() {
    const RULES: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-SEP-X - [0:0]
:OTHER - [0:0]
-A PREROUTING -m comment --comment \"kubernetes \\\"service\\\" portals\" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j KUBE-SEP-X
-A KUBE-SEP-X -p tcp -j DNAT --to-destination 10.1.0.1:80
-A OTHER -j KUBE-SEP-X
-A OTHER -j RETURN
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
";
    in_namespace(|| {
        for flavour in ["nft", "legacy"] {
            run_with(&format!("iptables-{flavour}-restore"), RULES);
            let saved = run(&format!("iptables-{flavour}-save"));
            input("iptables-save", flavour, saved.as_bytes());
        }
        let read = || count_nft_tables(IpFamily::V4).unwrap();
        assert!(answers("iptables-nft", "nat", read) > 6);
        run_with(
            "ip6tables-legacy-restore",
            &RULES.replace("10.0.0.1/32", "fd00::1/128").replace("10.1.0.1:80", "[fd01::1]:80"),
        );
        for (family, name) in [(IpFamily::V4, "nat"), (IpFamily::V6, "nat6")] {
            input("iptables-legacy", name, &legacy_table(family).unwrap());
        }
    });
}

#[test]
fn entries_of_conntrack() {
    in_namespace(|| {
        run("ip link set lo up");
        run_with(
            "nft -f -",
            "table inet t { chain c { type filter hook output priority 0; ct state new; }; }",
        );
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let [from, to] = [(); 2].map(|()| UdpSocket::bind(address).unwrap());
            from.send_to(b"a", to.local_addr().unwrap()).unwrap();
        }
        let read = || {
            let mut reader = UsageReader::open().unwrap();
            let usage = reader.read().unwrap();
            let mut found = Vec::new();
            reader.flows(|flow| found.push(*flow)).unwrap();
            (usage, found)
        };
        assert_eq!(answers("conntrack", "udp", read).1.len(), 2);
    });
}

#[test]
fn interfaces_and_addresses() {
    in_namespace(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut follower = AddressFollower::new();
        let changed = record(|| {
            runtime.block_on(async {
                follower.changed().await.unwrap();
                for line in [
                    "link set lo up",
                    "link add name cni0 type bridge",
                    "link add name veth0 type veth peer name eth0",
                    "link set veth0 master cni0",
                    "addr add 10.1.0.1/24 dev cni0",
                    "addr add fd01::1/64 dev cni0",
                ] {
                    run(&format!("ip {line}"));
                }
                thread::sleep(Duration::from_millis(1));
                follower.changed().await.unwrap();
            })
        });
        input("route", "announcements", &changed.notices);
        let bridges = answers("route", "bridges", || bridges_of_veths().unwrap());
        assert_eq!(bridges.len(), 1);
        let addresses = || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let mut found = runtime.block_on(AddressFollower::new().changed()).unwrap();
            // The kernel may still be checking one.
            found.retain(|address| address.is_ipv4());
            found
        };
        assert_eq!(answers("route", "addresses", addresses).len(), 2);
    });
}

#[test]
fn ip_sets() {
    in_namespace(|| {
        for name in ["KUBE-CLUSTER-IP", "other"] {
            run(&format!("ipset create {name} hash:ip,port"));
        }
        let names = answers("ipset", "names", || {
            let mut names = IpSets::open().unwrap().names().unwrap();
            names.sort();
            names
        });
        assert_eq!(names, ["KUBE-CLUSTER-IP", "other"]);
        let refusal = record(|| assert!(!IpSets::open().unwrap().destroy("third").unwrap()));
        input("netlink", "refusal", &refusal.answers);
    });
}

#[test]
fn virtual_servers() {
    if !std::path::Path::new("/proc/net/ip_vs").exists() {
        return test_netns::skipped("no IPVS in this kernel");
    }
    in_namespace(|| {
        for line in ["link set lo up", "addr add 10.0.0.1/8 dev lo", "addr add fd00::1/64 dev lo"] {
            run(&format!("ip {line}"));
        }
        let mut batch = Batch::default();
        for ip in ["10.0.0.1", "fd00::1"] {
            let ip: std::net::IpAddr = ip.parse().unwrap();
            let selector = Selector::Address { protocol: 6, ip, port: 80 };
            batch.add_server(&VirtualServer {
                selector,
                scheduler: "rr".to_owned(),
                flags: VirtualServer::PERSISTENT,
                timeout: 10_800,
                netmask: if ip.is_ipv4() { u32::MAX } else { 128 },
            });
            batch.add_real(&selector, &RealServer::new((ip, 8080).into(), 1));
        }
        assert_eq!(Ipvs::open().unwrap().unwrap().commit(&batch).unwrap(), []);
        let read = || {
            let mut ipvs = Ipvs::open().unwrap().unwrap();
            let (timeouts, servers) = (ipvs.timeouts().unwrap(), ipvs.virtual_servers().unwrap());
            let real = servers.iter().map(|server| ipvs.real_servers(&server.selector).unwrap());
            (timeouts, real.collect::<Vec<_>>())
        };
        assert_eq!(answers("ipvs", "servers", read).1.len(), 2);
    });
}
