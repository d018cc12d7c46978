//! Removal of what each capture mode leaves, and the choice of a capture mode.

use switchyard_core::proxier::{Backend, Mode};
use switchyard_userspace::{CaptureMode, UserspaceBackend, UserspaceConfig};

use crate::common::{answers, in_namespace, run, servers, settings, start, web, web_slice};

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
fn rules_are_the_best_capture_and_loopback_is_never_chosen_unasked() {
    in_namespace(|| {
        let backend = UserspaceBackend::default();
        let conflicts = |backend: UserspaceBackend| {
            backend.probe().unwrap().open().unwrap().profile().conflicts_with
        };
        assert_eq!(conflicts(backend), [Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS]);
        let mut loopback = UserspaceConfig::default();
        loopback.capture = Some(CaptureMode::Loopback);
        let backend = UserspaceBackend::new(loopback);
        assert_eq!(conflicts(backend), [], "without privileges, nothing can be removed");
    });
}
