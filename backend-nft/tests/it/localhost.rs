//! The kernel routes loopback addresses only behind the rules that keep other hosts from them.

use std::{fs, path::Path};

use switchyard_core::{
    config::NodeConfig,
    proxier::{Backend, Mode, Proxier},
};
use switchyard_kernel::nftables::json::JsonTransport;
use switchyard_nft::{NftBackend, NftConfig, NftProxier};

use crate::common::{config, in_namespace, nft, over, start, web};

const SETTING: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

fn with_localhost() -> NodeConfig {
    let mut config = config();
    config.localhost_node_ports = true;
    config
}

/// The rules that drop what comes from other hosts, behind the one for packets within a VRF.
fn guards() -> usize {
    let listed = nft("list ruleset");
    let lines: Vec<&str> = listed.lines().map(str::trim).collect();
    let guard = [
        "ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 meta iifkind \"vrf\" accept",
        "ip daddr 127.0.0.0/8 iifname != \"lo\" drop",
        "ip saddr 127.0.0.0/8 iifname != \"lo\" drop",
    ];
    lines.windows(guard.len()).filter(|lines| **lines == guard).count()
}

/// Has the kernel route loopback addresses, as the proxy around the backend does.
fn route() {
    fs::write(SETTING, "1").unwrap();
}

#[test]
fn a_node_is_prepared_by_rules_that_the_first_sync_replaces() {
    in_namespace(|| {
        let mut prepared = NftProxier::open(NftConfig::default()).unwrap();
        prepared.prepare(&config()).unwrap();
        assert_eq!(nft("list ruleset"), "");
        for _ in 0..2 {
            prepared.prepare(&with_localhost()).unwrap();
            assert_eq!(guards(), 1);
            assert!(!nft("list ruleset").contains("dormant"));
            nft("add table ip kube-proxy { flags dormant; }");
        }
        let mut proxy = start(with_localhost());
        proxy.sync(web());
        assert_eq!(guards(), 1);
        assert!(!nft("list ruleset").contains("loopback-guard"));
        assert_eq!(proxy.full().bytes, 0);
        // A node that is prepared while an earlier program serves.
        prepared.prepare(&with_localhost()).unwrap();
        assert_eq!(guards(), 2);
        assert_eq!(proxy.full().drift.objects, 1);
        assert_eq!(guards(), 1);
        assert_eq!(fs::read_to_string(SETTING).unwrap().trim(), "0", "the backend leaves it alone");
    });
}

fn assert_guard_alone() {
    let left = nft("list ruleset");
    assert_eq!((guards(), left.matches("chain ").count()), (1, 1), "{left}");
    assert!(!left.contains("table ip6") && !left.contains("dormant"), "{left}");
    assert!(!left.contains("kube-proxy"), "other programs take this mode for in force: {left}");
}

#[test]
fn a_clean_up_leaves_the_guard_while_it_is_needed() {
    in_namespace(|| {
        let backend = NftBackend::new(NftConfig::default());
        backend.clean_up(None).unwrap();
        let mut proxy = start(with_localhost());
        proxy.sync(web());
        route();
        // As for another mode, which has rules of its own.
        for mode in [Some(Mode::IPTABLES), None, None] {
            backend.clean_up(mode).unwrap();
            assert_guard_alone();
            nft("add table ip switchyard-loopback { flags dormant; }; add table ip6 kube-proxy");
        }
        fs::write(SETTING, "0").unwrap();
        backend.clean_up(None).unwrap();
        assert_eq!(nft("list ruleset"), "");
        route();
        nft("add table ip kube-proxy; add chain ip kube-proxy services");
        backend.clean_up(None).unwrap();
        assert_eq!(nft("list ruleset"), "", "there was no guard to lose");
    });
}

/// Whatever the table is called in which another mode has the rules.
#[test]
fn the_guard_that_stays_is_in_a_table_of_its_own() {
    in_namespace(|| {
        let mut config = NftConfig::default();
        config.table = "other".into();
        let clean_up = || {
            let mut other = NftProxier::open(config.clone()).unwrap();
            other.prepare(&with_localhost()).unwrap();
            NftBackend::new(config.clone()).clean_up(None).unwrap();
            let left = nft("list ruleset");
            assert!(!left.contains("table ip other"), "{left}");
            left
        };
        route();
        for _ in 0..2 {
            clean_up();
            assert_guard_alone();
            nft("add table ip switchyard-loopback { flags dormant; }");
        }
        nft("delete table ip switchyard-loopback");
        // Where nftables mode serves, its rules guard.
        start(with_localhost()).sync(web());
        assert!(!clean_up().contains("chain loopback-guard"));
        assert_eq!(guards(), 1);
    });
}

#[test]
fn a_clean_up_leaves_the_guard_after_nfts_rules() {
    let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    in_namespace(|| {
        let mut proxy = start(with_localhost());
        let transport = JsonTransport::with_program(program).unwrap();
        proxy.proxier = over(Box::new(transport));
        proxy.sync(web());
        route();
        NftBackend::new(NftConfig::default()).clean_up(None).unwrap();
        assert_guard_alone();
    });
}
