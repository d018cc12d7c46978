//! The worker: does jobs, and repeats jobs that fail.

use std::{
    collections::HashSet,
    error::Error,
    mem,
    time::{Duration, Instant},
};

use switchyard_core::{error::ErrorChain, model::IpFamily};

use crate::conntrack::{
    Group, Report,
    job::{Jobs, Listener},
    queue::{Batch, Queue},
};

/// The counts of an attempt so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scanned: usize,
    pub(crate) deleted: usize,
    /// The time between looks, in which nothing was done.
    pub(crate) paused: Duration,
}

/// Does jobs with `sweep`, until the queue is stopped. `sweep` returns the listeners of which the
/// kernel keeps flows for now.
pub(crate) fn run<E: Error + 'static>(
    queue: &Queue,
    mut sweep: impl FnMut(Group, &Jobs, &mut Tally) -> Result<HashSet<Listener>, E>,
    mut report: impl FnMut(Report),
) {
    while let Some(mut batch) = queue.take() {
        for family in IpFamily::ALL {
            attempt(queue, family, &mut batch, &mut sweep, &mut report);
        }
    }
}

/// Does the jobs of a family.
fn attempt<E: Error + 'static>(
    queue: &Queue,
    family: IpFamily,
    batch: &mut Batch,
    sweep: &mut impl FnMut(Group, &Jobs, &mut Tally) -> Result<HashSet<Listener>, E>,
    report: &mut impl FnMut(Report),
) {
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut results = Vec::new();
    for group in Group::ALL.into_iter().filter(|group| group.family == family) {
        let mut jobs = mem::take(&mut batch[group.index()]);
        if jobs.is_empty() {
            continue;
        }
        let (kept, failed) = match sweep(group, &jobs, &mut tally) {
            Ok(kept) => {
                jobs.retain(|at, _| kept.contains(at));
                (jobs, None)
            }
            Err(error) => {
                tracing::warn!(
                    ipFamily = family.as_str(),
                    protocol = group.protocol.as_str(),
                    err = %ErrorChain(&error),
                    "Failed to delete stale conntrack entries; retrying"
                );
                (Jobs::new(), Some(jobs))
            }
        };
        results.push((group, kept, failed));
    }
    if results.is_empty() {
        return;
    }
    let complete = results.iter().all(|(_, kept, failed)| kept.is_empty() && failed.is_none());
    let Tally { scanned, deleted, paused } = tally;
    let duration = start.elapsed().saturating_sub(paused);
    tracing::debug!(
        ipFamily = family.as_str(),
        scanned,
        deleted,
        complete,
        elapsed = ?duration,
        "Scanned for stale conntrack entries"
    );
    // Before the jobs count as done, so that a caller of `wait_idle` has seen every report.
    report(Report { family, duration, scanned, deleted, complete });
    for (group, kept, failed) in results {
        queue.put_off(group, kept);
        queue.done(group, failed);
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::mpsc, thread};

    use super::*;
    use crate::conntrack::{job::Listener, testing::resolved};

    const PATIENCE: Duration = Duration::from_secs(60);
    const GOOD: Group = Group::ALL[0];
    const BAD: Group = Group::ALL[3];

    #[test]
    fn what_fails_is_repeated_until_it_succeeds() {
        let queue = Queue::default();
        let (sender, reports) = mpsc::channel();
        let mut attempts = Vec::new();
        let sweep = |group: Group, jobs: &Jobs, tally: &mut Tally| {
            attempts.push((group, jobs.len()));
            tally.deleted += 1;
            tally.paused += PATIENCE;
            match (group == BAD, attempts.len()) {
                (true, ..5) => Err(fmt::Error),
                (false, 1) => Ok([Listener::node_port(2)].into()),
                _ => Ok(HashSet::new()),
            }
        };
        for (group, ports) in [(GOOD, &[1, 2][..]), (BAD, &[1])] {
            for port in ports {
                let endpoints = resolved("a", &["10.1.0.9:9"]);
                queue.lock().lane(group).has(Listener::node_port(*port), &endpoints, true);
            }
        }
        thread::scope(|scope| {
            let queue = &queue;
            scope.spawn(move || run(queue, sweep, |report| sender.send(report).unwrap()));
            assert!(queue.wait_idle(PATIENCE));
            queue.stop();
        });
        let reported = reports.iter().map(|report| {
            assert_eq!(report.duration, Duration::ZERO, "pauses are none of its work");
            (report.family, report.complete)
        });
        let (v4, v6) = (IpFamily::V4, IpFamily::V6);
        let expected = [(v4, false), (v6, false), (v4, true), (v6, false), (v6, true)];
        assert_eq!(reported.collect::<Vec<_>>(), expected);
        assert_eq!(attempts, [(GOOD, 2), (BAD, 1), (GOOD, 1), (BAD, 1), (BAD, 1)]);
    }
}
