//! Other programs that commit while a sync reads, plans and commits: to their own tables, which
//! does no harm however often, and to ours, which is never overlooked.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::json;
use switchyard_core::{
    model::IpFamily,
    objects::Event,
    proxier::Proxier,
    testing::{ManyServices, service},
};
use switchyard_kernel::nftables::{
    Elements, Family, Operation, OperationKind, Table, TableDump, Transaction, TransportError,
    testing::{InterceptingTransport, while_others_commit},
};
use switchyard_nft::{NftConfig, NftProxier};

use crate::common::{
    Node, Owner, config, fail_if, in_namespace, intercepted, netlink, nft, open, over, ruleset,
    start, web, web_slice, with_node,
};

/// A backend that asks before each read of a table.
fn asking(
    mut ask: impl FnMut(&Table) -> Result<(), TransportError> + Send + 'static,
) -> NftProxier {
    let transport = InterceptingTransport::new(netlink(), |_| Ok(()));
    let transport = transport.reading(move |table, set| set.map_or_else(|| ask(table), |_| Ok(())));
    over(Box::new(transport))
}

#[test]
fn syncs_succeed_while_others_commit_thousands_of_times_a_second() {
    in_namespace(|| {
        let theirs = Table::new(Family::Ip, "theirs");
        let (mut add, mut delete) = (Transaction::new(), Transaction::new());
        add.add_table(&theirs);
        add.add_chain(&theirs, "chain");
        delete.delete_table(&theirs);
        // Far more would be more than the record can hold while a sync is planned, which is read
        // again then.
        let pause = Duration::from_micros(150);
        let (_, commits) = while_others_commit(&[&add, &delete], pause, || {
            let many = ManyServices { services: 2_000, endpoints: 5 };
            let reads = Arc::new(AtomicUsize::new(0));
            let counted = reads.clone();
            let proxier = asking(move |_: &Table| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            let mut node = Node::new(many.node(), proxier);
            // Syncs, and returns how often both tables were read.
            let sync = |node: &mut Node| {
                node.try_sync().expect("a sync");
                reads.swap(0, Ordering::Relaxed) / 2
            };
            let change = |n: usize, version| Event::Apply(many.slice(n, version));
            node.apply(many.lists());
            let (mut full, mut ordinary) = (vec![sync(&mut node)], Vec::new());
            for version in 1..=5 {
                for n in 0..5 {
                    node.apply([change(n, version)]);
                    ordinary.push(sync(&mut node));
                }
                node.apply((100..1_000).map(|n| change(n, version)));
                node.tracker.request_resync();
                full.push(sync(&mut node));
            }
            assert_eq!(ordinary, [0; 25], "ordinary syncs read nothing");
            assert_eq!(full, [1; 6], "full syncs read once");
        });
        assert!(commits > 1000);
    });
}

/// Runs an nft script before a commit, once, as another program would in just this moment.
fn meddling(script: &'static str) -> (NftProxier, Arc<AtomicBool>) {
    let meddles = Arc::new(AtomicBool::new(false));
    let flag = meddles.clone();
    let proxier = intercepted(move |_| {
        if flag.swap(false, Ordering::Relaxed) {
            nft(script);
        }
        Ok(())
    });
    (proxier, meddles)
}

#[test]
fn a_change_between_reading_and_committing_is_repaired_in_the_same_sync() {
    for script in [
        "add element ip kube-proxy cluster-ips { 10.96.9.9 }",
        "flush chain ip6 kube-proxy services",
        "delete table ip kube-proxy; delete table ip6 kube-proxy",
    ] {
        in_namespace(|| {
            let (proxier, meddles) = meddling(script);
            let mut node = start(config());
            node.sync(web());
            node.sync([web_slice(&[1, 2])]);
            node.full();
            let expected = ruleset();
            node.sync([web_slice(&[1, 2, 3])]);
            let mut restarted = Node::new(config(), proxier);
            // Something is left to commit, and in this moment another program changes the table.
            restarted.apply(web());
            restarted.apply([web_slice(&[1, 2])]);
            meddles.store(true, Ordering::Relaxed);
            restarted.try_sync().expect("the sync reads again");
            assert!(!meddles.load(Ordering::Relaxed), "something was committed");
            assert!(!ruleset().contains("10.96.9.9"), "{script}");
            restarted.full();
            assert_eq!(sorted(&ruleset()), sorted(&expected), "{script}");
            assert!(restarted.full().bytes == 0);
        });
    }
}

/// The parts of a listing in any order: elements come in any order.
fn sorted(listing: &str) -> Vec<String> {
    let parts = listing.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned());
    let mut parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.sort();
    parts
}

/// A sync of which a part was committed: what the backend remembered is not what the kernel holds,
/// so that nothing may be compared with it.
#[test]
fn nothing_is_remembered_after_a_part_of_a_sync() {
    in_namespace(|| {
        let fails_at = Arc::new(AtomicUsize::new(usize::MAX));
        let countdown = fails_at.clone();
        let proxier = intercepted(move |_| {
            let left = countdown.load(Ordering::Relaxed);
            if left == usize::MAX {
                return Ok(());
            }
            countdown.store(left.checked_sub(1).unwrap_or(usize::MAX), Ordering::Relaxed);
            fail_if(left == 0)
        });
        let mut node = Node::new(config(), proxier);
        node.sync(web());
        // The first of three transactions makes `lb/2`; the second is refused.
        node.apply([web_slice(&[1, 2])]);
        fails_at.store(1, Ordering::Relaxed);
        node.try_sync().expect_err("the second transaction is refused");
        assert_eq!(fails_at.load(Ordering::Relaxed), usize::MAX, "there was a second");
        let listed = ruleset();
        assert!(listed.contains("chain lb/2 {"), "the first was committed: {listed}");
        assert!(!listed.contains("goto masquerade-lb/2"), "the second was not: {listed}");
        // Back to three endpoints: the rules of `lb/2` have to go, and no one else made them.
        node.apply([web_slice(&[1, 2, 3])]);
        let report = node.try_sync().expect("a full sync");
        assert!(report.drift.is_none(), "{:?}", report.drift);
        assert!(!ruleset().contains("chain lb/2 {\n\t\tmeta"), "{}", ruleset());
        assert_eq!(node.full().bytes, 0);
    });
}

/// A table that cannot be read costs its family, and not the other.
#[test]
fn a_table_that_cannot_be_read_costs_its_family_alone() {
    for theirs in Family::ALL {
        in_namespace(|| {
            let fails = Arc::new(AtomicBool::new(true));
            let flag = fails.clone();
            let proxier = asking(move |table: &Table| {
                fail_if(flag.load(Ordering::Relaxed) && table.family == theirs)
            });
            costs_its_family(theirs, proxier, || fails.store(false, Ordering::Relaxed));
        });
    }
}

/// A table that another program owns costs its family, and not the other.
#[test]
fn a_table_of_another_program_costs_its_family_alone() {
    in_namespace(|| {
        let owner = Owner::of("add table ip kube-proxy { flags owner; }");
        let proxier = NftProxier::open(NftConfig::default()).expect("netlink is there");
        costs_its_family(Family::Ip, proxier, || drop(owner));
    });
}

/// So does a dormant table that the kernel refuses to wake.
#[test]
fn a_table_that_cannot_be_woken_costs_its_family_alone() {
    in_namespace(|| {
        nft("add table ip kube-proxy { flags dormant; }");
        let refuses = Arc::new(AtomicBool::new(true));
        let flag = refuses.clone();
        let proxier = intercepted(move |transaction| {
            let is_wake = |it: &Operation| matches!(it.kind, OperationKind::WakeTable);
            fail_if(flag.load(Ordering::Relaxed) && transaction.operations().iter().any(is_wake))
        });
        costs_its_family(Family::Ip, proxier, || refuses.store(false, Ordering::Relaxed));
    });
}

/// Checks that a family is left out, and the other is not, until the cause is gone.
fn costs_its_family(family: Family, proxier: NftProxier, end: impl FnOnce()) {
    let mut node = Node::new(config(), proxier);
    node.sync([service("web", "10.96.0.10,fd00::10").port("", "TCP", 80).apply()]);
    let is_served = |family: Family| {
        let listed = nft(&format!("list map {family} kube-proxy no-endpoint-services"));
        listed.contains("10.96.0.10") || listed.contains("fd00::10")
    };
    for each in Family::ALL {
        assert_eq!(node.tracker.transition().programs(each.into()), each != family);
        assert!(each == family || is_served(each));
    }
    end();
    node.full();
    assert!(is_served(family));
}

/// Changes in the table of a family that cannot be programmed have nothing of the other family
/// compared.
#[test]
fn changes_of_a_family_that_is_left_out_have_nothing_read() {
    in_namespace(|| {
        let (fails, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (flag, counted) = (fails.clone(), reads.clone());
        let mut node = Node::new(
            config(),
            asking(move |table: &Table| {
                counted.fetch_add(1, Ordering::Relaxed);
                fail_if(flag.load(Ordering::Relaxed) && table.family == Family::Ip)
            }),
        );
        node.sync(web());
        fails.store(true, Ordering::Relaxed);
        node.full();
        assert!(!node.tracker.transition().programs(IpFamily::V4));
        let mut monitor = node.proxier.monitor().expect("the kernel notifies");
        let healthy = nft("list table ip6 kube-proxy");
        nft(
            "add set ip kube-proxy theirs { type ipv4_addr; }; flush chain ip6 kube-proxy services",
        );
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        reads.store(0, Ordering::Relaxed);
        node.tracker.request_repair();
        // Before the family is due to be tried again.
        let synced = node.runtime.block_on(node.proxier.sync(&node.tracker.transition()));
        assert_eq!(synced.expect("synced").drift.objects, 1);
        assert_eq!(reads.load(Ordering::Relaxed), 0);
        assert_eq!(nft("list table ip6 kube-proxy"), healthy);
    });
}

/// Another program that changes our tables without a pause delays what changes for a few syncs at
/// most, also at the start.
#[test]
fn services_change_while_another_program_changes_our_tables_all_the_time() {
    let table = Table::new(Family::Ip, "kube-proxy");
    let chain = |_: TableDump| {
        let (mut add, mut delete) = (Transaction::new(), Transaction::new());
        add.add_chain(&table, "theirs");
        delete.delete_chain(&table, "theirs");
        [add, delete]
    };
    let element = |dump: TableDump| {
        let set = &dump.sets["cluster-ips"];
        let definition = Arc::new(set.definition.clone().expect("one of ours"));
        let element = set.elements.as_ref().expect("they were read")[0].element.clone();
        let (mut add, mut delete) = (Transaction::new(), Transaction::new());
        delete.delete_elements(&table, &definition, vec![element.key]);
        add.add_elements(&table, &definition, vec![element]);
        [delete, add]
    };
    let toggles: [&(dyn Fn(TableDump) -> [Transaction; 2] + Sync); 2] = [&chain, &element];
    for toggle in toggles {
        in_namespace(|| {
            let many = ManyServices { services: 4_000, endpoints: 5 };
            let mut node = Node::new(many.node(), open());
            node.apply(many.lists());
            node.sync([]);
            let dump = netlink().read(&table, Elements::Include).expect("readable");
            let [first, second] = toggle(dump.expect("a table"));
            let (stop, commits) = (AtomicBool::new(false), AtomicUsize::new(0));
            let changed = thread::scope(|scope| {
                scope.spawn(|| {
                    let mut other = netlink();
                    while !stop.load(Ordering::Relaxed) {
                        // What one of them adds, a sync may have deleted.
                        let taken = [&first, &second].map(|it| other.commit(it).is_ok());
                        commits.fetch_add(taken.map(usize::from).iter().sum(), Ordering::Relaxed);
                    }
                });
                let syncs = |node: &mut Node| (1..=10).find(|_| node.try_sync().is_ok());
                node.apply([Event::Apply(many.slice(7, 1))]);
                node.tracker.request_resync();
                let compared = syncs(&mut node);
                node.proxier = open();
                node.tracker.request_resync();
                node.apply([Event::Apply(many.slice(7, 2))]);
                let restarted = syncs(&mut node);
                node.apply([Event::Apply(many.slice(7, 3))]);
                let ordinary = syncs(&mut node);
                stop.store(true, Ordering::Relaxed);
                [compared, restarted, ordinary]
            });
            assert!(changed.iter().all(Option::is_some), "{changed:?}");
            assert!(ruleset().contains("10.240.0.4"), "{changed:?}");
            assert!(commits.into_inner() > 100);
            node.full();
            assert_eq!(node.full().bytes, 0);
        });
    }
}

/// No packet enters the base chains of a dormant table, though nothing in it differs.
#[test]
fn a_dormant_table_is_woken() {
    with_node(|mut node| {
        node.sync(web());
        let mut healthy = ruleset();
        let base = "chain ip kube-proxy filter-forward";
        for is_known in [true, false] {
            nft("add table ip kube-proxy { flags dormant; }");
            let opened = || NftProxier::open(NftConfig::default()).expect("opened");
            let report = if is_known { node.full() } else { node.restart(opened()) };
            assert_eq!(report.drift.objects, usize::from(is_known), "{:?}", report.drift);
            assert_eq!(ruleset(), healthy);
            // Newer kernels refuse a base chain in the transaction that wakes its table.
            nft(&format!("flush {base}; delete {base}"));
            nft("add table ip kube-proxy { flags dormant; }");
            node.full();
            // The chain is the last one now.
            let whole = ruleset();
            assert_eq!(whole.len(), healthy.len());
            healthy = whole;
        }
    });
}

/// Services would not fit into the set.
#[test]
fn a_set_of_another_size_is_made_anew() {
    with_node(|mut node| {
        node.sync(web());
        let is_small = || nft("list set ip kube-proxy nodeport-ips").contains("size 5");
        for is_known in [true, false] {
            // Since kernel 6.5, this changes the size.
            nft("add set ip kube-proxy nodeport-ips { type ipv4_addr; size 5; }");
            if !is_small() {
                return;
            }
            match is_known {
                true => node.full(),
                false => node.restart(open()),
            };
            assert!(!is_small());
            assert_eq!(node.full().bytes, 0);
        }
    });
}

/// Changes that the kernel reports of another program are undone without reading, which takes far
/// longer and would hold up what else changes; before anything is read if that is not all.
#[test]
fn what_is_known_to_have_changed_is_repaired_without_reading() {
    in_namespace(|| {
        // Nothing is listed before there is a table.
        let seen = Arc::new(Mutex::new(Some(String::new())));
        let at_read = seen.clone();
        let proxier = asking(move |_: &Table| {
            at_read.lock().expect("no panic").get_or_insert_with(ruleset);
            Ok(())
        });
        let mut node = Node::new(config(), proxier);
        let sticky = service("sticky", "10.96.0.2").port("", "TCP", 1);
        let guarded = service("guarded", "10.96.0.3").port("", "TCP", 1);
        let guarded = guarded.set("spec.loadBalancerSourceRanges", json!(["192.0.2.0/24"]));
        let guarded = guarded.set("status.loadBalancer.ingress", json!([{"ip": "198.51.100.7"}]));
        let guarded = guarded.set("spec.type", "LoadBalancer");
        node.sync([sticky.set("spec.sessionAffinity", "ClientIP").apply(), guarded.apply()]);
        node.sync(web());
        let mut monitor = node.proxier.monitor().expect("the kernel notifies");
        let healthy = ruleset();
        let firewall = healthy
            .split_whitespace()
            .find(|word| word.starts_with("firewall-") && word.contains('/'));
        let slot = "tcp-endpoints { 10.96.0.1 . 80 . 1";
        let damages = [
            ("flush chain ip kube-proxy services".to_owned(), 1),
            ("add rule ip6 kube-proxy lb/3 drop; flush set ip kube-proxy cluster-ips".into(), 4),
            (format!("delete element ip kube-proxy {slot} }}"), 1),
            // Another endpoint, and one too many.
            (
                format!(
                    "delete element ip kube-proxy {slot} }}; \
                     add element ip kube-proxy {slot} : 192.0.2.1 . 80, 192.0.2.2 . 1 . 0 : 192.0.2.1 . 1 }}"
                ),
                3,
            ),
            ("flush set ip kube-proxy hairpin-connections".into(), 1),
            (format!("flush chain ip kube-proxy {}", firewall.expect("source ranges")), 1),
            // What was reported of some elements is true no more, and hinders no other repair.
            (
                format!(
                    "flush chain ip kube-proxy services; delete element ip kube-proxy {slot} }}; \
                     add element ip kube-proxy cluster-ips {{ 10.96.9.9 }}; \
                     add element ip6 kube-proxy cluster-ips {{ fd00::99 }} then \
                     delete element ip kube-proxy cluster-ips {{ 10.96.9.9 }}; \
                     delete element ip6 kube-proxy cluster-ips {{ fd00::99 }}"
                ),
                2,
            ),
        ];
        for (damage, objects) in damages {
            let (reported, later) = damage.split_once("then").unwrap_or((&damage, ""));
            nft(reported);
            node.runtime.block_on(monitor.externally_changed()).expect("a report");
            nft(later);
            *seen.lock().expect("no panic") = None;
            node.tracker.request_repair();
            let drift = node.sync([]).drift;
            assert_eq!(drift.objects, objects, "{damage}: {drift:?}");
            assert_eq!(*seen.lock().expect("no panic"), None, "{damage}");
            assert_eq!(ruleset(), healthy, "{damage}");
        }

        // What changes at the same time is synced as well.
        nft(&format!("delete element ip kube-proxy {slot} }}; flush chain ip kube-proxy lb/3"));
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        node.tracker.request_repair();
        assert_eq!(node.sync([web_slice(&[4])]).drift.objects, 2);
        assert_eq!(*seen.lock().expect("no panic"), None);
        node.sync(web());
        assert!(node.full().drift.is_none());

        // A set that is not named one by one is compared.
        nft("add set ip kube-proxy theirs { type ipv4_addr; }; flush chain ip kube-proxy services");
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        *seen.lock().expect("no panic") = None;
        node.tracker.request_repair();
        assert_eq!(node.sync([]).drift.objects, 2);
        assert!(seen.lock().expect("no panic").is_some());

        // A comparison has seen it before the monitor reports it.
        nft("flush chain ip kube-proxy services");
        assert_eq!(node.full().drift.objects, 1);
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        assert!(node.full().drift.is_none());
    });
}
