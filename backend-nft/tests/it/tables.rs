//! Tables of several names beside each other.

use std::{path::Path, time::Duration};

use switchyard_core::{
    proxier::{ExternalChange, Proxier},
    testing::Stepped,
};
use switchyard_kernel::nftables::{Transport, json::JsonTransport};
use switchyard_nft::{NftConfig, NftProxier};
use tokio::time::timeout;

use crate::common::{
    Node, config, in_namespace, netlink, nft, over, run_nft, start, web, web_slice,
};

const OTHER: &str = "other-proxy";

/// A node whose backend has tables of another name.
fn start_other(transport: Box<dyn Transport>) -> Node {
    let mut other = NftConfig::default();
    other.table = OTHER.into();
    Stepped::new(config(), NftProxier::new(other, transport))
}

#[test]
fn tables_of_two_names_do_not_disturb_each_other() {
    keep_apart("nft".as_ref(), netlink);
    if let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        keep_apart(&program, || {
            Box::new(JsonTransport::with_program(&program).expect("nft 1.1.3"))
        });
    }
}

/// Programs tables of two names by a transport, whose tables the program lists.
fn keep_apart(program: &Path, transport: impl Fn() -> Box<dyn Transport> + Sync) {
    in_namespace(|| {
        let mut first = Node::new(config(), over(transport()));
        let mut second = start_other(transport());
        let listed = |table: &str| {
            ["ip", "ip6"].map(|family| run_nft(program, &format!("list table {family} {table}")))
        };
        first.sync(web());
        let alone = listed("kube-proxy");
        second.sync(web());
        let second_alone = listed(OTHER);
        assert!(second_alone[0].contains("comment \"rules for other-proxy\""), "{second_alone:?}");
        assert_eq!(listed("kube-proxy"), alone);
        assert!(first.full().drift.is_none() && second.full().drift.is_none());

        first.sync([web_slice(&[4])]);
        assert_eq!(listed(OTHER), second_alone);
        first.clean_up();
        assert_eq!(listed(OTHER), second_alone);
        first.restart(over(transport()));
        let again = listed("kube-proxy");
        second.clean_up();
        assert_eq!(listed("kube-proxy"), again);
    });
}

#[test]
fn a_monitor_reports_changes_of_its_own_tables() {
    in_namespace(|| {
        let (mut first, mut second) = (start(config()), start_other(netlink()));
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
