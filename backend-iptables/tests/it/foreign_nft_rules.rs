//! Rules that iptables cannot print, in the tables that iptables-nft uses: `iptables-save` refuses
//! to show such a table, and Services must be programmed all the same.

use switchyard_core::testing::{service, web, web_slice};
use switchyard_iptables::Flavour;
use test_netns::run;

use crate::common::{Tables, config, in_namespace, proxier, start};

/// A set in a rule, as Tailscale and administrators write it.
fn add_foreign_rule() {
    run("nft insert rule ip nat POSTROUTING ip saddr { 10.1.0.0/16, 10.2.0.0/16 } masquerade");
}

/// The ruleset as nft lists it, which can print everything.
fn listed() -> String {
    run("nft list table ip nat")
}

fn jumps() -> usize {
    listed().matches("jump KUBE-SERVICES").count()
}

#[test]
fn services_are_programmed_beside_rules_that_iptables_cannot_print() {
    in_namespace(|| {
        let mut proxy = start(Flavour::Nft, config());
        proxy.sync(web());
        add_foreign_rule();
        // The monitor asks for a comparison.
        proxy.full();
        proxy.sync([web_slice(&[1, 2, 9])]);
        assert!(listed().contains("10.244.0.9:80"), "{}", listed());
        assert_eq!(jumps(), 2, "each jump is there once: {}", listed());

        // Also what has been flushed is made again.
        Tables::v4(Flavour::Nft).run("-t nat -F PREROUTING");
        Tables::v4(Flavour::Nft).run("-t nat -F KUBE-SERVICES");
        assert_eq!(jumps(), 1);
        proxy.full();
        assert_eq!(jumps(), 2, "{}", listed());
        assert!(listed().contains("10.96.0.1"), "{}", listed());
        assert!(listed().contains("10.2.255.255"), "the other program's rule stays: {}", listed());

        // And a start, which knows nothing of the tables.
        proxy.restart(proxier(Flavour::Nft));
        proxy.sync([service("more", "10.96.0.77").port("http", "TCP", 80).apply()]);
        assert_eq!(jumps(), 2, "{}", listed());
        assert!(listed().contains("10.244.0.9:80"), "{}", listed());
    });
}
