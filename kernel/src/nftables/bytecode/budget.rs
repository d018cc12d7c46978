//! A limit for the work of evaluations: other programs can write rules and elements that would take
//! hours.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use super::walk::Stop;

/// The most work for one call of [`Program::fates`](super::Program::fates), in expressions that are
/// passed, or as much as these take: some seconds. Ours with 10,000 Services take half a million.
const MOST_WORK: u64 = 1 << 27;
/// The work between two looks at the clock.
const LOOK_AGAIN: u64 = 1 << 14;

/// The work that evaluations for one question may take. What exceeds it is
/// [unknown](super::End::Unknown).
#[derive(Debug)]
pub struct Budget {
    until: Option<Instant>,
    most: u64,
    left: Cell<u64>,
    next_look: Cell<u64>,
    is_late: Cell<bool>,
}

impl Budget {
    /// Returns a budget for all that begins from now on for this time.
    pub fn new(time: Duration) -> Self {
        Self::of(Instant::now().checked_add(time), MOST_WORK)
    }

    /// Returns a budget of so much work for each call.
    pub(super) fn of(until: Option<Instant>, most: u64) -> Self {
        Self {
            until,
            most,
            left: Cell::new(most),
            next_look: Cell::new(0),
            is_late: Cell::new(false),
        }
    }

    /// Begins anew with the work, but not with the time.
    pub(super) fn renew(&self) {
        self.left.set(self.most);
        self.next_look.set(self.most);
    }

    /// Takes some work out of the budget.
    pub(super) fn spend(&self, work: usize) -> Result<(), Stop> {
        let Some(left) = self.left.get().checked_sub(work as u64) else {
            self.left.set(0);
            return Err(Stop::Exhausted("it takes too many steps"));
        };
        self.left.set(left);
        if left <= self.next_look.get() {
            self.next_look.set(left.saturating_sub(LOOK_AGAIN));
            let is_late = self.until.is_some_and(|until| Instant::now() >= until);
            self.is_late.set(self.is_late.get() || is_late);
        }
        match self.is_late.get() {
            true => Err(Stop::Exhausted("it takes too long")),
            false => Ok(()),
        }
    }
}
