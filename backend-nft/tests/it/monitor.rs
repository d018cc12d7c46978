//! That many changes of our own are no changes by another program. The rest is in the kit.

use std::time::Duration;

use switchyard_core::{proxier::Proxier, testing::ManyServices};
use tokio::time::timeout;

use crate::common::{Node, in_namespace, start};

/// For what should not happen: far longer than a report takes.
const NEVER: Duration = Duration::from_millis(400);

#[test]
fn what_we_change_ourselves_is_not_noticed() {
    in_namespace(|| {
        let many = ManyServices { services: 2_000, endpoints: 5 };
        let mut node = start(many.node());
        let mut monitor = node.proxier.monitor().expect("the kernel notifies");
        let mut is_asked = |node: &Node| {
            let change = async { timeout(NEVER, monitor.externally_changed()).await };
            node.runtime.block_on(change).is_ok()
        };
        node.sync(many.lists());
        for endpoints in [6, 2] {
            let [_, slices] = ManyServices { endpoints, ..many }.lists();
            assert!(node.sync([slices]).messages > 0);
        }
        assert!(!is_asked(&node));
        node.clean_up();
        assert!(!is_asked(&node));
    });
}
