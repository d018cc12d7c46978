//! Behaviour of syncs after damage, and about transactions that were refused.

use std::{collections::BTreeMap, error::Error, ops::Range};

use super::{
    Subject, assert_as_from_nothing, assert_same, cluster, dual_slice, dump_from_nothing,
    node_config, start,
};
use crate::{
    model::IpFamily,
    objects::Event,
    testing::{endpoint, service, slice, web_slice},
};

/// A resync finds what another program has damaged, names it, and repairs it; the backend's own
/// changes are not drift. A comparison finds and names it, and repairs nothing.
pub fn damage_is_repaired_and_named<S: Subject>(subject: &S) {
    subject.in_namespace(|| {
        let mut proxy = start(subject, node_config());
        proxy.sync(cluster());
        let undisturbed = proxy.full();
        assert!(undisturbed.drift.is_none(), "{undisturbed:?}");
        assert_eq!(proxy.compare(), Some(vec![]));
        for damage in subject.damages() {
            let (name, good) = (&damage.name, subject.listing());
            damage.inflict();
            let damaged = subject.listing();
            assert_ne!(damaged, good, "{name} does something");
            let seen = proxy.compare().expect("the backend can tell");
            assert!(seen.iter().any(|text| text.contains(damage.drift)), "{name}: {seen:?}");
            assert_eq!(subject.listing(), damaged, "{name}");
            let report = proxy.full();
            assert!(report.added + report.removed > 0, "{name}: {report:?}");
            let alone = report.drift;
            let is_named = alone.examples.iter().any(|text| text.contains(damage.drift));
            assert!(is_named && alone.objects > 0, "{name}: {alone:?}");
            assert_eq!(subject.listing(), good, "{name}");
            let again = proxy.full();
            // Only what the backend asked to be revisited for, such as endpoints that drain, goes.
            let is_revisit = report.requeue_after.is_some() && again.added == 0;
            let is_idle = again.bytes == 0 || is_revisit;
            assert!(again.drift.is_none() && is_idle, "{name}: {again:?}");
            assert_eq!(proxy.compare(), Some(vec![]), "{name}");

            // At the same time something else has changed.
            damage.inflict();
            proxy.apply([dual_slice(21)]);
            let drift = proxy.full().drift;
            let is_named = drift.examples.iter().any(|text| text.contains(damage.drift));
            assert!(is_named && drift.objects <= alone.objects, "{name}: {drift:?} {alone:?}");
            assert_as_from_nothing(subject, proxy.tracker.state(), name);
            proxy.apply([dual_slice(20)]);
            assert!(proxy.full().drift.is_none(), "{name}: our own change is no drift");
        }
    });
}

/// A sync that trusts what is damaged may fail or not: the next resync makes it good.
pub fn a_change_on_top_of_damage_is_made_good<S: Subject>(subject: &S) {
    for damage in subject.damages() {
        subject.in_namespace(|| {
            let mut proxy = start(subject, node_config());
            proxy.sync(cluster());
            damage.inflict();
            let rename = service("web", "10.96.0.1").port("http", "TCP", 81);
            proxy.apply([rename.apply(), web_slice(&[1, 2, 9])]);
            if let Err(error) = proxy.try_sync() {
                assert!(error.source().is_some(), "{}: {error:?} has no cause", damage.name);
            }
            proxy.full();
            assert_as_from_nothing(subject, proxy.tracker.state(), &damage.name);
        });
    }
}

/// Changes of [`cluster`]: in both families something comes, changes and goes.
fn change() -> Vec<Event> {
    let slice6 = slice("more", "6")
        .set("addressType", "IPv6")
        .port("http", "TCP", 80)
        .endpoint(endpoint("fd01::30", "elsewhere"));
    vec![
        web_slice(&[2]),
        service("idle", "10.96.0.5").delete(),
        service("dual", "10.96.0.4,fd00::4").port("dns", "UDP", 54).apply(),
        service("more", "10.96.0.6,fd00::6").port("http", "TCP", 80).apply(),
        slice6.apply(),
    ]
}

/// A sync of which any transaction is refused, or that one and all that follow, is made good by the
/// next one.
pub fn a_sync_that_is_refused_halfway_is_made_good<S: Subject>(subject: &S) {
    // The states at the end, by whether the sync failed: each is synced from nothing once.
    let mut wanted = BTreeMap::new();
    // The first sync compares in any case.
    for [is_first, compares] in [[true, false], [false, false], [false, true]] {
        let mut refuse = |passing, end| {
            let refused = passing..end;
            let what = format!("first: {is_first}, compares: {compares}, refused: {refused:?}");
            subject.in_namespace(|| {
                refuse_once(subject, [is_first, compares], refused, &mut wanted, &what)
            })
        };
        // What is refused without others tells how many there are.
        let transactions = (0..).find(|&passing| !refuse(passing, passing + 1));
        subject.in_namespace(|| assert!(transactions > Some(0), "a sync has transactions"));
        for passing in 0..transactions.unwrap_or(0) {
            refuse(passing, usize::MAX);
        }
    }
}

/// Refuses transactions of a sync, and repeats it; returns whether one was refused.
fn refuse_once<S: Subject>(
    subject: &S,
    [is_first, compares]: [bool; 2],
    refused: Range<usize>,
    wanted: &mut BTreeMap<bool, String>,
    what: &str,
) -> bool {
    let mut proxy = start(subject, node_config());
    match is_first {
        true => proxy.apply(cluster()),
        false => drop(proxy.sync(cluster())),
    }
    proxy.apply(change());
    if compares {
        proxy.tracker.request_resync();
    }
    let refuses_the_rest = refused.end == usize::MAX;
    subject.refuse(refused);
    let result = proxy.try_sync();
    let count = subject.refused();
    subject.refuse(0..0);
    let is_failed = result.is_err();
    match result {
        Ok(report) => {
            let mut families = IpFamily::ALL.into_iter();
            let is_whole = families.all(|family| proxy.tracker.transition().programs(family));
            let is_tried_again = compares || report.cleanup_failed;
            let may_succeed = count == 0 || !refuses_the_rest || is_tried_again || !is_whole;
            assert!(may_succeed, "{what}: {count} refused");
        }
        Err(error) => {
            assert!(count > 0, "{what}: {error:?}");
            assert!(error.source().is_some(), "{what}: {error:?} has no cause");
            // A change of the meantime comes with what failed.
            proxy.apply([web_slice(&[2, 3])]);
            let report = proxy.try_sync().expect("nothing is refused");
            assert!(report.drift.is_none(), "{what}: {report:?}");
        }
    }
    let report = proxy.full();
    assert!(report.drift.is_none(), "{what}: {report:?}");
    let state = proxy.tracker.state();
    let have = subject.dump();
    subject.check(state);
    let want = wanted.entry(is_failed).or_insert_with(|| dump_from_nothing(subject, state));
    assert_same(subject, &have, want, what);
    count > 0
}
