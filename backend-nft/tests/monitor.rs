//! That others' changes of our tables are noticed, named and undone, and nothing else is.

mod common;

use std::time::Duration;

use proxy_core::{config::NodeConfig, proxier::Proxier, runner::Input, testing::ManyServices};
use tokio::{
    sync::mpsc::{self, Receiver},
    time::timeout,
};

use self::common::{Node, config, in_namespace, nft, ruleset, start, web, web_slice};

/// Long enough for whatever should happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// For what should not happen: far longer than it takes to be told.
const NEVER: Duration = Duration::from_millis(400);

struct Watched {
    node: Node,
    asked: Receiver<Input>,
}

impl Watched {
    fn new(config: NodeConfig) -> Self {
        let node = start(config);
        let monitor = {
            let _inside = node.runtime.enter();
            node.proxier.monitor().expect("the kernel tells")
        };
        let (inputs, asked) = mpsc::channel(16);
        node.runtime.spawn(monitor.run(inputs));
        // Until it listens.
        node.runtime.block_on(tokio::task::yield_now());
        Self { node, asked }
    }

    /// Whether a full sync is asked for within this time.
    fn is_asked(&mut self, within: Duration) -> bool {
        let Self { node, asked } = self;
        match node.runtime.block_on(async { timeout(within, asked.recv()).await }) {
            Ok(Some(Input::Resync)) => true,
            Ok(other) => panic!("{other:?}"),
            Err(_) => false,
        }
    }
}

#[test]
fn what_we_change_ourselves_is_not_noticed() {
    in_namespace(|| {
        let many = ManyServices { services: 2_000, endpoints: 5 };
        let mut watched = Watched::new(many.node());
        watched.node.sync(many.lists());
        for endpoints in [6, 2] {
            let [_, slices] = ManyServices { endpoints, ..many }.lists();
            assert!(watched.node.sync([slices]).messages > 0);
        }
        assert!(!watched.is_asked(NEVER));
        watched.node.cleanup();
        assert!(!watched.is_asked(NEVER));
    });
}

#[test]
fn what_others_change_elsewhere_is_not_noticed() {
    in_namespace(|| {
        let mut watched = Watched::new(config());
        watched.node.sync(web());
        nft("add table ip theirs; add chain ip theirs services; \
             add table inet kube-proxy; add chain inet kube-proxy services; \
             flush chain inet kube-proxy services; delete table inet kube-proxy");
        assert!(!watched.is_asked(NEVER));
    });
}

#[test]
fn what_others_change_of_ours_is_noticed_and_named() {
    in_namespace(|| {
        let mut watched = Watched::new(config());
        watched.node.sync(web());
        let good = ruleset();
        for (damage, name) in [
            (
                "delete element ip kube-proxy service-ips { 10.96.0.1 . tcp . 80 }",
                "the element 10.96.0.1 . tcp . 80 in ip service-ips was missing or altered",
            ),
            (
                "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
                "the element 10.96.9.9 in ip cluster-ips was added or altered",
            ),
            (
                "insert rule ip6 kube-proxy filter-input accept",
                "the chain ip6 filter-input had other rules",
            ),
            ("delete table ip kube-proxy", "the table ip was missing"),
            (
                "add chain ip kube-proxy theirs { type filter hook input priority 5; }",
                "the base chain ip theirs was added",
            ),
        ] {
            nft(damage);
            assert!(watched.is_asked(PATIENCE), "{damage}");
            watched.node.tracker.request_full();
            // Something else has changed as well, and is not blamed on anybody.
            watched.node.apply([web_slice(&[1, 2, 9])]);
            let drift = watched.node.try_sync().expect("a sync").drift;
            assert_eq!(drift.examples.first().map(String::as_str), Some(name), "{drift:?}");
            assert!(drift.objects == 1 || name.contains("table"), "{damage}: {drift:?}");
            watched.node.sync([web_slice(&[1, 2, 3])]);
            watched.node.tracker.request_full();
            assert!(watched.node.try_sync().expect("a sync").drift.is_none());
            assert!(ruleset().lines().count() >= good.lines().count(), "{}", ruleset());
        }
        assert!(!watched.is_asked(NEVER));
    });
}
