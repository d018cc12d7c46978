//! JSON: the same ruleset as by netlink, or a clear refusal of a program that is too old.

use std::collections::BTreeSet;

use switchyard_kernel::nftables::{
    Element, Elements, Family, Key, SetDef, Transaction, Transport, TransportError, Verdict,
    json::{Document, JsonTransport},
};
use switchyard_model::Protocol;

use super::{
    dumps::assert_holds,
    support::{self, Nft, in_namespace, table},
};

/// nft 1.1.3 drops the comments of sets that come by JSON: they are indented by two tabs.
fn without_set_comments(listing: &str) -> String {
    let is_comment = |line: &&str| line.starts_with("\t\tcomment ");
    listing.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n")
}

fn trixie() -> Option<(Nft, JsonTransport)> {
    let nft = Nft::trixie()?;
    let json = JsonTransport::with_program(&nft.0).unwrap();
    Some((nft, json))
}

#[test]
fn an_old_program_is_refused() {
    in_namespace(|| {
        let version = Nft::installed().run(&["--version"], "");
        if !version.contains("v1.0.") {
            // A newer one is installed: nothing to refuse.
            JsonTransport::open().unwrap();
            return test_netns::skipped("the installed nft is not 1.0");
        }
        let error = JsonTransport::open().unwrap_err();
        assert!(matches!(error, TransportError::Unusable { .. }), "{error}");
        let message = error.to_string();
        assert!(message.starts_with("cannot use nft: nftables v1.0."), "{message}");
        assert!(message.contains("as 1.1.3 can"), "{message}");
        assert_eq!(Nft::installed().list(), "");
    });
}

#[test]
fn each_statement_is_the_same_by_json_and_by_netlink() {
    for family in Family::ALL {
        in_namespace(|| {
            let Some((nft, mut json)) = trixie() else { return };
            for (chain, rule) in support::rules(family) {
                let transaction = support::with_rule(family, chain, &rule);
                support::netlink().commit(&transaction).unwrap();
                let by_netlink = nft.list();
                nft.flush();
                let shown = rule.display(family).to_string();
                json.commit(&transaction).unwrap_or_else(|error| panic!("{shown}: {error}"));
                let by_json = nft.list();
                // Read back, it is the rule that was written.
                let dump = json.read(&table(family), Elements::Omit).unwrap().unwrap();
                let expected = Some(rule.fingerprint(family));
                assert_eq!(dump.chains[chain].rules[0].fingerprint, expected, "{shown}");
                nft.flush();
                assert_eq!(
                    without_set_comments(&by_json),
                    without_set_comments(&by_netlink),
                    "{shown}"
                );
            }
        });
    }
}

#[test]
fn the_program_loads_the_documents_that_it_is_said_to_load() {
    for family in Family::ALL {
        in_namespace(|| {
            let Some(nft) = Nft::trixie() else { return };
            for (chain, rule) in support::rules(family) {
                let transaction = support::with_rule(family, chain, &rule);
                let document = Document(&transaction);
                let loaded = nft.try_run(&["-j", "-f", "-"], &document.to_string());
                assert_eq!(loaded.is_ok(), document.nft_loads(), "{}", rule.display(family));
                if loaded.is_ok() {
                    nft.flush();
                }
            }
        });
    }
}

#[test]
fn everything_is_the_same_by_json_and_by_netlink() {
    in_namespace(|| {
        let Some((nft, mut json)) = trixie() else { return };
        let transaction = support::everything();
        support::netlink().commit(&transaction).unwrap();
        let by_netlink = nft.list();
        // Reading by JSON what netlink wrote.
        for family in Family::ALL {
            assert_holds(&mut json, &transaction, family);
        }
        nft.flush();
        let stats = json.commit(&transaction).unwrap();
        assert!(stats.bytes > 10_000 && stats.operations == transaction.operations().len());
        assert_eq!(without_set_comments(&nft.list()), without_set_comments(&by_netlink));
    });
}

#[test]
fn netlink_and_json_read_the_same() {
    in_namespace(|| {
        let Some((_, mut json)) = trixie() else { return };
        let mut netlink = support::netlink();
        netlink.commit(&support::everything()).unwrap();
        for family in Family::ALL {
            let mut by_netlink = netlink.read(&table(family), Elements::Include).unwrap().unwrap();
            by_netlink.generation = None;
            let mut by_json = json.read(&table(family), Elements::Include).unwrap().unwrap();
            let affinity = support::Sets::new(family).affinity;
            let clients = &mut by_json.sets.get_mut(&affinity.name).unwrap().elements;
            assert_eq!(clients.take(), Some(Vec::new()), "nft lists clients as well");
            assert_eq!(by_json, by_netlink);
        }
    });
}

#[test]
fn elements_with_a_timeout_are_restored_by_json() {
    for family in Family::ALL {
        in_namespace(|| {
            let Some((_, mut json)) = trixie() else { return };
            let (table, affinity) = (table(family), support::Sets::new(family).affinity);
            support::netlink().commit(&support::everything()).unwrap();
            let remembered = support::remembered(family, 50);
            let mut change = Transaction::new();
            change.restore_elements(&table, &affinity, vec![remembered.clone()]);
            json.commit(&change).unwrap();
            let read = support::scanned(&mut json, &table, &affinity).unwrap();
            assert_eq!(read[0].element, remembered.element);
            assert!(read[0].expires.unwrap().as_secs() > 20, "{read:?}");
            let mut change = Transaction::new();
            change.delete_elements(&table, &affinity, vec![remembered.element.key]);
            json.commit(&change).unwrap();
            assert!(json.commit(&change).unwrap_err().is_missing());
            assert_eq!(support::scanned(&mut json, &table, &affinity), Some(Vec::new()));
            let nowhere = SetDef::set("nowhere", [family.address_field()]);
            assert_eq!(support::scanned(&mut json, &table, &nowhere), None);
        });
    }
}

#[test]
fn a_dormant_table_is_woken_by_both() {
    in_namespace(|| {
        let Some((nft, mut json)) = trixie() else { return };
        let (mut netlink, table) = (support::netlink(), table(Family::Ip));
        let mut wake = Transaction::new();
        wake.wake_table(&table);
        for transport in [&mut json as &mut dyn Transport, &mut netlink] {
            nft.load("add table ip kube-proxy { flags dormant; }");
            for is_dormant in [true, false] {
                let read = transport.read(&table, Elements::Omit).unwrap().unwrap();
                assert_eq!(read.dormant, is_dormant);
                transport.commit(&wake).unwrap();
            }
        }
    });
}

#[test]
fn all_that_is_refused_is_named() {
    in_namespace(|| {
        let Some((_, mut json)) = trixie() else { return };
        support::netlink().commit(&support::everything()).unwrap();
        let (table, sets) = (table(Family::Ip), support::Sets::new(Family::Ip));
        let key = |last| {
            let key = Key::new().address(support::address(Family::Ip, last));
            key.protocol(Protocol::Tcp).port(80)
        };
        let nowhere = |last| Element::verdict(key(last), Verdict::Goto("nowhere".into()));
        let mut adds = Transaction::new();
        adds.add_elements(&table, &sets.services, (100..120).map(nowhere).collect());
        let mut deletes = Transaction::new();
        deletes.delete_elements(&table, &sets.services, (100..120).map(key).collect());
        for transaction in [adds, deletes] {
            let error = json.commit(&transaction).unwrap_err();
            assert!(error.is_missing(), "{error:?}");
            let named: BTreeSet<Key> = error
                .refusals()
                .filter_map(|refusal| refusal.element.as_deref().copied())
                .collect();
            assert_eq!(named, (100..120).map(key).collect(), "{transaction}: {error:?}");
        }
    });
}
