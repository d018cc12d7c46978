//! The sync runner: turns a stream of inputs into syncs of a backend.
//!
//! Nothing is synced before the tracker knows what a first sync needs ([`Tracker::waits_for`]).
//! After that, a change that comes while the runner is idle is synced at once, together with all
//! other changes that have arrived by then. After a sync, the next one waits as [`Pace`] says, and
//! covers all changes that came in the meantime. A sync that failed is repeated with a growing
//! delay, compares everything, and loses nothing: a [`Transition`](crate::transition::Transition)
//! covers everything since the last success. A backend may ask to be synced again after a while
//! ([`SyncReport::requeue_after`](crate::proxier::SyncReport::requeue_after)). A panic of a backend
//! ends the runner, because what the backend had done by then is unknown.
//!
//! A list that is longer than the backend takes at once ([`Profile::most_listed`]) is applied and
//! synced in parts, one after the other without a pause. What else arrives is synced in between.
//!
//! An [`Engine`](crate::engine::Engine) runs a runner on its own thread.

mod conflicting;
mod input;
mod lists;
mod node_wait;
mod observer;
mod query;
mod resyncs;
mod retries;
mod timing;

use std::{future::Future, mem, net::IpAddr, pin::pin, sync::Arc, time::Duration};

use tokio::{sync::mpsc::Receiver, task::yield_now, time::Instant};

use self::{
    conflicting::Conflicting,
    lists::Lists,
    node_wait::NodeWait,
    resyncs::{Reason, Resyncs},
    retries::Retries,
    timing::{after, wait_until},
};
pub use self::{
    input::Input,
    node_wait::{NodeCheck, NodePatience},
    observer::{EngineEvent, Observer, SyncOutcome},
    query::{Audit, Query},
    timing::{Pace, RunnerConfig},
};
use crate::{
    model::{IpFamily, LbAlgorithm, ServiceName},
    objects::{Event, Kind, Object},
    proxier::{Backend, Drift, Mode, Profile, Proxier, ProxierError},
    track::{Missing, Problem, Tracker},
};

/// The time that the attempts of a sync may take of which something is refused. A further one
/// counts as a retry.
const ATTEMPTS_FOR: Duration = Duration::from_secs(5);

/// The time that a sync may take to find which of the Service ports that are tried again are
/// refused. Those that are left wait for the next one.
const TRIES_FOR: Duration = Duration::from_secs(1);

/// The time that a comparison for a question may take, in which nothing is synced, and the time
/// without further ones after one that took longer.
const LONGEST_AUDIT: Duration = Duration::from_secs(1);
const AUDIT_PAUSE: Duration = Duration::from_secs(300);

/// The most inputs that are applied before a sync is considered, if the channel holds as many.
const BATCH: usize = 4096;

/// See the [module's documentation](self).
pub struct Runner {
    tracker: Tracker,
    proxier: Box<dyn Proxier>,
    mode: Mode,
    /// The most objects of a list that are applied before a sync.
    most_listed: usize,
    config: RunnerConfig,
    observer: Arc<dyn Observer>,
    node_wait: NodeWait,
    lists: Lists,
    /// The time that the syncs of parts have taken.
    parts_took: Duration,
    /// Questions that arrived, or wait for the end of the lists.
    queries: Vec<Query>,
    /// Questions about the kernel that arrived.
    audits: Vec<Audit>,
    /// No comparison for such a question before this.
    no_audit_before: Instant,
    /// The objects that the first sync waits for, as it was reported.
    waits_for: Option<Missing>,
    /// The time at which the oldest input arrived that is not resolved.
    unresolved: Option<Instant>,
    /// The time at which the oldest change that is not synced arrived.
    oldest_change: Option<Instant>,
    /// No sync of changes before this.
    not_before: Instant,
    /// No sync without changes before this.
    not_without_changes_before: Instant,
    retries: Retries,
    last_resync: Option<Instant>,
    last_checkup: Option<Instant>,
    /// The time without a resync after which everything is compared although each change by another
    /// program is reported; `None` if they are not.
    watched_period: Option<Duration>,
    /// The time when the backend asked to be synced again.
    revisit: Option<Instant>,
    /// Resyncs that disturbances ask for.
    resyncs: Resyncs,
    conflicting: Conflicting,
    node_eligible: Option<bool>,
    /// The node's default algorithm that cannot be programmed, and its substitute, as they were
    /// reported.
    replaced_default: Option<(LbAlgorithm, LbAlgorithm)>,
}

impl Runner {
    /// Creates a runner that syncs `proxier` with what `tracker` resolves.
    pub fn new(
        tracker: Tracker,
        proxier: Box<dyn Proxier>,
        config: RunnerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let mut tracker = tracker;
        let Profile { mode, capabilities, most_listed, .. } = proxier.profile();
        tracker.set_capabilities(capabilities, mode);
        Self {
            tracker,
            proxier,
            mode,
            most_listed: most_listed.max(1),
            config,
            observer,
            node_wait: NodeWait::default(),
            lists: Lists::default(),
            parts_took: Duration::ZERO,
            queries: Vec::new(),
            audits: Vec::new(),
            no_audit_before: Instant::now(),
            waits_for: None,
            unresolved: None,
            oldest_change: None,
            not_before: Instant::now(),
            not_without_changes_before: Instant::now(),
            retries: Retries::default(),
            last_resync: None,
            last_checkup: None,
            watched_period: None,
            revisit: None,
            resyncs: Resyncs::default(),
            conflicting: Conflicting::default(),
            node_eligible: None,
            replaced_default: None,
        }
    }

    /// Has the runner wait for facts of the Node before the first sync, if the configuration takes
    /// anything from the Node. Without patience, which is the default, the Nodes have to be listed,
    /// and the Node may lack anything. The check decides whether there are syncs from then on.
    pub fn waiting_for_node(
        mut self,
        patience: Option<NodePatience>,
        check: Option<NodeCheck>,
    ) -> Self {
        self.node_wait = NodeWait::new(patience, check, &mut self.tracker);
        self
    }

    /// Has the runner make periodic resyncs only once a day, not at the same time on all nodes, if
    /// each change by another program is an input: nothing reports an error of a backend's memory.
    pub fn watched(self, is_watched: bool) -> Self {
        Self { watched_period: is_watched.then(timing::about_a_day), ..self }
    }

    /// Has the runner remove what these backends left behind once its own serves.
    pub fn replacing(mut self, conflicting: Vec<Arc<dyn Backend>>) -> Self {
        self.conflicting = Conflicting::new(conflicting);
        self
    }

    /// Sets the addresses of the node's interfaces before the runner starts.
    pub(crate) fn set_interface_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.tracker.set_interface_addresses(addresses);
    }

    /// Ends a runner that does not run.
    pub(crate) fn into_proxier(self) -> Box<dyn Proxier> {
        self.proxier
    }

    /// Runs until `stop` resolves or `inputs` ends, and returns the backend. Inputs that are not
    /// synced by then are dropped; the kernel is left as it is.
    pub async fn run(
        mut self,
        mut inputs: Receiver<Input>,
        stop: impl Future<Output = ()>,
    ) -> Box<dyn Proxier> {
        let mut stop = pin!(stop);
        let mut batch = Vec::new();
        let mut is_turn_of_lists = false;
        // The tracker may know a cluster already.
        self.look_for_changes(Instant::now());
        loop {
            self.work().await;
            // Inputs come before a part of a list, and a part before further inputs.
            let waits_for_lists = is_turn_of_lists && self.continues_list();
            tokio::select! {
                biased;
                () = &mut stop => break,
                received = inputs.recv_many(&mut batch, BATCH), if !waits_for_lists => {
                    if received == 0 {
                        break;
                    }
                    self.apply(batch.drain(..));
                    is_turn_of_lists = true;
                }
                // The engine's other tasks have their turns, too.
                () = yield_now(), if self.is_busy() => {
                    self.apply_part();
                    is_turn_of_lists = false;
                }
                () = wait_until(self.due()) => {}
            }
        }
        self.proxier
    }

    /// Does what is due.
    async fn work(&mut self) {
        let due = [self.node_wait.due(), self.step_due(), self.gathered_until()];
        let due = due.into_iter().flatten().min();
        if due.is_some_and(|due| due <= Instant::now()) {
            self.look_for_changes(Instant::now());
        }
        if let Some(reason) = self.resyncs.take_due(Instant::now()) {
            match reason {
                Reason::Changed => {
                    self.tracker.request_repair();
                    self.tracker.hasten_families(Instant::now().into_std());
                    self.report(EngineEvent::ResyncRequested);
                }
                Reason::Suspected => self.tracker.request_resync(),
            }
            self.look_for_changes(Instant::now());
        }
        if self.sync_due().is_some_and(|due| due <= Instant::now()) {
            self.sync().await;
        }
        self.conflicting.remove(Instant::now(), self.mode, &*self.observer);
        for Audit { service, answer } in mem::take(&mut self.audits) {
            answer(self.audit(&service));
        }
    }

    /// Compares what the kernel holds of a Service. What differs is repaired soon.
    fn audit(&mut self, service: &ServiceName) -> Result<Option<Drift>, ProxierError> {
        let (synced, begun) = (self.tracker.transition(), Instant::now());
        if synced.before().is_none() || !synced.is_empty() || begun < self.no_audit_before {
            return Ok(None);
        }
        let found = self.proxier.compare(synced.after(), service);
        if begun.elapsed() > LONGEST_AUDIT {
            self.no_audit_before = after(Instant::now(), AUDIT_PAUSE);
        }
        if let Ok(Some(drift)) = &found
            && drift.objects > 0
        {
            self.tracker.request_resync();
            self.look_for_changes(Instant::now());
        }
        found
    }

    fn apply(&mut self, batch: impl Iterator<Item = Input>) {
        let arrived = Instant::now();
        let mut may_help = false;
        self.apply_changes(arrived, |runner| {
            for input in batch {
                may_help |= matches!(input, Input::Node(_) | Input::Timing(_) | Input::Compare);
                match input {
                    Input::Event(event) => {
                        runner.report(EngineEvent::Received(&event));
                        runner.divide(event, arrived);
                    }
                    Input::InterfaceAddresses(addresses) => {
                        runner.tracker.set_interface_addresses(addresses);
                    }
                    Input::Node(config) => runner.tracker.set_config(config),
                    Input::Timing(config) => runner.set_timing(config, arrived),
                    Input::ExternallyChanged(change) => {
                        runner.report(EngineEvent::ExternallyChanged(&change));
                        runner.resyncs.plan(&change, &runner.config, arrived);
                    }
                    Input::Compare => runner.tracker.request_resync(),
                    Input::Query(query) => runner.queries.push(query),
                    Input::Audit(audit) => runner.audits.push(audit),
                }
            }
        });
        if may_help {
            self.retries.hasten(arrived);
            self.tracker.hasten_families(arrived.into_std());
        }
    }

    /// Changes what the tracker knows, and looks at what that changes in the state.
    fn apply_changes(&mut self, arrived: Instant, apply: impl FnOnce(&mut Self)) {
        apply(self);
        if self.tracker.is_touched() {
            self.unresolved.get_or_insert(arrived);
        }
        let eligible = self.tracker.is_node_eligible();
        if self.node_eligible != Some(eligible) {
            self.node_eligible = Some(eligible);
            self.report(EngineEvent::NodeEligible(eligible));
        }
        self.look_for_changes(arrived);
        let has_lists = !self.lists.is_empty();
        // Observers learn by a sync that a list is done.
        if !has_lists && !self.parts_took.is_zero() {
            self.oldest_change.get_or_insert(arrived);
        }
        let due = self.queries.extract_if(.., |query| !(has_lists && query.is_after_lists));
        due.for_each(|query| query.answer(&self.tracker));
    }

    fn apply_event(&mut self, event: Event) {
        let is_node = is_of_node(&event);
        let problems = self.tracker.apply(event);
        self.report_problems(&problems);
        if is_node {
            self.node_wait.report(&self.tracker, &*self.observer);
        }
    }

    /// Sets the timing. A sync that waits already does not wait longer than the new timing allows.
    fn set_timing(&mut self, config: RunnerConfig, now: Instant) {
        self.config = config;
        let longest = after(now, config.pace.longest());
        self.not_before = self.not_before.min(longest);
        self.not_without_changes_before = self.not_without_changes_before.min(longest);
        self.retries.limit(now, config.longest_retry);
    }

    /// Whether a sync may be made: everything is known that the first one needs.
    fn is_ready(&self) -> bool {
        self.waits_for.is_none() && !self.node_wait.is_refused()
    }

    /// Resolves what came in at `arrived`, unless that can wait until a sync may be made.
    fn look_for_changes(&mut self, arrived: Instant) {
        // Not by the time at which a list arrived: time does not run backwards.
        self.tracker.advance(Instant::now().into_std());
        self.node_wait.update(&mut self.tracker, &*self.observer, arrived);
        let missing = self.tracker.waits_for();
        if self.waits_for != missing {
            self.waits_for = missing;
            if let Some(missing) = missing {
                self.report(EngineEvent::WaitingFor(missing));
            }
        }
        let replaced = self.tracker.replaced_default_algorithm();
        if self.replaced_default != replaced {
            self.replaced_default = replaced;
            if let Some((asked, used)) = replaced {
                let mode = self.mode;
                self.report(EngineEvent::DefaultAlgorithmReplaced { mode, asked, used });
            }
        }
        if !self.is_ready() {
            self.unresolved = None;
            return;
        }
        // A large Service that changes all the time is resolved once for each sync.
        let waits = self.gathered_until().is_some_and(|until| Instant::now() < until)
            && self.lists.is_empty()
            && self.queries.is_empty();
        let mut arrived = arrived;
        if !waits {
            let first = self.unresolved.take();
            let changes = self.tracker.changes();
            let problems = self.tracker.resolve();
            self.report_problems(&problems);
            // An input that changes nothing is not the remedy of a failure.
            if first.is_some() && self.tracker.changes() != changes {
                self.retries.hasten(Instant::now());
            }
            arrived = first.unwrap_or(arrived);
        }
        if !self.tracker.transition().is_empty() {
            self.oldest_change.get_or_insert(arrived);
            self.report(EngineEvent::SyncRequested);
        }
    }

    /// The time until which inputs are gathered, if there are any.
    fn gathered_until(&self) -> Option<Instant> {
        self.unresolved.map(|_| self.not_before)
    }

    /// The time when the runner has to act next without an input.
    fn due(&self) -> Option<Instant> {
        let others = [
            self.node_wait.due(),
            self.step_due(),
            self.gathered_until(),
            self.resyncs.due(),
            self.conflicting.due(),
        ];
        self.sync_due().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// The time when the share of a new endpoint grows.
    fn step_due(&self) -> Option<Instant> {
        self.tracker.next_step().map(Instant::from_std)
    }

    /// The time at which the next sync is due; `None` before there is anything to program.
    fn sync_due(&self) -> Option<Instant> {
        if !self.is_ready() {
            return None;
        }
        // The period may be over, but that must not make the runner fail faster.
        if let Some(retry) = self.retries.due() {
            return Some(retry.max(self.not_before));
        }
        match self.oldest_change {
            Some(_) => Some(self.not_before),
            None => {
                let due = [self.periodic_resync(), self.checkup(), self.revisit];
                Some(due.into_iter().flatten().min()?.max(self.not_without_changes_before))
            }
        }
    }

    /// The time of the next resync without a reason. (The first sync is one in any case.)
    fn periodic_resync(&self) -> Option<Instant> {
        let period = self.config.full_period;
        Some(after(self.last_resync?, self.watched_period.map_or(period, |day| day.max(period))))
    }

    /// The time of the next look at what is not watched.
    fn checkup(&self) -> Option<Instant> {
        let last =
            self.last_checkup.max(self.last_resync).filter(|_| self.watched_period.is_some());
        Some(after(last?, self.config.full_period))
    }

    async fn sync(&mut self) {
        let start = Instant::now();
        if self.periodic_resync().is_some_and(|due| start >= due) {
            self.tracker.request_resync();
        }
        if self.checkup().is_some_and(|due| start >= due) {
            self.last_checkup = Some(start);
            self.tracker.request_checkup();
        }
        let compares = self.tracker.transition().is_resync();
        let has_changes = !self.tracker.transition().is_empty();
        self.report(EngineEvent::SyncStarted(self.tracker.transition()));
        let tries = self.tracker.tries_refused();
        let (mut is_less, mut is_refused) = (false, false);
        let result = loop {
            let error = match self.proxier.sync(&self.tracker.transition()).await {
                Ok(report) => break Ok(report),
                Err(error) => error,
            };
            // What is refused is left out, so that all else is programmed at once.
            let withheld = self.tracker.withhold(&error, Instant::now().into_std());
            let Some(problems) = withheld else { break Err(error) };
            if compares {
                // A backend that takes what its monitor reported may have repaired none of it.
                self.tracker.request_resync();
            }
            self.report_problems(&problems);
            is_refused = true;
            if start.elapsed() >= TRIES_FOR {
                let now = Instant::now().into_std();
                IpFamily::ALL.iter().for_each(|family| self.tracker.put_off_tried(*family, now));
            }
            if start.elapsed() >= ATTEMPTS_FOR {
                is_less = true;
                break Err(error);
            }
            self.report(EngineEvent::LeftOut(&error));
        };
        let now = Instant::now();
        let duration = now - start;
        if is_refused {
            self.tracker.tried_for(start.into_std(), now.into_std(), tries);
        }
        let change = self.tracker.transition();
        let is_part = !self.lists.is_empty();
        let ends_list = !is_part && !self.parts_took.is_zero();
        // A list is as one sync, however many parts it has.
        let wait = if is_part && result.is_ok() {
            self.parts_took += duration;
            Duration::ZERO
        } else {
            self.config.pace.wait_after(mem::take(&mut self.parts_took) + duration)
        };
        self.not_without_changes_before = after(now, wait);
        if has_changes || ends_list || result.is_err() {
            self.not_before = self.not_without_changes_before;
        }
        if compares {
            self.resyncs.finished(now, duration);
        }
        match result {
            Ok(mut report) => {
                let by_backend = report.degraded.len();
                report.degraded.extend(self.tracker.degraded());
                self.retries.succeeded();
                self.revisit = report.requeue_after.map(|wait| after(now, wait));
                if change.is_full() {
                    self.last_resync = Some(start);
                }
                let latency = self.oldest_change.take().map(|arrived| arrived.elapsed());
                self.report(EngineEvent::Synced(SyncOutcome {
                    change,
                    report: &report,
                    degraded_by_backend: &report.degraded[..by_backend],
                    duration,
                    latency,
                    trigger_times: self.tracker.trigger_times(),
                    no_local_endpoints: self.tracker.no_local_endpoints(),
                    unsupported: self.tracker.unsupported(),
                    refused: self.tracker.refused(),
                    is_part,
                }));
                let all = IpFamily::ALL.iter().all(|family| change.programs(*family));
                self.conflicting.serve(now, all);
                self.tracker.mark_synced();
            }
            Err(error) => {
                self.report(EngineEvent::SyncFailed { error: &error, change, duration });
                self.tracker.sync_failed(Instant::now().into_std());
                // The next sync goes on with what this one has left to program.
                if is_less {
                    self.retries.succeeded();
                }
                self.retries.failed(Instant::now(), self.config.longest_retry);
            }
        }
    }

    fn report_problems(&self, problems: &[Problem]) {
        for problem in problems {
            self.report(EngineEvent::Rejected(problem));
        }
    }

    fn report(&self, event: EngineEvent<'_>) {
        self.observer.on_event(&event);
    }
}

fn is_of_node(event: &Event) -> bool {
    match event {
        Event::Apply(object) => matches!(object, Object::Node(_)),
        Event::Delete(key) | Event::Malformed { object: key, .. } => key.kind == Kind::Node,
        Event::Listed(kind) | Event::Replace { kind, .. } => *kind == Kind::Node,
    }
}
