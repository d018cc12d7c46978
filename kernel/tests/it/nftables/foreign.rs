//! Commits of other programs to other tables, without a pause: tables are read and changed all the
//! same, and a change of these tables is never overlooked.

use std::time::Duration;

use switchyard_kernel::nftables::{
    Element, Elements, Family, Key, SetDef, Table, Transaction, Transport, TransportError,
    testing::while_others_commit,
};
use switchyard_model::Protocol;

use super::support::{self, Nft, in_namespace, table, with_netlink};

/// More than a few parts of a dump, and a batch that takes longer than the pause between two
/// commits.
const ELEMENTS: usize = 40_000;
/// The pause between two commits, thousands of which come in a second. Without a pause there can be
/// more than the record holds.
const OFTEN: Duration = Duration::from_micros(100);
/// More than one part of a dump.
const CHAINS: usize = 1_000;

/// Runs `work` while another thread adds and deletes a table of the same family, with chains, with
/// this pause between two commits. Returns how often it did.
fn during_foreign_commits(pause: Duration, work: impl FnOnce()) -> usize {
    let theirs = Table::new(Family::Ip, "theirs");
    let (mut add, mut delete) = (Transaction::new(), Transaction::new());
    add.add_table(&theirs);
    for name in ["a", "b", "c"] {
        add.add_chain(&theirs, name);
    }
    delete.delete_table(&theirs);
    while_others_commit(&[&add, &delete], pause, work).1
}

/// A large table after another program's, whose chains come first in each dump.
fn large() -> (Transaction, SetDef) {
    let ours = table(Family::Ip);
    let set = SetDef::set("large", [Family::Ip.address_field()]);
    let mut transaction = Transaction::new();
    transaction.add_table(&Table::new(Family::Ip, "before-ours"));
    transaction.add_table(&ours);
    transaction.add_set(&ours, set.clone().into());
    let elements = (0..ELEMENTS as u32).map(|n| {
        Element::new(Key::new().address(std::net::Ipv4Addr::from(0x0a00_0000 + n).into()))
    });
    transaction.add_elements(&ours, &set.clone().into(), elements.collect());
    for n in 0..CHAINS {
        transaction.add_chain(&ours, format!("chain-{n}"));
    }
    (transaction, set)
}

#[test]
fn tables_are_read_and_changed_during_commits_to_other_tables() {
    with_netlink(|mut netlink| {
        let (transaction, set) = large();
        netlink.commit(&transaction).unwrap();
        let ours = table(Family::Ip);
        for pause in [Duration::from_millis(1), OFTEN] {
            let rounds = 5;
            let commits = during_foreign_commits(pause, || {
                for _ in 0..rounds {
                    let dump = netlink.read(&ours, Elements::Include).unwrap().unwrap();
                    assert_eq!(dump.chains.len(), CHAINS);
                    let elements = dump.sets["large"].elements.as_ref().unwrap();
                    assert_eq!(elements.len(), ELEMENTS);
                    let generation = dump.generation.unwrap();
                    // A batch that is as long as the table.
                    let keys = elements.iter().map(|found| found.element.key).collect();
                    let (mut delete, mut add) = (Transaction::new(), Transaction::new());
                    delete.delete_elements(&ours, &set.clone().into(), keys);
                    let back = elements.iter().map(|found| found.element.clone()).collect();
                    add.add_elements(&ours, &set.clone().into(), back);
                    // Several transactions after one read, as our own commits do not count.
                    for transaction in [&mut delete, &mut add] {
                        transaction.expect_generation(generation);
                        let stats = netlink.commit(transaction).unwrap();
                        assert!(!stats.overtaken);
                    }
                    netlink.release();
                }
            });
            assert!(commits > rounds, "{commits} foreign commits");
        }
    });
}

/// A table is whole though another one that was read before changes all the time.
#[test]
fn a_change_of_one_table_concerns_no_reading_of_another() {
    with_netlink(|mut netlink| {
        netlink.commit(&large().0).unwrap();
        netlink.read(&Table::new(Family::Ip, "theirs"), Elements::Omit).unwrap();
        during_foreign_commits(OFTEN, || {
            let dump = netlink.read(&table(Family::Ip), Elements::Include).unwrap().unwrap();
            assert_eq!(dump.sets["large"].elements.as_ref().unwrap().len(), ELEMENTS);
        });
    });
}

#[test]
fn a_change_of_the_table_is_noticed_during_commits_to_other_tables() {
    with_netlink(|mut netlink| {
        let (transaction, set) = large();
        netlink.commit(&transaction).unwrap();
        let ours = table(Family::Ip);
        let mut meddler = support::netlink();
        during_foreign_commits(OFTEN, || {
            for round in 0..60u16 {
                let generation =
                    netlink.read(&ours, Elements::Omit).unwrap().unwrap().generation.unwrap();
                let mut theirs = Transaction::new();
                theirs.add_chain(&ours, format!("theirs-{round}"));
                meddler.commit(&theirs).unwrap();
                let mut change = Transaction::new();
                let key = Key::new().address([172, 16, (round >> 8) as u8, round as u8].into());
                change.add_elements(&ours, &set.clone().into(), vec![Element::new(key)]);
                change.expect_generation(generation);
                match netlink.commit(&change) {
                    Ok(stats) => assert!(stats.overtaken, "round {round}: overlooked"),
                    Err(error) => assert!(error.is_conflict(), "{error}"),
                }
                if round % 2 == 0 {
                    netlink.release();
                }
            }
        });
    });
}

#[test]
fn commits_to_other_tables_matter_only_without_a_record() {
    in_namespace(|| {
        let nft = Nft::installed();
        let mut netlink = support::netlink();
        let ours = table(Family::Ip);
        let mut transaction = Transaction::new();
        transaction.add_table(&ours);
        netlink.commit(&transaction).unwrap();
        let mut transaction = Transaction::new();
        transaction.add_chain(&ours, "ours");

        let generation = netlink.read(&ours, Elements::Omit).unwrap().unwrap().generation.unwrap();
        transaction.expect_generation(generation);
        // The same name in another family is another table.
        nft.load("add table ip theirs; add table ip6 kube-proxy; add table inet kube-proxy");
        netlink.commit(&transaction).unwrap();
        // Nor does the transport's own commit matter.
        netlink.commit(&transaction).unwrap();

        netlink.release();
        assert!(netlink.commit(&transaction).unwrap_err().is_conflict());
        // A record that begins later does not know.
        netlink.read(&ours, Elements::Omit).unwrap();
        assert!(netlink.commit(&transaction).unwrap_err().is_conflict());
    });
}

/// A refusal for another reason than a conflict is an error, not a conflict.
#[test]
fn a_refusal_is_no_conflict() {
    with_netlink(|mut netlink| {
        let ours = table(Family::Ip);
        let mut transaction = Transaction::new();
        transaction.add_table(&ours);
        netlink.commit(&transaction).unwrap();
        during_foreign_commits(OFTEN, || {
            for _ in 0..20 {
                let generation =
                    netlink.read(&ours, Elements::Omit).unwrap().unwrap().generation.unwrap();
                let set = SetDef::set("missing", [Family::Ip.address_field()]).into();
                let mut change = Transaction::new();
                let key = Key::new().protocol(Protocol::Tcp);
                change.add_elements(&ours, &set, vec![Element::new(key)]);
                change.expect_generation(generation);
                let error = netlink.commit(&change).unwrap_err();
                assert!(matches!(error, TransportError::Refused(..)), "{error}");
            }
        });
    });
}
