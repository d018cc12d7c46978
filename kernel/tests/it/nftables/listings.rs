//! A commit by netlink has the same result as the transaction's text loaded by nft, and nft can
//! print the result, load what it printed, and print the same.

use switchyard_kernel::nftables::{Family, Rule, Table, Transaction, Transport};

use super::{
    slots::{self, By},
    support::{self, Nft, in_namespace, table},
};

/// The bytecode of all rules, without user data, in which the fingerprints are. For a lookup in a
/// set of intervals, nft 1.0.6 swaps the bytes of the protocol's number, which is one byte, so
/// nothing happens.
fn bytecode(nft: &Nft) -> String {
    let listed = nft.run(&["--debug=netlink", "list", "ruleset"], "");
    let code = |line: &&str| {
        !line.is_empty() && !line.contains("userdata =") && !line.contains("[ byteorder ")
    };
    let mut lines: Vec<_> = listed.lines().filter(code).collect();
    // The elements of a set come in any order.
    lines.chunk_by_mut(|a, b| is_element(a) && is_element(b)).for_each(|run| run.sort_unstable());
    lines.join("\n")
}

fn is_element(line: &str) -> bool {
    line.starts_with("\telement ")
}

#[test]
fn each_statement_is_listed_as_its_text_is() {
    let nft = Nft::installed();
    for family in Family::ALL {
        in_namespace(|| {
            for (chain, rule) in support::rules(family) {
                let transaction = support::with_rule(family, chain, &rule);
                support::netlink().commit(&transaction).unwrap();
                let by_netlink = (nft.list(), bytecode(&nft));
                nft.flush();
                if !nft.takes(family, &rule) {
                    let listed = by_netlink.0.replace("meta l4proto", "").replace("  ", " ");
                    assert!(
                        listed.contains("update @affinity { ct original ip6 saddr : ip6 daddr . ")
                    );
                    continue;
                }
                nft.load(&transaction.to_string());
                let by_text = (nft.list(), bytecode(&nft));
                nft.flush();
                let shown = rule.display(family).to_string();
                assert_eq!(by_netlink.0, by_text.0, "{shown}");
                assert_eq!(by_netlink.1, by_text.1, "{shown}");
            }
        });
    }
}

#[test]
fn everything_is_listed_as_its_text_is_by_every_nft() {
    for nft in Nft::all() {
        let transaction = support::everything_with(|family, rule| nft.takes(family, rule));
        in_namespace(|| {
            nft.load(&transaction.to_string());
            let by_text = nft.list();
            nft.flush();
            support::netlink().commit(&transaction).unwrap();
            let listed = nft.list();
            assert_eq!(listed, by_text, "{nft:?}");
            // Nothing was lost on the way.
            for line in ["comment \"rules for kube-proxy\"", "comment \"slots of services\"", "258"]
            {
                assert!(listed.contains(line), "{line}: {listed}");
            }
        });
    }
}

#[test]
fn what_was_listed_can_be_restored_by_every_nft() {
    let all = Nft::all();
    for (index, saved_by) in all.iter().enumerate() {
        // Older ones do not load all that newer ones print.
        for restored_by in &all[index..] {
            let takes = |family, rule: &Rule| restored_by.takes(family, rule);
            let transaction = support::everything_with(takes);
            in_namespace(|| {
                support::netlink().commit(&transaction).unwrap();
                let saved = saved_by.list();
                let expected = restored_by.list();
                restored_by.flush();
                restored_by.load(&saved);
                assert_eq!(restored_by.list(), expected, "{saved_by:?} {restored_by:?}");
            });
        }
    }
}

/// A rule over a map is often added long after the map, by netlink or by a person with nft.
#[test]
fn rules_can_be_added_over_maps_that_are_committed() {
    for nft in Nft::all() {
        for family in Family::ALL {
            in_namespace(|| {
                let mut maps = Transaction::new();
                let sets = support::add_table(&mut maps, &table(family));
                support::add_elements(&mut maps, &table(family), &sets);
                support::netlink().commit(&maps).unwrap();
                for (chain, rule) in support::rules(family) {
                    let mut later = Transaction::new();
                    later.add_rule(&table(family), chain, rule.clone());
                    if nft.takes(family, &rule) {
                        nft.load(&later.to_string());
                    }
                    support::netlink().commit(&later).unwrap();
                }
                let listed = nft.list();
                // By either way, and listed as it was written.
                for rule in slots::rules() {
                    let shown = format!("\t{}\n", rule.display(family));
                    assert_eq!(listed.matches(&shown).count(), 2, "{nft:?} {shown} {listed}");
                }
            });
        }
    }
}

#[test]
fn the_same_again_changes_nothing() {
    let nft = Nft::installed();
    in_namespace(|| {
        let mut transaction = Transaction::new();
        for family in Family::ALL {
            let sets = support::add_table(&mut transaction, &table(family));
            support::add_elements(&mut transaction, &table(family), &sets);
        }
        let mut netlink = support::netlink();
        netlink.commit(&transaction).unwrap();
        let before = nft.list();
        netlink.commit(&transaction).unwrap();
        assert_eq!(nft.list(), before);
    });
}

#[test]
fn what_was_added_can_be_deleted() {
    let nft = Nft::installed();
    let mut tables = Transaction::new();
    Family::ALL.into_iter().for_each(|family| tables.delete_table(&table(family)));
    for by in By::all() {
        in_namespace(|| {
            support::netlink().commit(&support::everything()).unwrap();
            by.commit(&support::undo_everything());
            let listed = nft.list();
            for gone in ["services", "lb-1", "endpoints", "10.0.0.1", "map "] {
                assert!(!listed.contains(gone), "{gone}: {listed}");
            }
            by.commit(&tables);
            assert_eq!(nft.list(), "");
        });
    }
}

#[test]
fn a_table_needs_no_comment() {
    let nft = Nft::installed();
    in_namespace(|| {
        let mut transaction = Transaction::new();
        transaction.add_table(&Table::new(Family::Ip, "switchyard-other"));
        transaction.add_table_with_comment(&table(Family::Ip), "a \"quoted\" word");
        support::netlink().commit(&transaction).unwrap();
        let by_netlink = nft.list();
        assert!(by_netlink.contains("table ip switchyard-other {\n}"), "{by_netlink}");
        assert!(by_netlink.contains("comment \"a 'quoted' word\""), "{by_netlink}");
        nft.flush();
        nft.load(&transaction.to_string());
        assert_eq!(nft.list(), by_netlink);
    });
}
