//! Notifications of commits of other programs to watched tables.

use std::{os::fd::AsRawFd, process, time::Instant};

use switchyard_nft_ruleset::{
    Family, Table, Transaction, Transport,
    netlink::{Author, Listener},
};
use test_netns::wait::PATIENCE;

use crate::support::{self, Nft, in_namespace, table};

/// Waits until the listener has something to read, and reads it.
fn next(listener: &mut Listener) -> Option<Author> {
    let until = Instant::now() + PATIENCE;
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    while Instant::now() < until {
        // SAFETY: `poll` is one live element, and the listener keeps its descriptor open.
        if unsafe { libc::poll(&raw mut poll, 1, 100) } > 0 {
            return listener.read_changes().unwrap();
        }
    }
    None
}

#[test]
fn only_changes_of_the_watched_tables_are_reported() {
    in_namespace(|| {
        let nft = Nft::installed();
        let mut ours = support::netlink();
        let watched = [table(Family::Ip), Table::new(Family::Ip6, "two")];
        let mut listener = Listener::open(&[ours.port().unwrap()], watched.to_vec()).unwrap();
        let mut transaction = Transaction::new();
        watched.iter().for_each(|table| transaction.add_table(table));
        ours.commit(&transaction).unwrap();
        assert_eq!(listener.read_changes().unwrap(), None, "the commit of our own socket");

        // The same name in another family is another table.
        for elsewhere in ["ip two", "ip6 kube-proxy", "inet kube-proxy", "ip kube-prox"] {
            nft.load(&format!("add table {elsewhere}; add chain {elsewhere} kube-proxy"));
            assert_eq!(next(&mut listener), None, "{elsewhere}");
        }
        for here in ["ip kube-proxy", "ip6 two"] {
            nft.load(&format!("add chain {here} theirs"));
            let author = next(&mut listener).expect(here).to_string();
            assert!(author.starts_with("nft (process "), "{author}");
            assert!(!author.contains(&process::id().to_string()), "{author}");
        }
        assert_eq!(listener.read_changes().unwrap(), None, "reported once");
    });
}

#[test]
fn one_commit_of_several_tables_is_reported_to_each_watcher() {
    in_namespace(|| {
        let (mut one, mut two) = (support::netlink(), support::netlink());
        let port = |transport: &dyn Transport| transport.port().unwrap();
        let [a, b] = ["a", "b"].map(|name| Table::new(Family::Ip, name));
        let mut of_a = Listener::open(&[port(&one)], vec![a.clone()]).unwrap();
        let mut of_b = Listener::open(&[port(&two)], vec![b.clone()]).unwrap();
        let mut transaction = Transaction::new();
        transaction.add_table(&a);
        transaction.add_table(&b);
        one.commit(&transaction).unwrap();
        assert_eq!(of_a.read_changes().unwrap(), None, "the commit of its own socket");
        assert!(next(&mut of_b).is_some());
        let mut transaction = Transaction::new();
        transaction.add_chain(&b, "c");
        two.commit(&transaction).unwrap();
        assert_eq!(of_b.read_changes().unwrap(), None, "the commit of its own socket");
        assert_eq!(next(&mut of_a), None, "of another table");
    });
}
