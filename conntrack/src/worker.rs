//! The worker: does jobs, and repeats what fails.

use std::{fmt::Display, mem, time::Instant};

use proxy_core::model::IpFamily;

use crate::{
    Group, Report,
    job::Jobs,
    queue::{Batch, Queue},
};

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) scanned: usize,
    pub(crate) deleted: usize,
}

/// Does jobs with `sweep`, until the queue is stopped.
pub(crate) fn run<E: Display>(
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
fn attempt<E: Display>(
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
                    family = family.as_str(),
                    protocol = group.protocol.as_str(),
                    err = %error,
                    "Failed to remove stale conntrack entries; it will be repeated"
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
        family = family.as_str(),
        scanned,
        deleted,
        complete,
        elapsed = ?duration,
        "Looked for stale conntrack entries"
    );
    // Before the jobs are done, so that who waits for that has had every report.
    report(Report { family, duration, scanned, deleted, complete });
    for (group, failed) in results {
        queue.done(group, failed);
    }
}
