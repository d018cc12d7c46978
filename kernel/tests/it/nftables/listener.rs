//! Notifications of commits of other programs to watched tables.

use std::{process, time::Duration};

use switchyard_kernel::nftables::{
    Family, Table, Transaction, Transport,
    netlink::{Author, Listener},
};
use test_netns::wait::PATIENCE;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use super::support::{self, Nft, in_namespace, table};

/// For what should not happen: far longer than a notification takes.
const NEVER: Duration = Duration::from_millis(100);

/// A listener with the runtime that it belongs to.
struct Listening(Runtime, Listener);

impl Listening {
    fn to(own: &dyn Transport, tables: &[Table]) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listener = Listener::open(&[own.port().unwrap()], tables.to_vec()).unwrap();
        Self(runtime, listener)
    }

    /// Waits for a change of the tables.
    fn next(&mut self, within: Duration) -> Option<Author> {
        let Self(runtime, listener) = self;
        let changed = runtime.block_on(async { timeout(within, listener.changed()).await });
        changed.ok().map(|changed| changed.unwrap().0)
    }
}

#[test]
fn only_changes_of_the_watched_tables_are_reported() {
    in_namespace(|| {
        let nft = Nft::installed();
        let mut ours = support::netlink();
        let watched = [table(Family::Ip), Table::new(Family::Ip6, "two")];
        let mut listener = Listening::to(&ours, &watched);
        let mut transaction = Transaction::new();
        watched.iter().for_each(|table| transaction.add_table(table));
        ours.commit(&transaction).unwrap();
        assert_eq!(listener.next(NEVER), None, "the commit of our own socket");

        // The same name in another family is another table.
        for elsewhere in ["ip two", "ip6 kube-proxy", "inet kube-proxy", "ip kube-prox"] {
            nft.load(&format!("add table {elsewhere}; add chain {elsewhere} kube-proxy"));
            assert_eq!(listener.next(NEVER), None, "{elsewhere}");
        }
        for here in ["ip kube-proxy", "ip6 two"] {
            nft.load(&format!("add chain {here} theirs"));
            let author = listener.next(PATIENCE).expect(here).to_string();
            assert!(author.starts_with("nft (process "), "{author}");
            assert!(!author.contains(&process::id().to_string()), "{author}");
        }
        assert_eq!(listener.next(NEVER), None, "reported once");
    });
}

#[test]
fn one_commit_of_several_tables_is_reported_to_each_watcher() {
    in_namespace(|| {
        let (mut one, mut two) = (support::netlink(), support::netlink());
        let [a, b] = ["a", "b"].map(|name| Table::new(Family::Ip, name));
        let mut of_a = Listening::to(&one, std::slice::from_ref(&a));
        let mut of_b = Listening::to(&two, std::slice::from_ref(&b));
        let mut transaction = Transaction::new();
        transaction.add_table(&a);
        transaction.add_table(&b);
        one.commit(&transaction).unwrap();
        assert_eq!(of_a.next(NEVER), None, "the commit of its own socket");
        assert!(of_b.next(PATIENCE).is_some());
        let mut transaction = Transaction::new();
        transaction.add_chain(&b, "c");
        two.commit(&transaction).unwrap();
        assert_eq!(of_b.next(NEVER), None, "the commit of its own socket");
        assert_eq!(of_a.next(NEVER), None, "of another table");
    });
}

#[test]
fn a_listener_hears_what_comes_after_a_commit_without_notifications() {
    in_namespace(|| {
        let nft = Nft::installed();
        let mut ours = support::netlink();
        let watched = table(Family::Ip);
        let Listening(runtime, _) = Listening::to(&ours, &[]);
        let listener = Listener::open(&[], vec![watched.clone()]).unwrap();
        let membership = listener.membership();
        let mut listener = Listening(runtime, listener);
        let mut transaction = Transaction::new();
        transaction.add_table(&watched);
        for _ in 0..2 {
            assert!(!ours.commit_unheard(&transaction, &membership).unwrap().overtaken);
        }
        assert_eq!(listener.next(NEVER), None);
        nft.load("add table ip elsewhere");
        assert!(ours.commit_unheard(&transaction, &membership).unwrap_err().is_conflict());
        ours.release();
        assert!(!ours.commit_unheard(&transaction, &membership).unwrap().overtaken);
        nft.load("add chain ip kube-proxy theirs");
        assert!(listener.next(PATIENCE).is_some());
    });
}
