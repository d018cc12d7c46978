//! Refused transactions name the object, and leave nothing behind.

use std::net::Ipv4Addr;

use switchyard_kernel::nftables::{
    Element, Elements, Family, Key, Rule, Statement, Transaction, Transport, TransportError,
    Verdict,
};
use switchyard_model::Protocol;

use super::support::{self, Nft, address, table, with_netlink};

fn refused(transport: &mut impl Transport, transaction: &Transaction) -> (String, Option<i32>) {
    let error = transport.commit(transaction).unwrap_err();
    let TransportError::Refused(first, _) = &error else { panic!("{error}") };
    (error.to_string(), first.errno)
}

#[test]
fn an_element_that_exists_with_other_data_is_named() {
    for family in Family::ALL {
        with_netlink(|mut netlink| {
            netlink.commit(&support::everything()).unwrap();
            let before = Nft::installed().list();
            let sets = support::Sets::new(family);
            let key =
                |last| Key::new().address(address(family, last)).protocol(Protocol::Tcp).port(80);
            let mut transaction = Transaction::new();
            transaction.add_chain(&table(family), "new");
            let elements = [7, 8, 1, 9].map(|last| Element::verdict(key(last), Verdict::Drop));
            transaction.add_elements(&table(family), &sets.services, elements.into());
            let (message, errno) = refused(&mut netlink, &transaction);
            assert_eq!(errno, Some(libc::EEXIST));
            assert_eq!(
                message,
                format!(
                    "cannot add element to map {family} kube-proxy service-ips: {} . tcp . 80: \
                     File exists",
                    address(family, 1)
                )
            );
            assert_eq!(Nft::installed().list(), before);
        });
    }
}

/// The errors of so many messages are more than a socket can receive: some are lost.
#[test]
fn what_is_refused_is_named_however_much_it_is() {
    with_netlink(|mut netlink| {
        netlink.commit(&support::everything()).unwrap();
        let addresses = support::Sets::new(Family::Ip).addresses;
        let key = |n: u32| Key::new().address(Ipv4Addr::from(0x0b00_0000 + n).into());
        let mut transaction = Transaction::new();
        transaction.delete_elements(&table(Family::Ip), &addresses, (0..50_000).map(key).collect());
        let error = netlink.commit(&transaction).unwrap_err();
        assert!(error.is_missing(), "{error}");
        let named = error.refusals().filter(|refusal| refusal.element.is_some()).count();
        assert!(named >= 50_000 / 16, "{named}");
    });
}

#[test]
fn every_operation_without_its_object_is_refused() {
    with_netlink(|mut netlink| {
        let mut transaction = Transaction::new();
        transaction.add_table(&table(Family::Ip));
        netlink.commit(&transaction).unwrap();
        let sets = support::Sets::new(Family::Ip);
        let rule = || Rule::new([Statement::Verdict(Verdict::Goto("nowhere".into()))]);
        let element = Element::new(Key::new().address(address(Family::Ip, 1)));
        let key = element.key;
        type Fill<'a> = &'a dyn Fn(&mut Transaction);
        let cases: [(&str, Fill<'_>); 7] = [
            ("delete table ip6 kube-proxy", &|t| t.delete_table(&table(Family::Ip6))),
            ("flush chain ip kube-proxy nowhere", &|t| {
                t.flush_chain(&table(Family::Ip), "nowhere")
            }),
            ("delete chain ip kube-proxy nowhere", &|t| {
                t.delete_chain(&table(Family::Ip), "nowhere")
            }),
            ("delete set ip kube-proxy nowhere", &|t| t.delete_set(&table(Family::Ip), "nowhere")),
            ("add rule to chain ip kube-proxy nowhere", &|t| {
                t.add_rule(&table(Family::Ip), "nowhere", Rule::new([]));
            }),
            ("add element to set ip kube-proxy cluster-ips", &|t| {
                t.add_elements(&table(Family::Ip), &sets.addresses, vec![element.clone()]);
            }),
            ("delete element from set ip kube-proxy cluster-ips", &|t| {
                t.delete_elements(&table(Family::Ip), &sets.addresses, vec![key]);
            }),
        ];
        for (expected, fill) in cases {
            let mut transaction = Transaction::new();
            // The operations before it are not blamed.
            transaction.add_chain(&table(Family::Ip), "before");
            fill(&mut transaction);
            let (message, errno) = refused(&mut netlink, &transaction);
            assert!(message.contains(expected), "{expected}: {message}");
            assert_eq!(errno, Some(libc::ENOENT), "{message}");
        }
        // A rule that leads nowhere is blamed with its chain.
        let mut transaction = Transaction::new();
        transaction.add_chain(&table(Family::Ip), "here");
        transaction.add_rule(&table(Family::Ip), "here", rule());
        let (message, errno) = refused(&mut netlink, &transaction);
        assert!(message.contains("add rule to chain ip kube-proxy here"), "{message}");
        assert_eq!(errno, Some(libc::ENOENT));
        assert!(
            netlink.read(&table(Family::Ip), Elements::Omit).unwrap().unwrap().chains.is_empty()
        );
    });
}

#[test]
fn a_busy_chain_cannot_be_deleted() {
    with_netlink(|mut netlink| {
        netlink.commit(&support::everything()).unwrap();
        let mut transaction = Transaction::new();
        transaction.delete_chain(&table(Family::Ip), "dropped");
        let (message, errno) = refused(&mut netlink, &transaction);
        assert_eq!(errno, Some(libc::EBUSY), "{message}");
        assert!(message.starts_with("cannot delete chain ip kube-proxy dropped"), "{message}");
    });
}

#[test]
fn a_stale_generation_is_a_conflict() {
    with_netlink(|mut netlink| {
        netlink.commit(&support::everything()).unwrap();
        let generation =
            netlink.read(&table(Family::Ip), Elements::Omit).unwrap().unwrap().generation.unwrap();
        let mut transaction = Transaction::new();
        transaction.add_chain(&table(Family::Ip), "ours");
        transaction.expect_generation(generation);
        Nft::installed().load("add chain ip kube-proxy theirs");
        let error = netlink.commit(&transaction).unwrap_err();
        assert!(error.is_conflict(), "{error}");
        let dump = netlink.read(&table(Family::Ip), Elements::Omit).unwrap().unwrap();
        assert!(dump.chains.contains_key("theirs") && !dump.chains.contains_key("ours"));
        transaction.expect_generation(dump.generation.unwrap());
        netlink.commit(&transaction).unwrap();
    });
}
