//! Tables of several names beside each other.

use std::time::Duration;

use switchyard_core::{
    proxier::{ExternalChange, Proxier},
    testing::Stepped,
};
use switchyard_nft::{NftConfig, NftProxier};
use tokio::time::timeout;

use crate::common::{Node, config, in_namespace, netlink, nft, ruleset, start, web};

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
