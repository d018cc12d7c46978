//! Random sequences of changes, synced into a real kernel one after the other, leave there what a
//! sync from nothing puts there; what is there can be taken over without changing it; and other
//! people's chains and rules are as they were.
//!
//! Each test works in network namespaces of its own thread.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use backend_iptables::{Flavour, IptablesConfig, render};
use common::{Tables, full, in_namespace, proxier, sync};
use proptest::prelude::*;
use proxy_core::{
    config::NodeConfig, model::IpFamily, objects::Event, state::State, testing, track::Tracker,
};

/// Chains and rules by table and chain. Shared chains are sorted: their rules may be in any order.
type Contents = BTreeMap<(String, String), Vec<String>>;

const SHARED: [&str; 5] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-PROXY-FIREWALL",
    "KUBE-FIREWALL",
];

fn contents(text: &str) -> Contents {
    let mut contents = Contents::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or(chain);
            contents.entry((table.to_owned(), name.to_owned())).or_default();
        } else if let Some(rest) = line.strip_prefix("-A ") {
            let (chain, rule) = rest.split_once(' ').expect("a rule");
            let rules = contents.entry((table.to_owned(), chain.to_owned())).or_default();
            rules.push(rule.to_owned());
        }
    }
    for ((table, chain), rules) in &mut contents {
        if (table.as_str(), chain.as_str()) == ("nat", "KUBE-SERVICES") {
            let ends = rules.last().is_some_and(|rule| rule.contains("must be the last rule"));
            assert!(ends || rules.iter().all(|rule| !rule.contains("KUBE-NODEPORTS")), "{rules:?}");
        }
        if SHARED.contains(&chain.as_str()) {
            rules.sort();
        }
    }
    contents
}

/// What is there but for the chain that is the kubelet's as well: it stays when it is not needed
/// any more.
fn read(flavour: Flavour) -> Vec<Contents> {
    let read = |tables: &Tables| {
        let mut contents = contents(&tables.save());
        contents.remove(&("filter".to_owned(), "KUBE-FIREWALL".to_owned()));
        for rules in contents.values_mut() {
            rules.retain(|rule| rule != "-j KUBE-FIREWALL");
        }
        contents
    };
    Tables::both(flavour).iter().map(read).collect()
}

const FOREIGN: &str = "\
*filter
:THEIRS - [0:0]
-A INPUT -p icmp -j THEIRS
-A FORWARD -i docker0 -j ACCEPT
-A THEIRS -j RETURN
COMMIT
*nat
:KUBE-HOSTPORTS - [0:0]
-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE
-A KUBE-HOSTPORTS -p tcp -m tcp --dport 8080 -j RETURN
COMMIT
";

/// The lines of [`FOREIGN`] that are there, in order.
fn foreign(flavour: Flavour) -> Vec<String> {
    let text = Tables::v4(flavour).save();
    let words = ["THEIRS", "docker0", "172.17.0.0", "HOSTPORTS"];
    let of_theirs = |line: &&str| words.iter().any(|word| line.contains(word));
    text.lines().filter(of_theirs).map(str::to_owned).collect()
}

/// Everything that `render` says is there, in the same words.
fn assert_as_rendered(flavour: Flavour, state: &State) {
    let config = IptablesConfig { flavour: Some(flavour), ..IptablesConfig::default() };
    for (tables, family) in Tables::both(flavour).iter().zip(IpFamily::ALL) {
        let have = contents(&tables.save());
        for (chain, rules) in contents(&render(&config, state, family)) {
            assert_eq!(have.get(&chain), Some(&rules), "{chain:?}");
        }
    }
}

/// What happens.
struct Story {
    events: Vec<Event>,
    /// Node configurations, each by the event that it comes with.
    configs: BTreeMap<usize, NodeConfig>,
    /// Before these events, somebody takes rules away.
    meddled: BTreeSet<usize>,
}

/// Applies events one by one, with a sync after each.
fn replay(flavour: Flavour, tracker: &mut Tracker, story: &Story) {
    let Story { events, configs, meddled } = story;
    let mut incremental = proxier(flavour);
    for (i, event) in events.iter().enumerate() {
        tracker.apply(event.clone());
        if let Some(config) = configs.get(&i) {
            tracker.set_config(config.clone());
        }
        tracker.resolve();
        if meddled.contains(&i) && tracker.is_synced() && i > 0 {
            for tables in Tables::both(flavour) {
                tables.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n");
            }
            // A periodic comparison is what finds this.
            tracker.request_full();
        }
        sync(&mut incremental, tracker.state(), tracker.delta()).expect("a sync");
        tracker.mark_synced();
    }
    sync(&mut incremental, tracker.state(), tracker.delta()).expect("the last sync");
    tracker.mark_synced();
}

fn check(flavour: Flavour, config: NodeConfig, story: &Story) {
    test_netns::enter_new_namespace();
    Tables::v4(flavour).restore(FOREIGN);
    let theirs = foreign(flavour);
    assert_eq!(theirs.len(), 6 + 1, "{theirs:?}");
    let mut tracker = Tracker::new(config);
    replay(flavour, &mut tracker, story);

    // Somebody else finds nothing to do.
    let report = sync(&mut proxier(flavour), tracker.state(), &full()).expect("a take-over");
    assert_eq!((report.added, report.removed, report.bytes), (0, 0, 0), "nothing differs");
    assert_as_rendered(flavour, tracker.state());
    assert_eq!(foreign(flavour), theirs);
    let after = read(flavour);

    test_netns::enter_new_namespace();
    Tables::v4(flavour).restore(FOREIGN);
    sync(&mut proxier(flavour), tracker.state(), &full()).expect("a sync from nothing");
    assert_eq!(read(flavour), after);
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn legacy_tables_hold_what_a_sync_from_nothing_would_put_there(
        config in testing::arbitrary_config(),
        events in testing::arbitrary_events(24),
        configs in proptest::collection::btree_map(0usize..24, testing::arbitrary_config(), 0..4),
        meddled in proptest::collection::btree_set(0usize..24, 0..3),
    ) {
        let story = Story { events, configs, meddled };
        in_namespace(move || check(Flavour::Legacy, config, &story));
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn nft_tables_hold_what_a_sync_from_nothing_would_put_there(
        config in testing::arbitrary_config(),
        events in testing::arbitrary_events(20),
        configs in proptest::collection::btree_map(0usize..20, testing::arbitrary_config(), 0..4),
        meddled in proptest::collection::btree_set(0usize..20, 0..3),
    ) {
        let story = Story { events, configs, meddled };
        in_namespace(move || check(Flavour::Nft, config, &story));
    }
}
