//! That many changes of our own are no changes by another program. The rest is in the kit.

use std::time::Duration;

use switchyard_core::{
    config::NodeConfig,
    proxier::{ExternalChange, Monitor, Proxier},
    testing::ManyServices,
};
use tokio::time::timeout;

use crate::common::{Node, config, in_namespace, nft, start, web};

/// For what should not happen: far longer than a report takes.
const NEVER: Duration = Duration::from_millis(400);

struct Watched {
    node: Node,
    monitor: Box<dyn Monitor>,
}

impl Watched {
    fn new(config: NodeConfig) -> Self {
        let node = start(config);
        let monitor = node.proxier.monitor().expect("the kernel notifies");
        Self { node, monitor }
    }

    /// Whether a change by another program is reported within this time, and whose it is.
    fn is_asked(&mut self, within: Duration) -> bool {
        let Self { node, monitor } = self;
        match node.runtime.block_on(async { timeout(within, monitor.externally_changed()).await }) {
            Ok(Ok(ExternalChange::Changed { by: Some(by) })) if by.starts_with("nft (process ") => {
                // All that is known by now is one change.
                true
            }
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
        watched.node.clean_up();
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
