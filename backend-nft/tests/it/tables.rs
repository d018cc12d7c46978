//! Tables of several names beside each other, and chains over maps that were committed before.

use std::{path::Path, time::Duration};

use switchyard_core::{
    proxier::{ExternalChange, Proxier},
    testing::Stepped,
};
use switchyard_kernel::nftables::json::JsonTransport;
use switchyard_nft::{NftConfig, NftProxier};
use tokio::time::timeout;

use crate::common::{
    Node, config, in_namespace, netlink, nft, over, ruleset, start, web, web_slice,
};

const OTHER: &str = "other-proxy";

/// A node whose backend has tables of another name.
fn start_other() -> Node {
    let mut other = NftConfig::default();
    other.table = OTHER.into();
    let transport = netlink();
    Stepped::new(config(), NftProxier::new(other, transport))
}

#[test]
fn tables_of_two_names_do_not_disturb_each_other() {
    in_namespace(|| {
        let (mut first, mut second) = (start(config()), start_other());
        first.sync(web());
        let alone = ruleset();
        second.sync(web());
        let theirs = || nft(&format!("list table ip {OTHER}"));
        let second_alone = theirs();
        assert!(second_alone.contains("comment \"rules for other-proxy\""), "{second_alone}");
        assert_eq!(ruleset(), alone);
        assert!(first.full().drift.is_none() && second.full().drift.is_none());

        first.clean_up();
        assert_eq!(theirs(), second_alone);
        first.restart(crate::common::open());
        second.clean_up();
        assert_eq!(ruleset(), alone);
    });
}

#[test]
fn a_monitor_reports_changes_of_its_own_tables() {
    in_namespace(|| {
        let (mut first, mut second) = (start(config()), start_other());
        first.sync(web());
        second.sync(web());
        let mut monitor = second.proxier.monitor().expect("a monitor");
        second.runtime.block_on(async {
            nft("delete table ip kube-proxy");
            timeout(Duration::from_millis(300), monitor.externally_changed()).await.unwrap_err();
            nft(&format!("delete table ip {OTHER}"));
            let reported = timeout(Duration::from_secs(10), monitor.externally_changed()).await;
            let reported = reported.expect("a report").expect("no error");
            assert!(matches!(reported, ExternalChange::Changed { .. }), "{reported:?}");
        });
    });
}

/// With both transports: a Service that grows needs a chain over maps that were committed before.
#[test]
fn chains_are_added_over_maps_that_were_committed_before() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync(web());
        for last in 2..=12 {
            let endpoints: Vec<u8> = (1..=last).collect();
            node.sync([web_slice(&endpoints)]);
            assert!(ruleset().contains(&format!("chain lb/{last} {{")), "{}", ruleset());
        }
        // As does a person.
        nft("add chain ip kube-proxy mine; add rule ip kube-proxy mine \
             dnat ip to ip daddr . tcp dport . numgen random mod 7 map @tcp-endpoints");
    });
    let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    in_namespace(|| {
        let transport = JsonTransport::with_program(program).expect("nft 1.1.3 takes our maps");
        let mut node = Node::new(config(), over(Box::new(transport)));
        node.sync(web());
        for last in 4..=8 {
            let endpoints: Vec<u8> = (1..=last).collect();
            node.sync([web_slice(&endpoints)]);
        }
        // The first comparison removes chains that nothing leads to any more.
        assert!(node.full().drift.is_none());
        let compared = node.full();
        assert!(compared.drift.is_none() && compared.bytes == 0, "{compared:?}");
    });
}
