//! Jobs that wait for the worker, one for each listener: a newer job replaces an older one.

use std::{
    array,
    collections::{BTreeMap, HashSet, hash_map::Entry},
    mem,
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use switchyard_core::{
    model::{Backoff, IpFamily, PerFamily, ServicePortId},
    state::{NodePortAddresses, ResolvedServicePort},
};

use crate::conntrack::{
    Group,
    job::{Jobs, Listener, Stale},
};

/// The delays of retries.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(30) };

/// The number of waiting jobs at which jobs for removed listeners are dropped: they would pile up
/// while the kernel refuses. Jobs for present listeners are at most as many as the state has
/// listeners.
const MOST_WAITING: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

/// The state that the worker and the callers share.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    lanes: [Lane; Group::COUNT],
    /// The addresses on which node ports are served.
    pub(crate) node_ports: PerFamily<NodePortAddresses>,
    /// Whether the kernel may not have held what was synced last.
    is_doubtful: PerFamily<bool>,
    /// The Service ports of families that are left out, as the kernel has them, which have changed
    /// since.
    left_out: BTreeMap<ServicePortId, Arc<ResolvedServicePort>>,
    /// Whether changes of families that are left out were dropped, which is logged once.
    is_full: bool,
    is_stopped: bool,
}

/// One group's part of the queue.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    jobs: Jobs,
    /// The listeners of all Service ports.
    listeners: HashSet<Listener>,
    /// Whether the worker is doing jobs of this group.
    is_running: bool,
    failures: u32,
    retry_at: Option<Instant>,
    /// The listeners of those jobs that wait because the kernel keeps their flows for now, until
    /// when, and for how many times in a row.
    put_off: HashSet<Listener>,
    put_off_until: Option<Instant>,
    times_put_off: u32,
    /// Whether jobs were dropped, which is logged once.
    is_full: bool,
}

/// Jobs by group, taken by the worker.
pub(crate) type Batch = [Jobs; Group::COUNT];

impl Queue {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Makes [`Queue::take`] end.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.wake();
    }

    /// Waits for jobs that are due, and returns them; `None` once the queue is stopped.
    pub(crate) fn take(&self) -> Option<Batch> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_stopped {
                return None;
            }
            let now = Instant::now();
            waiting = match waiting.lanes.iter().filter_map(|lane| lane.due(now)).min() {
                Some(at) if at <= now => {
                    return Some(array::from_fn(|i| waiting.lanes[i].take(now)));
                }
                Some(at) => {
                    let result =
                        self.changed.wait_timeout(waiting, at.saturating_duration_since(now));
                    result.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Takes back jobs of a group of whose flows the kernel keeps some for now, or some come again.
    /// They hold up no other job.
    pub(crate) fn put_off(&self, group: Group, kept: Jobs) {
        let mut waiting = self.lock();
        let lane = waiting.lane(group);
        if kept.is_empty() {
            if lane.put_off.is_empty() {
                lane.times_put_off = 0;
            }
            return;
        }
        if lane.times_put_off == 0 {
            tracing::warn!(
                ipFamily = group.family.as_str(),
                protocol = group.protocol.as_str(),
                frontends = kept.len(),
                "Stale conntrack entries come again, or are in a flowtable, from which this kernel does not delete them; retrying"
            );
        }
        let until = Instant::now() + RETRY.delay(lane.times_put_off);
        let sooner = lane.put_off_until.filter(|at| !lane.put_off.is_empty() && *at < until);
        lane.put_off_until = Some(sooner.unwrap_or(until));
        lane.times_put_off = lane.times_put_off.saturating_add(1);
        for (at, stale) in kept {
            // Jobs that came in the meantime are newer, and allow for these.
            if let Entry::Vacant(entry) = lane.jobs.entry(at) {
                entry.insert(match stale {
                    Stale::New(port) => Stale::Unserved(port),
                    other => other,
                });
                lane.put_off.insert(at);
            }
        }
    }

    /// Notes that the worker is done with a group, or takes back the jobs that failed.
    pub(crate) fn done(&self, group: Group, failed: Option<Jobs>) {
        let mut waiting = self.lock();
        let lane = waiting.lane(group);
        lane.is_running = false;
        match failed {
            None => {
                lane.failures = 0;
                lane.retry_at = None;
                lane.is_full = false;
            }
            Some(older) => {
                lane.retry_at = Some(Instant::now() + RETRY.delay(lane.failures));
                lane.failures = lane.failures.saturating_add(1);
                // Jobs that came in the meantime are newer, and allow for the failed ones.
                let newer = mem::replace(&mut lane.jobs, older);
                lane.jobs.extend(newer);
            }
        }
        self.wake();
    }

    pub(crate) fn wait_idle(&self, timeout: Duration) -> bool {
        let is_busy = |waiting: &mut Waiting| {
            waiting.lanes.iter().any(|l| l.is_running || !l.jobs.is_empty())
        };
        let (_guard, result) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, is_busy)
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }
}

impl Waiting {
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    pub(crate) fn lane(&mut self, group: Group) -> &mut Lane {
        &mut self.lanes[group.index()]
    }

    /// Notes that the kernel may not hold what was synced.
    pub(crate) fn doubt(&mut self) {
        self.is_doubtful = PerFamily { v4: true, v6: true };
    }

    /// Returns the programmed families that are in doubt, and ends the doubt. The others are in
    /// doubt from now on.
    pub(crate) fn take_doubt(
        &mut self,
        is_programmed: impl Fn(IpFamily) -> bool,
    ) -> PerFamily<bool> {
        PerFamily::from_fn(|family| {
            let doubt = self.is_doubtful.get_mut(family);
            mem::replace(doubt, !is_programmed(family)) && is_programmed(family)
        })
    }

    /// Notes the addresses on which node ports are served now, in programmed families. Returns the
    /// families in which those are others than before.
    pub(crate) fn serve_node_ports(
        &mut self,
        node_ports: &PerFamily<NodePortAddresses>,
        is_programmed: impl Fn(IpFamily) -> bool,
    ) -> PerFamily<bool> {
        PerFamily::from_fn(|family| {
            let (before, after) = (self.node_ports.get_mut(family), node_ports.get(family));
            let is_moved = is_programmed(family) && before != after;
            if is_moved {
                before.clone_from(after);
            }
            is_moved
        })
    }

    /// Notes that a Service port has changed whose family is left out.
    pub(crate) fn leave_out(&mut self, before: &Arc<ResolvedServicePort>) {
        if self.left_out.len() < MOST_WAITING {
            self.left_out.entry(before.id.clone()).or_insert_with(|| Arc::clone(before));
        } else if !mem::replace(&mut self.is_full, true) {
            tracing::warn!("conntrack queue full while a family is withheld; stale flows stay");
        }
    }

    /// Returns the Service ports that have changed while their families, which are programmed
    /// again, were left out.
    pub(crate) fn take_back(
        &mut self,
        is_programmed: impl Fn(IpFamily) -> bool,
    ) -> Vec<Arc<ResolvedServicePort>> {
        let mut taken_back = Vec::new();
        self.left_out.retain(|id, port| {
            let is_programmed = is_programmed(id.family);
            if is_programmed {
                taken_back.push(Arc::clone(port));
            }
            !is_programmed
        });
        taken_back
    }
}

impl Lane {
    /// Notes that a Service port has the listener. Queues a job only if one is `needed`, or if a
    /// job with an older version of the Service port waits or runs.
    pub(crate) fn has(&mut self, at: Listener, port: &Arc<ResolvedServicePort>, needed: bool) {
        let is_new = self.listeners.insert(at) || matches!(self.jobs.get(&at), Some(Stale::New(_)));
        if needed || self.is_running || self.jobs.contains_key(&at) {
            let stale = if is_new { Stale::New } else { Stale::Unserved };
            self.queue(at, stale(Arc::clone(port)));
        }
    }

    /// Queues a job in place of an older one.
    fn queue(&mut self, at: Listener, stale: Stale) {
        self.put_off.remove(&at);
        self.jobs.insert(at, stale);
    }

    /// Notes that a Service port lost the listener.
    pub(crate) fn lost(&mut self, at: Listener, port: &Arc<ResolvedServicePort>) {
        self.listeners.remove(&at);
        if self.jobs.len() >= MOST_WAITING && !self.jobs.contains_key(&at) {
            if !mem::replace(&mut self.is_full, true) {
                tracing::warn!("conntrack queue full; stale flows of old frontends stay");
            }
            return;
        }
        // Flows to endpoints that `port` no longer has may be left.
        let stale = if self.is_running || self.jobs.contains_key(&at) {
            Stale::Redirected
        } else {
            Stale::Former(Arc::clone(port))
        };
        self.queue(at, stale);
    }

    /// Whether the verdict of a running job still holds: there is no newer job, and the flow of a
    /// node port is not to an address that is itself a listener.
    pub(crate) fn is_current(&self, job: Listener, destination: SocketAddr) -> bool {
        let is_shadowed = || self.listeners.contains(&Listener::at(destination));
        !self.jobs.contains_key(&job) && (job.ip.is_some() || !is_shadowed())
    }

    /// Returns the time from which on there are jobs to be done, `now` or later; `None` if there
    /// are no jobs.
    fn due(&self, now: Instant) -> Option<Instant> {
        let put_off = self.put_off_until.filter(|_| self.put_off.len() == self.jobs.len());
        let waits = [self.retry_at, put_off, Some(now)];
        waits.into_iter().flatten().max().filter(|_| !self.jobs.is_empty())
    }

    fn take(&mut self, now: Instant) -> Jobs {
        self.is_running = self.due(now).is_some_and(|at| at <= now);
        if !self.is_running {
            return Jobs::new();
        }
        let mut due = mem::take(&mut self.jobs);
        if self.put_off_until.is_some_and(|until| until > now) {
            self.jobs = due.extract_if(|at, _| self.put_off.contains(at)).collect();
        } else {
            self.put_off.clear();
            self.put_off_until = None;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conntrack::testing::{flow, resolved};

    const GROUP: Group = Group::ALL[0];
    const TO: &str = "10.0.0.10:53";

    fn at() -> Listener {
        Listener::at(TO.parse().unwrap())
    }

    /// Whether the waiting job would delete the flow that `by` answers; `None` if there is none.
    fn verdict(queue: &Queue, by: &str) -> Option<bool> {
        let mut waiting = queue.lock();
        let job = waiting.lane(GROUP).jobs.get(&at())?;
        Some(job.is_stale(&flow("10.1.9.9:4000", TO, by)))
    }

    fn take(queue: &Queue) -> Jobs {
        mem::take(&mut queue.take().unwrap()[GROUP.index()])
    }

    #[test]
    fn a_job_is_made_if_needed_or_if_an_older_one_would_be_wrong() {
        let queue = Queue::default();
        let has = |endpoints: &[&str], needed| {
            queue.lock().lane(GROUP).has(at(), &resolved("a", endpoints), needed);
        };
        has(&["10.1.0.1:53"], false);
        assert_eq!(verdict(&queue, "10.1.0.1:53"), None);
        has(&["10.1.0.1:53"], true);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(true));
        assert_eq!(verdict(&queue, "10.1.0.1:53"), Some(false));
        // One waits.
        has(&["10.1.0.1:53", "10.1.0.2:53"], false);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(false));
        // One is under way.
        take(&queue);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), None);
        let is_current = || queue.lock().lane(GROUP).is_current(at(), TO.parse().unwrap());
        assert!(is_current());
        has(&["10.1.0.3:53"], false);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(true));
        assert!(!is_current());
        queue.done(GROUP, None);
        take(&queue);
        queue.done(GROUP, None);
        has(&["10.1.0.4:53"], false);
        assert_eq!(verdict(&queue, "10.1.0.4:53"), None);
    }

    #[test]
    fn a_listener_that_goes_takes_the_flows_of_its_endpoints_and_of_those_before() {
        let queue = Queue::default();
        let old = resolved("a", &["10.1.0.1:53"]);
        let lost = || queue.lock().lane(GROUP).lost(at(), &old);
        lost();
        assert_eq!(verdict(&queue, "10.1.0.1:53"), Some(true));
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(false));
        // Another Service port has it, which nobody serves, and loses it.
        let unserved = resolved("b", &[]);
        queue.lock().lane(GROUP).has(at(), &unserved, true);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(true));
        take(&queue);
        queue.done(GROUP, None);
        queue.lock().lane(GROUP).lost(at(), &unserved);
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(false), "those of the port are gone");
        take(&queue);
        queue.done(GROUP, None);
        lost();
        // Another Service port has it instead.
        queue.lock().lane(GROUP).has(at(), &resolved("b", &["10.1.0.2:53"]), false);
        assert_eq!(verdict(&queue, "10.1.0.1:53"), Some(true));
        assert_eq!(verdict(&queue, "10.1.0.2:53"), Some(false));
        // And loses it before anything was deleted.
        lost();
        for _ in 0..2 {
            assert_eq!(verdict(&queue, "10.1.0.1:53"), Some(true));
            assert_eq!(verdict(&queue, "10.1.0.9:53"), Some(true));
            assert_eq!(verdict(&queue, TO), Some(false), "nobody redirected it");
            // The same while the deletion is under way.
            take(&queue);
            lost();
        }
    }

    #[test]
    fn what_failed_comes_back_beside_what_is_newer() {
        let queue = Queue::default();
        let other = Listener::node_port(1);
        for listener in [at(), other, at()] {
            queue.lock().lane(GROUP).has(listener, &resolved("a", &["10.1.0.9:9"]), true);
        }
        let jobs = take(&queue);
        assert_eq!(jobs.len(), 2);
        assert!(jobs.values().all(|stale| matches!(stale, Stale::New(_))));
        queue.lock().lane(GROUP).has(at(), &resolved("a", &["10.1.0.1:53"]), false);
        queue.done(GROUP, Some(jobs));
        assert_eq!(verdict(&queue, "10.1.0.1:53"), Some(false), "the newer one counts");
        assert!(matches!(queue.lock().lane(GROUP).jobs[&at()], Stale::Unserved(_)));
        assert!(queue.lock().lane(GROUP).jobs.contains_key(&other));
        assert!(!queue.wait_idle(Duration::ZERO));
    }

    #[test]
    fn a_failure_holds_up_nothing_but_its_group() {
        let (queue, other) = (Queue::default(), Group::ALL[3]);
        queue.lock().lane(GROUP).has(at(), &resolved("a", &["10.1.0.9:9"]), true);
        let jobs = take(&queue);
        queue.done(GROUP, Some(jobs));
        queue.lock().lane(GROUP).retry_at = Some(Instant::now() + RETRY.longest);
        queue.lock().lane(other).has(at(), &resolved("a", &["10.1.0.9:9"]), true);
        let batch = queue.take().unwrap();
        assert_eq!(batch.map(|jobs| jobs.len()), [0, 0, 0, 1]);
        assert!(!queue.lock().lane(GROUP).is_running);
    }

    #[test]
    fn what_the_kernel_keeps_holds_up_nothing() {
        let (queue, other) = (Queue::default(), Listener::node_port(1));
        let has = |at| queue.lock().lane(GROUP).has(at, &resolved("a", &["10.1.0.1:53"]), true);
        let taken = || take(&queue).into_keys().collect::<Vec<_>>();
        let put_off = |until: Option<Instant>| {
            let stale = Stale::New(resolved("a", &["10.1.0.9:9"]));
            queue.put_off(GROUP, [(at(), stale)].into());
            let mut waiting = queue.lock();
            let lane = waiting.lane(GROUP);
            lane.put_off_until = until.or(lane.put_off_until);
        };
        let later = Instant::now() + RETRY.longest;
        put_off(Some(later));
        assert!(!queue.wait_idle(Duration::ZERO));
        has(other);
        assert_eq!(taken(), [other]);
        // A sync may need other flows to end.
        has(at());
        assert_eq!(taken(), [at()]);
        // It comes back by itself, also if others are put off again and again.
        put_off(Some(later));
        put_off(None);
        assert!(queue.lock().lane(GROUP).put_off_until.unwrap() < later);
        assert_eq!(taken(), [at()]);
        let until = || queue.lock().lane(GROUP).put_off_until.unwrap();
        put_off(None);
        assert!(until() > Instant::now() + RETRY.first);
        // Delays begin anew once nothing is kept.
        has(at());
        assert_eq!(taken(), [at()]);
        queue.put_off(GROUP, Jobs::new());
        put_off(None);
        assert!(until() <= Instant::now() + RETRY.first);
    }

    #[test]
    fn delays_grow_and_begin_anew_after_a_success() {
        let queue = Queue::default();
        /// Fails, and checks for how long the job is put off.
        fn fail(queue: &Queue, delay: Duration) {
            let before = Instant::now();
            queue.done(GROUP, Some(Jobs::new()));
            let at = queue.lock().lane(GROUP).retry_at.unwrap();
            assert!(before + delay <= at && at <= Instant::now() + delay, "{delay:?}");
        }
        fail(&queue, RETRY.first);
        fail(&queue, RETRY.first * 2);
        queue.done(GROUP, None);
        fail(&queue, RETRY.first);
    }

    #[test]
    fn what_waits_is_bounded() {
        let queue = Queue::default();
        let port = resolved("a", &["10.1.0.9:9"]);
        let mut waiting = queue.lock();
        let lane = waiting.lane(GROUP);
        for i in 0..150_000u32 {
            let ip = std::net::Ipv4Addr::from(0x0a00_0000 + i).into();
            lane.lost(Listener { ip: Some(ip), port: 53 }, &port);
        }
        assert_eq!(lane.jobs.len(), MOST_WAITING);
        // What is there is looked at in any case.
        lane.has(Listener::node_port(1), &port, true);
        assert_eq!(lane.jobs.len(), MOST_WAITING + 1);
    }
}
