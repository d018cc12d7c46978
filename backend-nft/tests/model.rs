//! Random sequences of changes, synced into a real kernel one after the other, leave there what a
//! sync from nothing puts there; and what is there can be taken over without changing it.
//!
//! Each test works in network namespaces of its own thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use backend_nft::{
    NftConfig, NftProxier,
    ruleset::{
        ChainDump, ChainName, Element, ElementData, Family, Field, SetDump, SetName, TableDump,
        Transaction,
    },
    transport::{CommitStats, Transport, TransportError, TransportKind},
};
use proptest::prelude::*;
use proxy_core::{
    config::NodeConfig,
    objects::Event,
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
    testing,
    track::Tracker,
};

/// Runs `work` in a thread that may make network namespaces.
fn in_thread(work: impl FnOnce() + Send + 'static) {
    if let Err(panic) = thread::spawn(work).join() {
        std::panic::resume_unwind(panic);
    }
}

/// A transport into a new network namespace, where this thread is from now on.
fn new_namespace() -> Box<dyn Transport> {
    test_netns::enter_new_namespace();
    open()
}

/// Another transport into this thread's namespace.
fn open() -> Box<dyn Transport> {
    TransportKind::Netlink.open().expect("netlink is there")
}

fn sync(
    proxier: &mut NftProxier,
    state: &State,
    delta: &Delta,
) -> Result<SyncReport, ProxierError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let result = runtime.block_on(proxier.sync(state, delta));
    // Nobody else is there.
    if let Ok(report) = &result {
        assert!(report.drift.is_none(), "{:?}", report.drift);
    }
    result
}

fn full() -> Delta {
    Delta { full: true, ..Delta::default() }
}

fn proxier(transport: Box<dyn Transport>) -> NftProxier {
    NftProxier::new(NftConfig::default(), transport)
}

fn read(transport: &mut dyn Transport, family: Family) -> TableDump {
    let no_elements = transport.read(family, &[]).expect("readable").expect("a table");
    let names: Vec<SetName> = no_elements.sets.into_keys().collect();
    transport.read(family, &names).expect("readable").expect("a table")
}

/// Reads both tables, in a form that two kernels can be compared by: without handles, chains that
/// nothing needs any more, what clients left in sets, and the order of endpoints in slots.
fn contents(transport: &mut dyn Transport) -> Vec<Contents> {
    Family::ALL.map(|family| Contents::of(read(transport, family))).into()
}

#[derive(Debug, PartialEq)]
struct Contents {
    chains: BTreeMap<ChainName, (String, Vec<Option<u64>>)>,
    sets: BTreeMap<SetName, String>,
    elements: BTreeMap<SetName, BTreeSet<String>>,
    /// By map and by key without the slot: the endpoints, sorted.
    pools: BTreeMap<(SetName, String), Vec<String>>,
}

impl Contents {
    fn of(table: TableDump) -> Self {
        let mut contents = Self {
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
            elements: BTreeMap::new(),
            pools: BTreeMap::new(),
        };
        for (name, chain) in table.chains {
            if !is_left_over(&name, &chain) {
                let rules = chain.rules.iter().map(|rule| rule.fingerprint).collect();
                contents.chains.insert(name, (format!("{:?}", chain.base), rules));
            }
        }
        for (name, set) in table.sets {
            let definition = set.definition.as_ref().expect("one of ours");
            contents.sets.insert(name.clone(), format!("{definition:?}"));
            contents.add_elements(&name, set);
        }
        contents
    }

    fn add_elements(&mut self, name: &SetName, set: SetDump) {
        let has_slots = set.definition.as_ref().is_ok_and(|d| d.key.contains(&Field::Slot));
        let mut slots: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for dump in set.elements.into_iter().flatten() {
            if dump.expires.is_some() {
                continue;
            }
            let Element { key, data, comment } = dump.element;
            if !has_slots {
                let text = format!("{key:?} {data:?} {comment:?}");
                self.elements.entry(name.clone()).or_default().insert(text);
                continue;
            }
            let (pool, slot) = key.as_slice().split_last_chunk::<4>().expect("a slot");
            let pool = format!("{pool:?}");
            slots.entry(pool.clone()).or_default().insert(u32::from_ne_bytes(*slot));
            let ElementData::Value(endpoint) = data else { panic!("an endpoint") };
            self.pools.entry((name.clone(), pool)).or_default().push(format!("{endpoint:?}"));
        }
        for (pool, slots) in slots {
            let count = u32::try_from(slots.len()).expect("few");
            assert_eq!(slots, (0..count).collect(), "slots of {name} {pool} have no gaps");
        }
        self.pools.values_mut().for_each(|endpoints| endpoints.sort());
    }
}

/// Chains without rules wait for their deletion; shared ones stay.
fn is_left_over(name: &ChainName, chain: &ChainDump) -> bool {
    chain.rules.is_empty() && name.as_str().contains('/') || is_shared(name)
}

fn is_shared(name: &ChainName) -> bool {
    let slots = name.as_str().rsplit_once("lb/").map(|(_, slots)| slots);
    slots.is_some_and(|slots| slots.bytes().all(|b| b.is_ascii_digit() || b == b'/'))
}

/// Every shared chain that the second kernel needs has the same rules in the first.
fn assert_shared_chains(incremental: &mut dyn Transport, afresh: &mut dyn Transport) {
    for family in Family::ALL {
        let (have, need) = (read(incremental, family), read(afresh, family));
        for (name, chain) in need.chains.iter().filter(|(name, _)| is_shared(name)) {
            let rules = |chain: &ChainDump| -> Vec<Option<u64>> {
                chain.rules.iter().map(|rule| rule.fingerprint).collect()
            };
            assert_eq!(have.chains.get(name).map(rules), Some(rules(chain)), "{name}");
        }
    }
}

/// Fails when told to, as a kernel does that somebody else is changing.
struct Unreliable {
    inner: Box<dyn Transport>,
    fails: Arc<AtomicBool>,
}

impl Transport for Unreliable {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        match self.fails.swap(false, Ordering::Relaxed) {
            true => Err(TransportError::Malformed("told to fail".to_owned())),
            false => self.inner.commit(transaction),
        }
    }

    fn read(
        &mut self,
        family: Family,
        elements_of: &[SetName],
    ) -> Result<Option<TableDump>, TransportError> {
        self.inner.read(family, elements_of)
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

/// Node configurations, each by the event that it comes with.
type Configs = BTreeMap<usize, NodeConfig>;

/// Applies events one by one, with a sync after each; those in `failing` fail at first.
fn replay(
    proxier: &mut NftProxier,
    tracker: &mut Tracker,
    (events, configs): (&[Event], &Configs),
    fails: &AtomicBool,
    failing: &BTreeSet<usize>,
) {
    for (i, event) in events.iter().enumerate() {
        tracker.apply(event.clone());
        if let Some(config) = configs.get(&i) {
            tracker.set_config(config.clone());
        }
        tracker.resolve();
        if failing.contains(&i) {
            fails.store(true, Ordering::Relaxed);
        }
        match sync(proxier, tracker.state(), tracker.delta()) {
            Ok(_) => {
                tracker.mark_synced();
            }
            Err(_) => tracker.request_full(),
        }
    }
    fails.store(false, Ordering::Relaxed);
    sync(proxier, tracker.state(), tracker.delta()).expect("the last sync succeeds");
    tracker.mark_synced();
}

fn check(config: NodeConfig, configs: Configs, events: Vec<Event>, failing: BTreeSet<usize>) {
    let fails = Arc::new(AtomicBool::new(false));
    let unreliable = Unreliable { inner: new_namespace(), fails: fails.clone() };
    let mut incremental = proxier(Box::new(unreliable));
    let mut observer = open();
    let mut tracker = Tracker::new(config);
    replay(&mut incremental, &mut tracker, (&events, &configs), &fails, &failing);

    // A transport stays in the namespace where it was opened.
    let mut successor = proxier(open());
    let mut other = new_namespace();
    sync(&mut proxier(open()), tracker.state(), &full()).expect("a sync from nothing");
    assert_eq!(contents(observer.as_mut()), contents(other.as_mut()));
    assert_shared_chains(observer.as_mut(), other.as_mut());

    // Somebody else, in the first namespace, finds little to do, and then nothing.
    let report = sync(&mut successor, tracker.state(), &full()).expect("a take-over");
    assert_eq!(report.added, 0, "a take-over adds nothing");
    let again = sync(&mut successor, tracker.state(), &full()).expect("a comparison");
    assert_eq!((again.added, again.removed, again.bytes), (0, 0, 0), "nothing differs any more");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_holds_what_a_sync_from_nothing_would_put_there(
        config in testing::arbitrary_config(),
        events in testing::arbitrary_events(40),
        configs in proptest::collection::btree_map(0usize..40, testing::arbitrary_config(), 0..6),
        failing in proptest::collection::btree_set(0usize..40, 0..6),
    ) {
        in_thread(move || check(config, configs, events, failing));
    }
}

#[test]
fn chains_that_cannot_be_removed_are_told_and_no_failure() {
    in_thread(|| {
        let fails = Arc::new(AtomicBool::new(false));
        let unreliable = Unreliable { inner: new_namespace(), fails: fails.clone() };
        let mut proxier = proxier(Box::new(unreliable));
        let mut tracker = Tracker::new(NodeConfig::new(testing::NODE));
        let mut sync_after = |event: Option<Event>| {
            event.into_iter().for_each(|event| drop(tracker.apply(event)));
            tracker.resolve();
            let report = sync(&mut proxier, tracker.state(), tracker.delta()).expect("a sync");
            tracker.mark_synced();
            report.cleanup_failed
        };
        // Affinity gives a Service port chains of its own.
        let service = testing::service("a", "10.0.0.1")
            .port("", "TCP", 80)
            .set("spec.sessionAffinity", "ClientIP");
        let slice = testing::slice("a", "1")
            .port("", "TCP", 8080)
            .endpoint(testing::endpoint("10.1.0.1", testing::NODE));
        assert!(!sync_after(Some(slice.apply())));
        assert!(!sync_after(Some(service.apply())));
        assert!(!sync_after(Some(service.delete())), "too early");
        thread::sleep(Duration::from_millis(1100));
        fails.store(true, Ordering::Relaxed);
        assert!(sync_after(None));
        thread::sleep(Duration::from_millis(1100));
        assert!(!sync_after(None), "the second time they can");
    });
}
