//! Effects of single syncs on a real kernel: how much they send, what they repair, what they leave
//! alone. Each test works in the network namespace of its own thread.

use std::{
    io::ErrorKind,
    net::{IpAddr, TcpListener, TcpStream},
};

use switchyard_core::{config::LocalPodsConfig, proxier::Proxier, testing::service};
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::{run, wait::PATIENCE};

use crate::common::{
    Node, config, in_namespace, netlink, nft, open, recorded, ruleset, start, web, web_slice,
    with_node,
};

#[test]
fn a_sync_sends_what_changed_and_no_more() {
    in_namespace(|| {
        let pods = LocalPodsConfig::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
        let mut proxy = start({
            let mut made = config();
            made.local_pods = pods;
            made
        });
        assert!(proxy.sync(web()).added > 40);
        assert_eq!(proxy.sync([]).bytes, 0);

        // The last slot leads elsewhere.
        let report = proxy.sync([web_slice(&[1, 2, 4])]);
        assert_eq!((report.added, report.removed), (1, 1));

        // A hole is filled with the last: one element moves, one goes, and the Service goes to the
        // set for another number of slots.
        let report = proxy.sync([web_slice(&[1, 4])]);
        assert_eq!((report.added, report.removed), (2, 3));

        // Back again.
        let report = proxy.sync([web_slice(&[1, 4, 7])]);
        assert_eq!((report.added, report.removed), (2, 1));

        // The local endpoint goes, and with it its hairpin element.
        let report = proxy.sync([web_slice(&[4, 7, 8])]);
        assert_eq!((report.added, report.removed), (1, 2));
        let listed = ruleset();
        assert!(!listed.contains("10.244.0.1 "), "{listed}");
    });
}

#[test]
fn a_sync_that_trusts_a_damaged_table_repairs_it() {
    with_node(|mut proxy| {
        proxy.sync(web());
        nft("flush ruleset");
        let drift = proxy.sync([web_slice(&[1, 2, 9])]).drift;
        assert_eq!(drift.examples[0], "the table ip was missing", "{drift:?}");
        let listed = ruleset();
        assert!(listed.contains("10.244.0.9 . 80") && !listed.contains("10.244.0.3 "), "{listed}");
    });
}

#[test]
fn a_chain_that_another_program_renames_is_led_to_again() {
    with_node(|mut proxy| {
        proxy.sync(web());
        let before = ruleset();
        nft("rename chain ip kube-proxy services theirs; add chain ip kube-proxy services");
        assert!(ruleset().contains("jump theirs"));
        assert!(!proxy.full().drift.is_none());
        // Whatever nothing leads to any more may go later.
        assert!(proxy.full().drift.is_none());
        let after = ruleset();
        assert_eq!(after.matches("jump services").count(), before.matches("jump services").count());
        assert!(!after.contains("theirs"), "{after}");
    });
}

#[test]
fn a_table_that_is_not_ours_to_repair_is_replaced() {
    in_namespace(|| {
        nft("add table ip kube-proxy; \
             add set ip kube-proxy service-ips { type inet_service; }; \
             add chain ip kube-proxy services { type filter hook input priority 3; policy drop; }; \
             add table ip6 kube-proxy; \
             add chain ip6 kube-proxy nat-output { type nat hook output priority 7; }; \
             add table ip theirs; add set ip theirs kept { type ipv4_addr; }");
        let mut proxy = start(config());
        proxy.sync(web());
        let listed = ruleset();
        assert!(listed.contains("10.96.0.1 . tcp . 80"), "{listed}");
        assert!(!listed.contains("policy drop"), "{listed}");
        assert!(listed.contains("hook output priority -101"), "{listed}");
        assert!(nft("list table ip theirs").contains("set kept"));
    });
}

/// Also if nothing changes any more.
#[test]
fn unused_chains_are_deleted_soon() {
    with_node(|mut proxy| {
        let sticky = service("web", "10.96.0.1").port("http", "TCP", 80);
        let sticky = sticky.set("spec.sessionAffinity", "ClientIP").apply();
        proxy.sync([sticky, web_slice(&[1, 2])]);
        let before = ruleset().matches("chain ").count();
        let wait = proxy.sync(web()).requeue_after.expect("another sync");
        assert_eq!(ruleset().matches("chain ").count(), before, "they are unused");
        std::thread::sleep(wait);
        assert_eq!(proxy.sync([]).requeue_after, None);
        assert!(ruleset().matches("chain ").count() < before);
    });
}

/// Chains that nothing needs any more are found when the table is compared as a whole.
#[test]
fn chains_without_use_go_when_the_table_is_compared() {
    in_namespace(|| {
        let (mut proxy, recorded) = recorded(config());
        proxy.sync(web());
        proxy.sync([web_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])]);
        recorded.take();
        proxy.apply([web_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9])]);
        proxy.tracker.request_resync();
        proxy.try_sync().expect("a sync");
        let committed = recorded.take();
        let [.., main, trimming, deleting] = &committed[..] else { panic!("{committed:?}") };
        assert!(main.contains("service-ips") && !main.contains("flush"), "{main}");
        assert!(trimming.contains("tcp-endpoints { 10.96.0.1 . 80 . 9"), "{trimming}");
        assert!(trimming.contains("flush chain ip kube-proxy lb/10"), "{trimming}");
        assert_eq!(deleting, "delete chain ip kube-proxy lb/10\n");
    });
}

/// The kernel walks all verdicts of a table when it adds one.
#[test]
fn cluster_ips_with_few_endpoints_need_no_verdict() {
    in_namespace(|| {
        let (mut proxy, recorded) = recorded(config());
        let eight = &[1, 2, 3, 4, 5, 6, 7, 8];
        proxy.sync(web());
        for (endpoints, to) in [
            (&[1, 2][..], "cluster-ips-2"),
            (&[1, 2, 3], "cluster-ips-3"),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9], "service-ips"),
            (eight, "cluster-ips-8"),
        ] {
            recorded.take();
            proxy.sync([web_slice(endpoints)]);
            let committed = recorded.take();
            let added = format!("add element ip kube-proxy {to} {{ 10.96.0.1 ");
            assert!(committed.iter().any(|text| text.contains(&added)), "{committed:?}");
            let has_verdict = committed.iter().any(|text| text.contains("goto"));
            assert_eq!(has_verdict, to == "service-ips", "{committed:?}");
        }
    });
}

/// Where IPVS delivers, addresses of load balancers are the node's, and load balancers may ask
/// there.
#[test]
fn beneath_ipvs_health_checks_are_answered_at_addresses_of_services() {
    in_namespace(|| {
        let (v4, v6): (IpAddr, IpAddr) = ([10, 96, 0, 1].into(), "fd00::1".parse().unwrap());
        run("ip link set lo up");
        for ip in [v4, v6] {
            run(&format!("ip address add {ip} dev lo"));
        }
        let _listeners = [32000, 32006].map(|port| TcpListener::bind(("::", port)).unwrap());
        let is_refused = |ip: IpAddr, port: u16| {
            let connected = TcpStream::connect_timeout(&(ip, port).into(), PATIENCE);
            connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        let ports = || {
            ["ip", "ip6"].map(|family| {
                let listed = nft(&format!("list set {family} kube-proxy health-check-ports"));
                let ports = listed.split("tcp . ").skip(1).map(|port| port[..5].to_owned());
                ports.collect::<Vec<_>>()
            })
        };
        let beneath = || {
            let mut config = NftConfig::default();
            config.beneath_ipvs = true;
            NftProxier::new(config, netlink())
        };
        let made = |name: &str, ip: IpAddr, port: u16| {
            let made = service(name, &ip.to_string()).port("http", "TCP", 80);
            let made = made.set("spec.type", "LoadBalancer").set("spec.healthCheckNodePort", port);
            made.set("spec.externalTrafficPolicy", "Local")
        };
        let mut node = Node::new(config(), beneath());
        node.sync([made("web", v4, 32000).apply(), made("other", v6, 32006).apply()]);
        assert_eq!(ports(), [["32000"], ["32006"]]);
        assert!(!is_refused(v4, 32000) && !is_refused(v6, 32006) && is_refused(v4, 32006));
        let report = node.sync([made("web", v4, 32001).apply()]);
        assert_eq!((report.added, report.removed), (1, 1));
        assert_eq!(ports(), [["32001"], ["32006"]]);
        assert_eq!(node.restart(beneath()).bytes, 0);
        // As a version without the set left it.
        nft("flush chain ip kube-proxy other-ports; flush chain ip kube-proxy cluster-ips-check; \
             delete set ip kube-proxy health-check-ports");
        node.restart(beneath());
        assert_eq!(ports(), [["32001"], ["32006"]]);
        // What would leave the node is refused at each port.
        run(&format!("ip address del {v4} dev lo"));
        run("ip link add out type veth peer name peer");
        run("ip link set peer up");
        run("ip link set out up");
        run("ip address add 192.0.2.9/24 dev out");
        run(&format!("ip route add {v4} dev out"));
        assert!(is_refused(v4, 32001));

        let mut monitor = node.proxier.monitor().expect("the kernel notifies");
        let damage = || {
            nft("flush set ip kube-proxy health-check-ports; \
                 add element ip6 kube-proxy health-check-ports { tcp . 32000 }");
        };
        damage();
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        node.tracker.request_repair();
        assert_eq!(node.sync([]).drift.objects, 2);
        assert_eq!(ports(), [["32001"], ["32006"]]);
        damage();
        assert_eq!(node.full().drift.objects, 2);
        assert_eq!(ports(), [["32001"], ["32006"]]);

        let cluster = made("web", v4, 32001).set("spec.externalTrafficPolicy", "Cluster");
        node.sync([cluster.apply()]);
        assert_eq!(ports(), [vec![], vec!["32006"]]);
        node.restart(open());
        assert!(!ruleset().contains("health-check-ports"));
    });
}
