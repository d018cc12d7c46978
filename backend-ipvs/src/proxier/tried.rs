//! The schedulers that Service ports ask for, and whether the kernel has them.
//!
//! A scheduler is tried before it is used, which may load its module. One that the kernel does not
//! have is tried again after growing pauses, one in a sync; where an attempt took long, none is
//! made for a while.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use switchyard_kernel::netlink::Error;

use super::kernel::Kernel;
use crate::scheduler::Scheduler;

/// The time from the first attempt to the second.
const FIRST: Duration = Duration::from_secs(30);
/// The longest time between two attempts.
const LONGEST: Duration = Duration::from_secs(3600);
/// An attempt that takes longer holds up all Services.
const SLOW: Duration = Duration::from_secs(2);
/// The time without attempts after such a one.
const WHILE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Tried {
    there: BTreeSet<Scheduler>,
    missing: HashMap<Scheduler, Missing>,
    /// The time before which no scheduler is tried.
    not_before: Option<Instant>,
}

/// A scheduler that the kernel does not have.
#[derive(Debug)]
struct Missing {
    due: Instant,
    pause: Duration,
}

impl Tried {
    pub(super) fn knows(&self, scheduler: Scheduler) -> bool {
        self.there.contains(&scheduler) || self.missing.contains_key(&scheduler)
    }

    /// The schedulers that the kernel does not have.
    pub(super) fn missing(&self) -> Vec<Scheduler> {
        self.missing.keys().copied().collect()
    }

    /// Notes that the kernel does not have a scheduler. Returns whether that is news.
    pub(super) fn lose(&mut self, scheduler: Scheduler) -> bool {
        self.there.remove(&scheduler);
        let missing = Missing { due: Instant::now() + FIRST, pause: 2 * FIRST };
        let is_news = !self.missing.contains_key(&scheduler);
        if is_news {
            self.missing.insert(scheduler, missing);
            tracing::error!(
                scheduler = scheduler.as_str(),
                module = scheduler.module(),
                "The kernel has no such scheduler, as the module is missing; another one is used instead"
            );
        }
        is_news
    }

    /// Tries the schedulers that are asked for and were not tried, with those to use instead of
    /// what is missing, and one that is missing, if that is due. Returns whether the kernel has one
    /// that it had not before.
    pub(super) fn try_all(
        &mut self,
        asked: BTreeSet<Scheduler>,
        kernel: &mut dyn Kernel,
    ) -> Result<bool, Error> {
        let now = Instant::now();
        let is_due = |scheduler: &&Scheduler| {
            self.missing.get(scheduler).is_some_and(|missing| missing.due <= now)
        };
        let mut is_there = false;
        if let Some(&scheduler) = asked.iter().find(is_due) {
            is_there = self.has(scheduler, kernel)?;
            if is_there {
                self.missing.remove(&scheduler);
                tracing::info!(scheduler = scheduler.as_str(), "The kernel has the scheduler now");
            } else if let Some(missing) = self.missing.get_mut(&scheduler) {
                let pause = missing.pause;
                *missing = Missing { due: now + pause, pause: (2 * pause).min(LONGEST) };
            }
        }
        for scheduler in asked {
            self.try_new(scheduler, kernel)?;
            if self.missing.contains_key(&scheduler) {
                for other in scheduler.instead() {
                    self.try_new(other, kernel)?;
                }
            }
        }
        Ok(is_there)
    }

    fn try_new(&mut self, scheduler: Scheduler, kernel: &mut dyn Kernel) -> Result<(), Error> {
        if !self.knows(scheduler) && !self.has(scheduler, kernel)? {
            self.lose(scheduler);
        }
        Ok(())
    }

    fn has(&mut self, scheduler: Scheduler, kernel: &mut dyn Kernel) -> Result<bool, Error> {
        let start = Instant::now();
        if !Scheduler::ANY.contains(&scheduler) && self.not_before.is_some_and(|time| start < time)
        {
            return Ok(false);
        }
        let has = kernel.has_scheduler(scheduler)?;
        if has {
            self.there.insert(scheduler);
        } else if start.elapsed() >= SLOW {
            self.not_before = Some(start + WHILE);
        }
        Ok(has)
    }

    /// Lets what is missing be tried at once.
    #[cfg(test)]
    pub(super) fn hasten(&mut self) {
        self.missing.values_mut().for_each(|missing| missing.due = Instant::now());
        self.not_before = None;
    }
}
