//! Stories of a kernel with its troubles: what happens in them, and the judge of each sync.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    mem,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use proptest::{strategy::Strategy, test_runner::TestRunner};

use super::{local_addresses, packets_to, proptest_config, replayed_seed, service_fates};
use crate::{
    model::{
        IpFamily, LbAlgorithm,
        testing::{Fate, Packet},
    },
    runner::{EngineEvent, Observer},
    state::State,
};

/// The fortunes of a kernel and of the processes that program it, with faults of type `F`.
#[derive(Debug, Default)]
pub struct Happenings<F> {
    /// The number of the process that lives; what is left of others does nothing.
    pub process: usize,
    /// The faults to come, each with the number of commits before it.
    pub faults: Vec<(usize, F)>,
    /// The events that have happened, of those that sometimes should.
    pub seen: BTreeSet<&'static str>,
    /// Whether the process has ended by a fault.
    pub has_crashed: bool,
    /// Whether another program's change is still to be reported.
    pub is_unreported: bool,
    /// Whether the kernel may hold something else than was synced.
    pub is_damaged: bool,
    /// Whether any fault was met.
    pub has_met_faults: bool,
}

impl<F> Happenings<F> {
    /// Returns the fault that the present commit meets.
    pub fn next_fault(&mut self) -> Option<F> {
        let (left, _) = self.faults.first_mut()?;
        if let Some(less) = left.checked_sub(1) {
            *left = less;
            return None;
        }
        self.has_met_faults = true;
        Some(self.faults.remove(0).1)
    }

    /// Whether a sync may fail.
    pub fn explain_failure(&self) -> bool {
        self.has_crashed || self.has_met_faults || self.is_damaged
    }
}

/// The name of a change whose packets went to endpoints all the while.
pub const SERVED_ALL_THE_WHILE: &str = "packets of a change went to endpoints all the while";

/// A kernel in memory, to which things happen.
pub trait World: Send + 'static {
    /// A fault that a commit meets.
    type Fault: Send;
    /// The kernel's contents.
    type Tables;
    /// Whether rules of before may lead packets to any endpoint that a Service port has before or
    /// after: by another policy than the frontend's, until the rules are committed.
    const HAS_OTHER_WAYS: bool;
    /// Whether faults may leave something that the next sync reports as drift.
    const FAULTS_LEAVE_DRIFT: bool;

    /// The things that have happened.
    fn happenings(&mut self) -> &mut Happenings<Self::Fault>;

    /// Returns the states since the last call, the first one then, and begins again.
    fn take_history(&mut self) -> Vec<Self::Tables>;

    /// Returns all fates that a packet may have while the kernel goes through these states.
    fn fates(states: &[Self::Tables], packet: &Packet, local: &BTreeSet<IpAddr>) -> BTreeSet<Fate>;

    /// Returns the fate that a packet to no Service port is to have.
    fn elsewhere(state: &State, packet: &Packet, local: &BTreeSet<IpAddr>) -> Fate;

    /// Returns what a sync has changed, though it concerned nothing of the sync. The states are
    /// `None` if the kernel may have held something else.
    fn bystander(history: &[Self::Tables], states: Option<(&State, &State)>) -> Option<String>;

    /// Notes that a sync begins.
    fn note_started(&mut self) {}

    /// Notes that a state was synced, which may be of a part of a list. Returns what is wrong.
    fn note_synced(&mut self, _after: &State, _is_part: bool) -> Option<String> {
        None
    }
}

/// Locks what no panic leaves half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reports of an engine on its syncs.
#[derive(Debug, Default)]
pub struct Reports {
    /// The state that was synced last.
    pub synced: Option<State>,
    /// The number of syncs that began.
    pub started: usize,
    /// The things that were wrong.
    pub problems: Vec<String>,
    /// Whether the last sync programmed both families.
    is_whole: bool,
    /// Whether the last sync failed: the kernel may hold what no later state asks for.
    has_failed: bool,
}

/// The judge of the syncs of one process.
#[derive(Debug)]
pub struct Judge<W> {
    world: Arc<Mutex<W>>,
    reports: Mutex<Reports>,
    local: BTreeSet<IpAddr>,
}

impl<W: World> Judge<W> {
    /// The judge of a process that begins, on a node with the [`local_addresses`].
    pub fn new(world: &Arc<Mutex<W>>) -> Arc<Self> {
        let (world, local) = (world.clone(), local_addresses());
        Arc::new(Self { world, reports: Mutex::default(), local })
    }

    /// The reports so far. To be locked after the world.
    pub fn reports(&self) -> MutexGuard<'_, Reports> {
        lock(&self.reports)
    }

    /// Asserts that nothing was wrong.
    #[track_caller]
    pub fn assert_right(&self) {
        let reports = self.reports();
        assert!(reports.problems.is_empty(), "{}", reports.problems.join("\n"));
    }

    /// Follows packets to some of the frontends of two states, through the commits that lead from
    /// one to the other. Returns what is wrong, and whether packets of a change went to endpoints
    /// all the while.
    pub fn follow_packets(
        &self,
        history: &[W::Tables],
        before: Option<&State>,
        after: &State,
    ) -> Result<bool, String> {
        let mut packets = BTreeMap::new();
        for port in before.into_iter().chain([after]).flat_map(|state| state.service_ports.values())
        {
            for packet in packets_to(port) {
                let at = (packet.destination, packet.protocol);
                let (_, ports) = packets.entry(at).or_insert_with(|| (packet, Vec::new()));
                ports.push(port);
            }
        }
        let mut served_all_the_while = false;
        // Different ones each time.
        let step = packets.len() / 12 + 1;
        for (packet, ports) in packets.values().skip(history.len() % step).step_by(step) {
            let of = |states: &[W::Tables]| W::fates(states, packet, &self.local);
            let (was, is) = (of(&history[..1]), of(&history[history.len() - 1..]));
            let asked = service_fates(after, packet, &self.local, None)
                .unwrap_or_else(|| [W::elsewhere(after, packet, &self.local)].into());
            // The packet's hash decides for one of them.
            let is_hashed = ports.iter().any(|port| port.lb_algorithm != LbAlgorithm::Random);
            if is != asked && !(is_hashed && !is.is_empty() && is.is_subset(&asked)) {
                return Err(format!("{packet:?} has {is:?}, and {asked:?} is asked for"));
            }
            let mut known = &was | &is;
            let both_serve = known.iter().all(|fate| fate.endpoint().is_some());
            served_all_the_while |= both_serve && was != is;
            if W::HAS_OTHER_WAYS {
                known.extend(history.chunks(1).flat_map(of));
            }
            let mut endpoints: BTreeSet<_> = known.iter().filter_map(Fate::endpoint).collect();
            if W::HAS_OTHER_WAYS {
                let reachable = ports.iter().flat_map(|port| port.reachable());
                endpoints.extend(reachable.map(|endpoint| endpoint.address));
            }
            let is_known = |fate: &Fate| match fate.endpoint() {
                Some(endpoint) => endpoints.contains(&endpoint),
                None => !both_serve,
            };
            if let Some(fate) = of(history).into_iter().find(|fate| !is_known(fate)) {
                return Err(format!("{packet:?} has {fate:?}, before {was:?}, after {is:?}"));
            }
        }
        Ok(served_all_the_while)
    }
}

impl<W: World> Observer for Judge<W> {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let mut world = lock(&self.world);
        let mut reports = self.reports();
        match event {
            EngineEvent::SyncStarted(_) => {
                reports.started += 1;
                world.note_started();
            }
            EngineEvent::SyncFailed { error, .. } => {
                reports.has_failed = true;
                world.take_history();
                let happened = world.happenings();
                happened.seen.insert("a sync failed");
                if !happened.explain_failure() {
                    reports.problems.push(format!("a sync fails without a cause: {error:?}"));
                }
            }
            EngineEvent::LeftOut(_) => {
                world.happenings().seen.insert("a refusal left a Service port out");
            }
            EngineEvent::Synced(outcome) => {
                let after = outcome.change.after();
                reports.problems.extend(world.note_synced(after, outcome.is_part));
                let history = world.take_history();
                let happened = world.happenings();
                let drift = &outcome.report.drift;
                let may_drift = W::FAULTS_LEAVE_DRIFT && happened.has_met_faults;
                if drift.is_none() {
                } else if happened.is_damaged {
                    happened.seen.insert("another program's damage was reported as drift");
                } else if !may_drift {
                    reports.problems.push(format!("drift without damage: {drift:?}"));
                }
                let has_failed = mem::take(&mut reports.has_failed);
                let before = reports.synced.replace(after.clone());
                // A family may be left out for a while.
                let is_whole = IpFamily::ALL.iter().all(|family| outcome.change.programs(*family));
                let was_whole = mem::replace(&mut reports.is_whole, is_whole);
                let is_judged = !happened.is_damaged && is_whole && (was_whole || before.is_none());
                let before = before.as_ref().filter(|_| is_judged && !has_failed);
                if is_judged {
                    match self.follow_packets(&history, before, after) {
                        Ok(true) => _ = happened.seen.insert(SERVED_ALL_THE_WHILE),
                        Ok(false) => {}
                        Err(wrong) => reports.problems.push(wrong),
                    }
                }
                let states = before.map(|before| (before, after));
                reports.problems.extend(W::bystander(&history, states));
                if outcome.change.is_resync() && !happened.is_unreported {
                    happened.is_damaged = false;
                }
            }
            _ => {}
        }
    }
}

/// Lives through random stories, as many as `cases`: `live` returns what has happened in one.
///
/// # Panics
/// If a story fails, or something that should happen `sometimes` never did: otherwise the run would
/// test less than it seems to.
#[track_caller]
pub fn live_through<S: Strategy>(
    cases: u32,
    story: &S,
    sometimes: impl IntoIterator<Item = &'static str>,
    live: impl AsyncFn(S::Value) -> BTreeSet<&'static str>,
) where
    S::Value: Debug,
{
    let seen = Mutex::new(BTreeSet::new());
    let mut runner = TestRunner::new(proptest_config(cases));
    let result = runner.run(story, |value| {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        let mut happened = runtime.block_on(live(value));
        lock(&seen).append(&mut happened);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let seen = lock(&seen);
    let common = [
        "a refusal left a Service port out",
        "a sync failed",
        "another program's damage was reported as drift",
    ];
    let mut missed: Vec<_> = sometimes.into_iter().chain(common).collect();
    missed.retain(|what| !seen.contains(what));
    assert!(missed.is_empty() || replayed_seed().is_some(), "this never happened: {missed:?}");
}
