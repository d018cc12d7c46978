//! Removal of what each intake leaves, and the choice of an intake.

use switchyard_core::proxier::{Backend, Mode};
use switchyard_userspace::{IntakeKind, UserspaceBackend, UserspaceConfig};

use crate::common::{in_namespace, ip, run, servers, settings, start, web, web_slice};

/// The rules and links of the namespace, but for those that were there before.
fn left() -> String {
    let rules = run("nft", "list ruleset");
    // iptables-nft leaves its own tables and chains, empty.
    let of_ours = |line: &&str| line.contains("switchyard") || line.contains("SWYD");
    let rules: Vec<&str> = rules.lines().filter(of_ours).collect();
    let links = ip("-brief link");
    let links: Vec<&str> = links.lines().filter(of_ours).collect();
    [rules, links].concat().join("\n")
}

#[test]
fn nothing_stays_of_any_intake() {
    for kind in [IntakeKind::Nftables, IntakeKind::Iptables, IntakeKind::Addresses] {
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
            let backend = UserspaceBackend::default();
            for _ in 0..2 {
                backend.clean_up().unwrap();
                assert_eq!(left(), "", "{kind}");
            }
        });
    }
}

#[test]
fn rules_are_the_best_intake_and_loopback_is_never_chosen_unasked() {
    in_namespace(|| {
        let backend = UserspaceBackend::default();
        backend.probe().unwrap();
        assert_eq!(backend.conflicts_with(), [Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS]);
        let mut loopback = UserspaceConfig::default();
        loopback.intake = Some(IntakeKind::Loopback);
        let backend = UserspaceBackend::new(loopback);
        backend.probe().unwrap();
        assert_eq!(backend.conflicts_with(), [], "without privileges, nothing can be removed");
    });
}
