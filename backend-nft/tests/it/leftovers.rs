//! Chains that cannot be removed at once.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use switchyard_core::{
    config::NodeConfig,
    testing::{NODE, Stepped, endpoint, service, slice},
};
use switchyard_kernel::nftables::testing::InterceptingTransport;

use crate::common::{
    config, in_namespace, netlink, nft, over, recorded, web, web_slice, with_node,
};

#[test]
fn chains_that_cannot_be_removed_are_reported_and_no_failure() {
    in_namespace(|| {
        let inner = netlink();
        let (unreliable, fails) = InterceptingTransport::failing(inner);
        let proxier = over(Box::new(unreliable));
        let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
        // Affinity gives a Service port chains of its own.
        let service =
            service("a", "10.0.0.1").port("", "TCP", 80).set("spec.sessionAffinity", "ClientIP");
        let slice = slice("a", "1").port("", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
        assert!(!node.sync([slice.apply()]).cleanup_failed);
        // Not at once, since older kernels would refuse. On a machine that took a second for this,
        // again.
        loop {
            node.sync([service.apply()]);
            let since = Instant::now();
            assert!(!node.sync([service.delete()]).cleanup_failed);
            fails.store(true, Ordering::Relaxed);
            let tried = node.sync([]).cleanup_failed;
            if since.elapsed() < Duration::from_secs(1) {
                assert!(!tried, "too early");
                break;
            }
            fails.store(false, Ordering::Relaxed);
        }
        thread::sleep(Duration::from_millis(1100));
        assert!(node.sync([]).cleanup_failed);
        thread::sleep(Duration::from_millis(1100));
        assert!(!node.sync([]).cleanup_failed, "the second time they can");
    });
}

/// While the kernel commits, no other program can, and each chain may take a page.
#[test]
fn many_chains_are_removed_by_and_by() {
    in_namespace(|| {
        let chains = (0..1_200).map(|i| format!("add chain ip kube-proxy service-{i}/a/tcp/b\n"));
        nft(&format!("add table ip kube-proxy\n{}", chains.collect::<String>()));
        let (mut node, recorded) = recorded(config());
        node.sync(web());
        let deleted = |made: &String| made.matches("delete chain ").count();
        let deleted: Vec<_> = recorded.take().iter().map(deleted).filter(|it| *it > 0).collect();
        assert_eq!(deleted, [1_000, 200]);
    });
}

#[test]
fn chains_that_no_service_needs_are_few() {
    with_node(|mut node| {
        node.sync(web());
        let chains = || nft("list chains ip").matches("chain ").count();
        let before = chains();
        for count in 1..=100 {
            node.sync([web_slice(&(1..=count).collect::<Vec<_>>())]);
        }
        assert!(node.full().drift.is_none());
        for count in 1..=100 {
            node.sync([web_slice(&(1..=count).collect::<Vec<_>>())]);
        }
        thread::sleep(Duration::from_millis(1100));
        node.sync([]);
        assert!(chains() <= before + 70, "{} chains more", chains() - before);
    });
}
