//! Sweeps of maps that change at a chosen moment: while a thread has read a map, and has removed
//! nothing yet.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::mpsc::{self, Receiver, Sender},
};

use switchyard_core::{
    config::NodeConfig,
    model::{PerFamily, ServicePortId},
    state::State,
    testing::{NODE, OwnedTransition, endpoint, service, slice, until},
    track::Tracker,
};
use switchyard_kernel::nftables::{
    CommitStats, Element, Elements, Field, OperationKind, Refusal, TableDump, Transaction,
};

use super::*;
use crate::{
    layout::NftConfig,
    proxier::{
        last_synced::LastSynced,
        plan::{Have, plan},
    },
};

/// Longer than any thread needs to come to a gate.
const PATIENCE: Duration = Duration::from_secs(60);

/// The maps of clients, by name: endpoints by client.
type Maps = BTreeMap<SetName, BTreeMap<Key, Value>>;

#[derive(Default)]
struct Kernel {
    maps: Maps,
    commits: usize,
    scans: usize,
    /// The number of scans that panic.
    panics: usize,
}

/// A transport to a kernel of clients alone. Each scan waits at the gate once it has read.
struct Fake {
    kernel: Arc<Mutex<Kernel>>,
    has_read: Sender<()>,
    gate: Arc<Mutex<Receiver<()>>>,
}

impl Transport for Fake {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        let mut kernel = locked(&self.kernel);
        kernel.commits += 1;
        let [operation] = transaction.operations() else { panic!("{transaction}") };
        let OperationKind::DeleteElements(set, keys) = &operation.kind else {
            panic!("{transaction}")
        };
        let clients = kernel.maps.get_mut(&set.name).expect("a map");
        let missing = keys.iter().filter(|key| !clients.contains_key(*key));
        let mut refused = missing.map(|key| Refusal {
            operation: 0,
            element: Some(Box::new(*key)),
            subject: operation.subject(),
            errno: Some(libc::ENOENT),
            reason: String::new(),
        });
        if let Some(first) = refused.next() {
            return Err(TransportError::Refused(first, refused.collect()));
        }
        keys.iter().for_each(|key| _ = clients.remove(key));
        Ok(CommitStats::default())
    }

    fn read(&mut self, _: &Table, _: Elements) -> Result<Option<TableDump>, TransportError> {
        unreachable!("a sweeper reads no tables")
    }

    fn scan_elements(
        &mut self,
        _: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        let mut kernel = locked(&self.kernel);
        kernel.scans += 1;
        if let Some(left) = kernel.panics.checked_sub(1) {
            kernel.panics = left;
            drop(kernel);
            panic!("made to fail by a test");
        }
        let clients = kernel.maps.get(&set.name).cloned();
        drop(kernel);
        let is_there = clients.is_some();
        let shown = clients
            .into_iter()
            .flatten()
            .map(|(key, at)| ElementDump { element: Element::value(key, at), expires: None });
        let _ = shown.into_iter().try_for_each(visit);
        // After the test, no one minds.
        let _ = self.has_read.send(());
        let _ = locked(&self.gate).recv_timeout(PATIENCE);
        Ok(is_there)
    }
}

/// A sweeper of a fake kernel.
struct Rig {
    sweeper: Sweeper,
    kernel: Arc<Mutex<Kernel>>,
    has_read: Receiver<()>,
    /// `None` once the gate stays open.
    gate: Option<Sender<()>>,
}

impl Rig {
    /// A kernel with clients, each at an endpoint, in one map.
    fn new(clients: &[(u16, u16)]) -> Self {
        let kernel = Arc::new(Mutex::new(Kernel::default()));
        let (has_read, reads) = mpsc::channel();
        let (open, gate) = mpsc::channel();
        let gate = Arc::new(Mutex::new(gate));
        let mut sweeper = Sweeper::new(TransportKind::Netlink);
        for _ in 0..2 {
            let (kernel, has_read, gate) = (kernel.clone(), has_read.clone(), gate.clone());
            sweeper.transports.push(Box::new(Fake { kernel, has_read, gate }));
        }
        let rig = Self { sweeper, kernel, has_read: reads, gate: Some(open) };
        rig.remember("map", clients);
        rig
    }

    fn remember(&self, map: &str, clients: &[(u16, u16)]) {
        let clients = clients.iter().map(|&(client, at)| (key(client), value(at)));
        locked(&self.kernel).maps.insert(map.into(), clients.collect());
    }

    fn clients(&self, map: &str) -> Vec<Key> {
        locked(&self.kernel).maps[map].keys().copied().collect()
    }

    /// Waits until a thread has read a map, which then waits at the gate.
    fn read(&self) {
        self.has_read.recv_timeout(PATIENCE).expect("a thread reads");
    }

    /// Lets the thread at the gate go on.
    fn pass(&self) {
        self.gate.as_ref().expect("a gate").send(()).expect("a thread waits");
    }

    fn open(&mut self) {
        self.gate = None;
    }

    /// Waits until no sweep is under way.
    fn settle(&self) {
        until("all maps are swept", || self.sweeper.shared.lock().jobs.is_empty());
    }
}

fn key(client: u16) -> Key {
    Key::new().address(Ipv4Addr::from(0x0a00_0000 + u32::from(client)).into())
}

fn value(at: u16) -> Value {
    Value::new().address(Ipv4Addr::from(0x0af4_0000 + u32::from(at)).into()).port(80)
}

/// A sweep of a map whose pool has these endpoints.
fn sweep(map: &str, endpoints: &[u16], is_due: bool) -> Vec<(Table, Sweep)> {
    let ip = Field::Ipv4Addr;
    let map = SetDef::map(map.to_owned(), [ip], [ip, Field::InetService]);
    let map = Arc::new(map.with_timeout(Duration::from_secs(60)));
    let endpoints = endpoints.iter().map(|at| value(*at)).collect();
    vec![(Table::new(Family::Ip, "kube-proxy"), Sweep { map, endpoints, is_due })]
}

fn job(map: &str, endpoints: &[u16]) -> (MapKey, Job) {
    let (table, Sweep { map, endpoints, .. }) = sweep(map, endpoints, true).remove(0);
    let endpoints = Arc::new(Endpoints::new(endpoints));
    let place = Place::Waiting(SMALL, Instant::now());
    let key = (table.family, map.name.clone());
    (key, Job { number: 0, table, map, endpoints, place, wait: AGAIN, is_read: false })
}

#[test]
fn clients_of_endpoints_that_came_back_stay() {
    let mut rig = Rig::new(&[(1, 1), (2, 2), (3, 3)]);
    rig.sweeper.sweep(sweep("map", &[1], true));
    rig.read();
    rig.sweeper.keep(&sweep("map", &[1, 2], false));
    rig.sweeper.sweep(sweep("map", &[1, 2], false));
    rig.open();
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1), key(2)]);
}

/// The endpoint is in no later pool, so that none loses it.
#[test]
fn endpoints_that_were_kept_for_a_failed_sync_are_not_kept_for_the_next() {
    let mut rig = Rig::new(&[(1, 1), (2, 2)]);
    rig.sweeper.sweep(sweep("map", &[1], true));
    rig.read();
    rig.sweeper.keep(&sweep("map", &[1, 2], false));
    rig.pass();
    rig.read();
    assert_eq!(rig.clients("map"), [key(1), key(2)]);
    rig.sweeper.sweep(sweep("map", &[1], false));
    rig.open();
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1)]);
}

#[test]
fn endpoints_that_were_kept_until_a_sweep_ended_are_not_kept_for_the_next() {
    let mut rig = Rig::new(&[(1, 1), (2, 2)]);
    rig.sweeper.sweep(sweep("map", &[1], true));
    rig.read();
    rig.sweeper.keep(&sweep("map", &[1, 2], false));
    rig.open();
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1), key(2)]);
    // Another sync fails, when nothing is under way.
    rig.sweeper.keep(&sweep("map", &[1, 2], false));
    rig.sweeper.sweep(sweep("map", &[1], false));
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1)]);
}

#[test]
fn the_newer_of_two_sweeps_of_a_map_wins() {
    let mut lanes = Lanes::default();
    let key = job("map", &[]).0;
    let job = || job("map", &[]).1;
    lanes.put(key.clone(), job());
    // A sweep that waits is replaced.
    lanes.put(key.clone(), job());
    let (_, first) = lanes.take(SMALL).expect("a job");
    assert!(lanes.take(SMALL).is_none());
    lanes.end(key.clone(), &first, SMALL, Some(Outcome::TooLarge));
    let (_, first) = lanes.take(LARGE).expect("the job");
    // One that runs is over before the next, whatever its outcome.
    lanes.put(key.clone(), job());
    assert!(lanes.take(SMALL).is_none() && lanes.take(LARGE).is_none());
    lanes.end(key.clone(), &first, LARGE, Some(Outcome::Done));
    let (_, second) = lanes.take(SMALL).expect("the newer job");
    assert!(second.number > first.number);
    // Another thread is at a new sweep when one that was called off ends.
    lanes.jobs.clear();
    lanes.put(key.clone(), job());
    let (_, third) = lanes.take(SMALL).expect("a job");
    lanes.end(key.clone(), &second, LARGE, Some(Outcome::Again));
    assert!(lanes.take(LARGE).is_none());
    lanes.end(key, &third, SMALL, Some(Outcome::Done));
    assert!(lanes.jobs.is_empty() && lanes.waiting.iter().all(BTreeSet::is_empty));
}

#[test]
fn nothing_is_removed_once_sweeps_are_called_off() {
    let mut rig = Rig::new(&[(1, 1)]);
    rig.remember("other", &[(2, 2)]);
    rig.sweeper.sweep(sweep("map", &[], true));
    rig.read();
    rig.sweeper.clear();
    rig.sweeper.sweep(sweep("other", &[], true));
    rig.open();
    // By the same thread.
    rig.settle();
    assert_eq!(rig.clients("other"), []);
    assert_eq!(rig.clients("map"), [key(1)]);
}

#[test]
fn clients_that_time_out_cost_one_more_commit() {
    let all: Vec<(u16, u16)> = (0..PORTION as u16).map(|client| (client, 1)).collect();
    let mut rig = Rig::new(&all);
    rig.sweeper.sweep(sweep("map", &[], true));
    rig.read();
    let odd: Vec<(u16, u16)> = all.into_iter().filter(|(client, _)| client % 2 == 1).collect();
    rig.remember("map", &odd);
    rig.open();
    rig.settle();
    assert_eq!(rig.clients("map"), []);
    assert_eq!(locked(&rig.kernel).commits, 2);
}

#[test]
fn a_map_that_is_gone_is_read_once() {
    let mut rig = Rig::new(&[]);
    rig.open();
    rig.sweeper.sweep(sweep("gone", &[1], true));
    rig.settle();
    assert_eq!(locked(&rig.kernel).scans, 1);
}

#[test]
fn what_could_not_be_started_is_started_by_the_next_sync() {
    let mut rig = Rig::new(&[(1, 1), (2, 2)]);
    rig.open();
    // What a sync leaves that finds no file descriptor.
    let (key_of_map, made) = job("map", &[1]);
    rig.sweeper.shared.lock().put(key_of_map, made);
    rig.sweeper.sweep(Vec::new());
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1)]);
}

#[test]
fn a_thread_outlives_a_panic() {
    let mut rig = Rig::new(&[(1, 1), (2, 2)]);
    rig.open();
    locked(&rig.kernel).panics = 1;
    rig.sweeper.sweep(sweep("map", &[1], true));
    rig.settle();
    assert_eq!(rig.clients("map"), [key(1)]);
}

/// A map of that name may just be swept, with the endpoints of the Service that had it.
#[test]
fn the_endpoints_of_new_pools_are_known() {
    let resolved = |events: &[&dyn Fn() -> switchyard_core::objects::Event]| -> State {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        events.iter().for_each(|event| assert_eq!(tracker.apply(event()), []));
        assert_eq!(tracker.resolve(), []);
        tracker.transition().after().clone()
    };
    let sticky = || {
        let made = service("sticky", "10.96.0.7").port("http", "TCP", 80);
        made.set("spec.sessionAffinity", "ClientIP").apply()
    };
    let its_slice = || {
        let ports = serde_json::json!([{"name": "http", "port": 80}]);
        slice("sticky", "a").set("ports", ports).endpoint(endpoint("10.244.0.1", "other")).apply()
    };
    let (without, with) = (resolved(&[]), resolved(&[&sticky, &its_slice]));
    let config = NftConfig::default();
    let known = |changes: &[Sweep]| {
        assert!(changes.iter().all(|sweep| !sweep.is_due), "{changes:?}");
        changes.iter().flat_map(|sweep| sweep.endpoints.iter().copied()).collect::<Vec<_>>()
    };
    let nothing =
        Have::Read { dumps: &PerFamily::default(), last: None, swept: PerFamily::default() };
    let (changes, _) = plan(&config, &with, nothing);
    assert_eq!(known(&changes.v4.sweeps), [value(1)]);
    let (_, update) = plan(&config, &without, nothing);
    let last = LastSynced::new(config.families, update);
    let ids: Vec<ServicePortId> = with.service_ports.keys().cloned().collect();
    let change = ids.into_iter().fold(OwnedTransition::to(with), |to, id| to.port(id, None));
    let change = change.get();
    let before = change.before().expect("a state before");
    let have = Have::Synced { last: &last, before, change };
    let (changes, _) = plan(&config, change.after(), have);
    assert_eq!(known(&changes.v4.sweeps), [value(1)]);
}
