//! Removal of what each capture mode leaves, and the choice of a capture mode.

use std::time::Duration;

use switchyard_core::proxier::{Backend, ExternalChange, Mode};
use switchyard_userspace::{CaptureMode, UserspaceBackend, UserspaceConfig};
use tokio::time::timeout;

use crate::common::{
    Node, answers, in_namespace, open, run, servers, settings, start, web, web_slice,
};

/// The rules and links of the namespace, but for those that were there before.
fn left() -> String {
    let rules = run("nft list ruleset");
    // iptables-nft leaves its own tables and chains, empty.
    let of_ours = |line: &&str| line.contains("switchyard") || line.contains("SWYD");
    let rules: Vec<&str> = rules.lines().filter(of_ours).collect();
    let links = run("ip -brief link");
    let links: Vec<&str> = links.lines().filter(of_ours).collect();
    [rules, links].concat().join("\n")
}

#[test]
fn nothing_stays_of_any_capture() {
    for kind in [CaptureMode::Nftables, CaptureMode::Iptables, CaptureMode::Addresses] {
        in_namespace(move || {
            let mut node = start(settings(kind));
            servers(&[2]);
            node.sync([web().apply(), web_slice(&[2])]);
            assert_ne!(left(), "", "{kind}");
            node.clean_up();
            assert_eq!(left(), "", "{kind}");
            // Of another program's run, and twice.
            node.full();
            assert_ne!(left(), "", "{kind}");
            assert_eq!(answers("10.96.0.1:80", 1), [Some(2)], "{kind}: everything is back");
            let backend = UserspaceBackend::default();
            for _ in 0..2 {
                backend.clean_up(None).unwrap();
                assert_eq!(left(), "", "{kind}");
            }
        });
    }
}

#[test]
fn a_device_of_another_program_stays() {
    in_namespace(|| {
        run("ip link add switchyard0 type bridge");
        UserspaceBackend::default().clean_up(None).unwrap();
        assert_ne!(left(), "");
    });
}

/// As if the former had been killed, with another capture mode at the next start.
#[test]
fn another_capture_serves_in_place_of_the_former() {
    const ALL: [CaptureMode; 3] =
        [CaptureMode::Nftables, CaptureMode::Iptables, CaptureMode::Addresses];
    for former in ALL {
        for latter in ALL.into_iter().filter(|latter| *latter != former) {
            in_namespace(move || {
                let mut node = start(settings(former));
                servers(&[2]);
                node.sync([web().apply(), web_slice(&[2])]);
                let proxier = open(settings(latter));
                let profile = proxier.profile();
                node.tracker.set_capabilities(profile.capabilities, profile.mode);
                node.tracker.resolve();
                node.restart(proxier);
                for address in ["10.96.0.1:80", "192.0.2.1:30080"] {
                    let answers = answers(address, 2);
                    assert_eq!(answers, [Some(2); 2], "{former}, {latter}: {address}");
                }
                let rules = left();
                let addresses = run("ip -brief addr show dev switchyard0");
                for (kind, text, trace) in [
                    (CaptureMode::Nftables, &rules, "table ip switchyard-userspace"),
                    (CaptureMode::Iptables, &rules, "SWYD-"),
                    (CaptureMode::Addresses, &addresses, "10.96.0.1/32"),
                ] {
                    assert_eq!(text.contains(trace), kind == latter, "{former}, {latter}: {text}");
                }
                let has_sockets = addresses.contains("192.0.0.83/32");
                assert_eq!(has_sockets, latter != CaptureMode::Addresses, "{former}, {latter}");
            });
        }
    }
}

#[test]
fn losing_the_device_or_its_addresses_is_noticed() {
    for kind in [CaptureMode::Nftables, CaptureMode::Iptables, CaptureMode::Addresses] {
        in_namespace(move || {
            let mut node = start(settings(kind));
            servers(&[2]);
            let mut monitor = node.proxier.monitor().unwrap();
            let mut notices = |node: &Node, within| {
                node.runtime.block_on(async {
                    timeout(within, monitor.externally_changed()).await.map(Result::unwrap)
                })
            };
            // Rules of our own may be suspected at first; a device is not.
            let quiet = Duration::from_millis(300);
            let _ = notices(&node, quiet);
            node.sync([web().apply(), web_slice(&[2])]);
            while notices(&node, quiet) == Ok(ExternalChange::Suspected) {}
            for damage in ["ip link del switchyard0", "ip addr flush dev switchyard0"] {
                run(damage);
                let noticed = notices(&node, Duration::from_secs(20));
                assert_eq!(noticed, Ok(ExternalChange::Changed { by: None }), "{kind}: {damage}");
                assert!(!node.full().drift.is_none(), "{kind}: {damage}");
                assert_eq!(answers("10.96.0.1:80", 1), [Some(2)], "{kind}: {damage}");
                let changed = Ok(ExternalChange::Changed { by: None });
                assert_ne!(notices(&node, quiet), changed, "{kind}: {damage}: repairs wake nobody");
            }
            run("ip addr add 192.0.0.84/32 dev switchyard0");
            assert_eq!(node.full().drift.objects, 1, "{kind}");
            assert!(!run("ip addr show dev switchyard0").contains("192.0.0.84"), "{kind}");
        });
    }
}

#[test]
fn the_rules_of_kube_proxys_own_userspace_mode_are_removed() {
    // kube-proxy 1.25, in short.
    const NAT: &[&str] = &[
        "-N KUBE-PORTALS-CONTAINER",
        "-N KUBE-PORTALS-HOST",
        "-N KUBE-NODEPORT-CONTAINER",
        "-N KUBE-NODEPORT-HOST",
        "-I PREROUTING -j KUBE-PORTALS-CONTAINER",
        "-I OUTPUT -j KUBE-PORTALS-HOST",
        "-A PREROUTING -m addrtype --dst-type LOCAL -j KUBE-NODEPORT-CONTAINER",
        "-A OUTPUT -m addrtype --dst-type LOCAL -j KUBE-NODEPORT-HOST",
        "-A KUBE-PORTALS-CONTAINER -d 10.0.0.1/32 -p tcp --dport 80 -j REDIRECT --to-ports 41000",
        "-A PREROUTING -j ACCEPT",
    ];
    const FILTER: &[&str] = &[
        "-N KUBE-NODEPORT-NON-LOCAL",
        "-I INPUT -j KUBE-NODEPORT-NON-LOCAL",
        "-A KUBE-NODEPORT-NON-LOCAL -p tcp --dport 41000 -j ACCEPT",
    ];
    for program in ["iptables-nft", "iptables-legacy"] {
        in_namespace(move || {
            for (table, rules) in [("nat", NAT), ("filter", FILTER)] {
                rules.iter().for_each(|rule| drop(run(&format!("{program} -w -t {table} {rule}"))));
            }
            UserspaceBackend::default().clean_up(None).unwrap();
            let left = |table| run(&format!("{program} -w -t {table} -S"));
            assert!(!left("nat").contains("KUBE") && !left("filter").contains("KUBE"), "{program}");
            assert!(left("nat").contains("-A PREROUTING -j ACCEPT"), "{program}");
        });
    }
}

#[test]
fn the_rules_of_nftables_are_the_best_capture() {
    in_namespace(|| {
        let profile = open(UserspaceConfig::default()).profile();
        assert_eq!(profile.capabilities.rules_of(), Some(Mode::NFTABLES));
        assert_eq!(profile.conflicts_with, [Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS]);
        let loopback = open(settings(CaptureMode::Loopback)).profile();
        assert_eq!(loopback.conflicts_with, [], "without privileges, nothing can be removed");
    });
}
