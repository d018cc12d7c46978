//! Effects of single syncs, and what a clean-up does.

use std::net::IpAddr;

use super::{
    Subject, Unservable, assert_as_from_nothing, assert_same, cluster, node_config, start,
};
use crate::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    proxier::DegradedPort,
    testing::{NODE, builders::net, node, service, service_cidr, web, web_slice},
};

/// A proxy that is started again finds what it had programmed, and sends nothing.
pub fn a_restart_sends_nothing<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let mut proxy = start(subject, node_config());
        proxy.sync(cluster());
        assert_eq!(proxy.sync([]).bytes, 0, "nothing has changed");
        // Histories that a sync from nothing does not have.
        proxy.sync([web_slice(&[2, 3])]);
        proxy.sync([web_slice(&[1, 2, 3])]);
        proxy.sync([service("web", "10.96.0.1")
            .port("http", "TCP", 80)
            .set("spec.sessionAffinity", "ClientIP")
            .apply()]);
        proxy.sync([service("b", "10.96.0.2").port("http", "UDP", 80).apply()]);
        let before = subject.dump();
        for _ in 0..2 {
            assert_eq!(proxy.restart(subject.open()).added, 0);
        }
        let report = proxy.restart(subject.open());
        assert_eq!((report.added, report.removed, report.bytes), (0, 0, 0), "{report:?}");
        assert_same(subject, &before, &subject.dump(), "after restarts");
    });
}

/// Settings of the node, whether by the configuration, the Node, interfaces or ServiceCIDRs, apply
/// with the next sync, to Services that have not changed as well.
pub fn settings_of_the_node_apply_at_once<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let config = NodeConfig {
            node_port_addresses: vec![NodePortAddressConfig::Cidr(net("192.168.0.0/16"))],
            local_pods: LocalPodsConfig::NodeCidr,
            ..node_config()
        };
        let mut proxy = start(subject, config.clone());
        proxy.sync(cluster());
        let node_port = service("web", "10.96.0.1")
            .set("spec.type", "NodePort")
            .port("http", "TCP", 80)
            .node_port(30080);
        proxy.sync([node_port.apply()]);

        let with_pods =
            |cidr: &str| node(NODE, "192.168.0.1").set("spec.podCIDRs", vec![cidr]).apply();
        for (now, before) in
            [("10.244.0.0/24", "10.244.7.0/24"), ("10.244.7.0/24", "10.244.0.0/24")]
        {
            assert!(proxy.sync([with_pods(now)]).bytes > 0);
            let listing = subject.listing();
            assert!(listing.contains(now) && !listing.contains(before), "{listing}");
            assert_as_from_nothing(subject, proxy.tracker.state(), now);
        }

        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (now, before) in [("192.168.0.1", "192.168.0.2"), ("192.168.0.2", "192.168.0.1")] {
            proxy.tracker.set_interface_addresses([now, "10.9.8.7"].map(address));
            assert!(proxy.sync([]).bytes > 0);
            let listing = subject.listing();
            assert!(listing.contains(now) && !listing.contains(before), "{listing}");
            assert!(!listing.contains("10.9.8.7"), "{listing}");
            assert_as_from_nothing(subject, proxy.tracker.state(), now);
        }

        for range in ["10.96.0.0/16", "10.96.0.0/24"] {
            proxy.sync([service_cidr("kubernetes", &[range]).apply()]);
            assert_as_from_nothing(subject, proxy.tracker.state(), range);
        }

        proxy.tracker.set_config(NodeConfig { masquerade_all: true, ..config });
        assert!(proxy.sync([]).bytes > 0);
        assert_as_from_nothing(subject, proxy.tracker.state(), "masquerade all");
    });
}

/// A clean-up removes everything of the backend's, however often, and nothing else; a sync that
/// follows programs everything again.
pub fn a_clean_up_is_total_and_repeatable<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let mut proxy = start(subject, node_config());
        let before = subject.dump();
        proxy.clean_up();
        assert_eq!(subject.dump(), before, "there was nothing to remove");
        proxy.sync(cluster());
        let synced = subject.dump();
        assert_ne!(synced, before);
        for _ in 0..2 {
            proxy.clean_up();
            assert_eq!(subject.dump(), before);
        }
        let report = proxy.full();
        assert!(report.drift.is_none(), "a clean-up is no drift: {report:?}");
        assert_same(subject, &subject.dump(), &synced, "after a clean-up and a sync");
        // What another instance has programmed is removed as well.
        proxy.proxier = subject.open();
        proxy.clean_up();
        assert_eq!(subject.dump(), before);
    });
}

/// A Service port that is served otherwise than asked is reported, once, and everything else is
/// served as asked.
pub fn degraded_ports_are_reported<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let mut proxy = start(subject, node_config());
        assert_eq!(proxy.sync(cluster()).degraded, []);
        for Unservable { events, port, reason } in subject.unservable() {
            let report = proxy.sync(events);
            let [DegradedPort { port: skipped, reason: reported }] = report.degraded.as_slice()
            else {
                panic!("{report:?}")
            };
            assert!(skipped.to_string().starts_with(port), "{skipped}");
            assert!(reported.contains(reason), "{reported}");
            assert_eq!(proxy.sync(web()).degraded, [], "reported already");
            assert_as_from_nothing(subject, proxy.tracker.state(), port);
        }
        assert_eq!(proxy.full().degraded.len(), subject.unservable().len());
    });
}
