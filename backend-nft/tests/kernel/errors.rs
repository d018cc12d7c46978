//! Refused transactions name the object, and leave nothing behind.

use backend_nft::{
    ruleset::{Element, Family, Key, Rule, Statement, Transaction, Verdict},
    transport::{Transport, TransportError},
};
use proxy_core::model::Protocol;

use crate::support::{self, Nft, address, in_namespace};

fn refused(transport: &mut impl Transport, transaction: &Transaction) -> (String, Option<i32>) {
    let error = transport.commit(transaction).unwrap_err();
    assert!(matches!(error, TransportError::Refused(..)), "{error}");
    (error.to_string(), error.errno())
}

#[test]
fn an_element_that_exists_with_other_data_is_named() {
    for family in Family::ALL {
        in_namespace(|| {
            let mut netlink = support::netlink();
            netlink.commit(&support::everything()).unwrap();
            let before = Nft::installed().list();
            let sets = support::Sets::new(family);
            let key =
                |last| Key::new().address(address(family, last)).protocol(Protocol::Tcp).port(80);
            let mut transaction = Transaction::new();
            transaction.add_chain(family, "new");
            let elements = [7, 8, 1, 9].map(|last| Element::verdict(key(last), Verdict::Drop));
            transaction.add_elements(family, &sets.services, elements.into());
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

#[test]
fn an_element_that_is_not_there_is_named() {
    in_namespace(|| {
        let mut netlink = support::netlink();
        netlink.commit(&support::everything()).unwrap();
        let sets = support::Sets::new(Family::Ip6);
        let mut transaction = Transaction::new();
        let key = Key::new().address(address(Family::Ip6, 77)).protocol(Protocol::Udp).port(53);
        transaction.delete_elements(Family::Ip6, &sets.endpoints, vec![key.slot(3)]);
        let (message, errno) = refused(&mut netlink, &transaction);
        assert_eq!(errno, Some(libc::ENOENT));
        assert_eq!(
            message,
            "cannot delete element from map ip6 kube-proxy endpoints: fd00::4d . udp . 53 . 3: \
             No such file or directory"
        );
    });
}

#[test]
fn every_operation_without_its_object_is_refused() {
    in_namespace(|| {
        let mut netlink = support::netlink();
        let mut transaction = Transaction::new();
        transaction.add_table(Family::Ip);
        netlink.commit(&transaction).unwrap();
        let sets = support::Sets::new(Family::Ip);
        let rule = || Rule::new([Statement::Verdict(Verdict::Goto("nowhere".into()))]);
        let element = Element::new(Key::new().address(address(Family::Ip, 1)));
        let key = element.key;
        type Fill<'a> = &'a dyn Fn(&mut Transaction);
        let cases: [(&str, Fill<'_>); 8] = [
            ("delete table ip6 kube-proxy", &|t| t.delete_table(Family::Ip6)),
            ("flush chain ip kube-proxy nowhere", &|t| t.flush_chain(Family::Ip, "nowhere")),
            ("delete chain ip kube-proxy nowhere", &|t| t.delete_chain(Family::Ip, "nowhere")),
            ("flush map ip kube-proxy endpoints", &|t| t.flush_set(Family::Ip, &sets.endpoints)),
            ("delete set ip kube-proxy nowhere", &|t| t.delete_set(Family::Ip, "nowhere")),
            ("add rule to chain ip kube-proxy nowhere", &|t| {
                t.add_rule(Family::Ip, "nowhere", Rule::new([]));
            }),
            ("add element to set ip kube-proxy cluster-ips", &|t| {
                t.add_elements(Family::Ip, &sets.addresses, vec![element.clone()]);
            }),
            ("delete element from set ip kube-proxy cluster-ips", &|t| {
                t.delete_elements(Family::Ip, &sets.addresses, vec![key]);
            }),
        ];
        for (expected, fill) in cases {
            let mut transaction = Transaction::new();
            // Others before it are not blamed.
            transaction.add_chain(Family::Ip, "before");
            fill(&mut transaction);
            let (message, errno) = refused(&mut netlink, &transaction);
            assert!(message.contains(expected), "{expected}: {message}");
            assert_eq!(errno, Some(libc::ENOENT), "{message}");
        }
        // A rule that leads nowhere is blamed with its chain.
        let mut transaction = Transaction::new();
        transaction.add_chain(Family::Ip, "here");
        transaction.add_rule(Family::Ip, "here", rule());
        let (message, errno) = refused(&mut netlink, &transaction);
        assert!(message.contains("add rule to chain ip kube-proxy here"), "{message}");
        assert_eq!(errno, Some(libc::ENOENT));
        assert!(netlink.read(Family::Ip, &[]).unwrap().unwrap().chains.is_empty());
    });
}

#[test]
fn a_busy_chain_cannot_be_deleted() {
    in_namespace(|| {
        let mut netlink = support::netlink();
        netlink.commit(&support::everything()).unwrap();
        let mut transaction = Transaction::new();
        transaction.delete_chain(Family::Ip, "dropped");
        let (message, errno) = refused(&mut netlink, &transaction);
        assert_eq!(errno, Some(libc::EBUSY), "{message}");
        assert!(message.starts_with("cannot delete chain ip kube-proxy dropped"), "{message}");
    });
}

#[test]
fn a_stale_generation_is_a_conflict() {
    in_namespace(|| {
        let mut netlink = support::netlink();
        netlink.commit(&support::everything()).unwrap();
        let generation = netlink.read(Family::Ip, &[]).unwrap().unwrap().generation.unwrap();
        let mut transaction = Transaction::new();
        transaction.add_chain(Family::Ip, "ours");
        transaction.expect_generation(generation);
        Nft::installed().load("add chain ip kube-proxy theirs");
        let error = netlink.commit(&transaction).unwrap_err();
        assert!(error.is_conflict(), "{error}");
        let dump = netlink.read(Family::Ip, &[]).unwrap().unwrap();
        assert!(dump.chains.contains_key("theirs") && !dump.chains.contains_key("ours"));
        transaction.expect_generation(dump.generation.unwrap());
        netlink.commit(&transaction).unwrap();
    });
}
