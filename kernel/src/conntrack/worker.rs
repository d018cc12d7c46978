//! The worker: does jobs, and repeats jobs that fail.

use std::{error::Error, mem, time::Instant};

use switchyard_core::{error::ErrorChain, model::IpFamily};

use crate::conntrack::{
    Group, Report,
    job::Jobs,
    queue::{Batch, Queue},
};

/// The counts of an attempt so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scanned: usize,
    pub(crate) deleted: usize,
}

/// Does jobs with `sweep`, until the queue is stopped.
pub(crate) fn run<E: Error + 'static>(
    queue: &Queue,
    mut sweep: impl FnMut(Group, &Jobs, &mut Tally) -> Result<(), E>,
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
    sweep: &mut impl FnMut(Group, &Jobs, &mut Tally) -> Result<(), E>,
    report: &mut impl FnMut(Report),
) {
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut results = Vec::new();
    for group in Group::ALL.into_iter().filter(|group| group.family == family) {
        let jobs = mem::take(&mut batch[group.index()]);
        if jobs.is_empty() {
            continue;
        }
        let failed = match sweep(group, &jobs, &mut tally) {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!(
                    ipFamily = family.as_str(),
                    protocol = group.protocol.as_str(),
                    err = %ErrorChain(&error),
                    "Failed to delete stale conntrack entries; retrying"
                );
                Some(jobs)
            }
        };
        results.push((group, failed));
    }
    if results.is_empty() {
        return;
    }
    let complete = results.iter().all(|(_, failed)| failed.is_none());
    let duration = start.elapsed();
    let Tally { scanned, deleted } = tally;
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
    for (group, failed) in results {
        queue.done(group, failed);
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::mpsc, thread, time::Duration};

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
            if group == BAD && attempts.len() < 4 { Err(fmt::Error) } else { Ok(()) }
        };
        for group in [GOOD, BAD] {
            queue.lock().lane(group).has(
                Listener::node_port(1),
                &resolved("a", &["10.1.0.9:9"]),
                true,
            );
        }
        thread::scope(|scope| {
            let queue = &queue;
            scope.spawn(move || run(queue, sweep, |report| sender.send(report).unwrap()));
            assert!(queue.wait_idle(PATIENCE));
            queue.stop();
        });
        let reported = reports.iter().map(|report| (report.family, report.complete));
        let (v4, v6) = (IpFamily::V4, IpFamily::V6);
        let expected = [(v4, true), (v6, false), (v6, false), (v6, true)];
        assert_eq!(reported.collect::<Vec<_>>(), expected);
        assert_eq!(attempts, [(GOOD, 1), (BAD, 1), (BAD, 1), (BAD, 1)]);
    }
}
