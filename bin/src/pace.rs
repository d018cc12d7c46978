//! A limit for work that takes time in proportion to what the kernel has.

use std::{
    sync::{Mutex, TryLockError},
    thread,
    time::{Duration, Instant},
};

/// The pause after some work, as a multiple of the time that the work took: whoever asks, and
/// however often, the work takes a tenth of a processor.
const PAUSE: u32 = 9;
/// The longest wait for the end of other work, and for the end of the pause.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// The time between two looks whether other work has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Does one piece of work at a time, with pauses.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// Does the work on this thread, and returns its result; `None` if the last piece took long and
    /// was a moment ago, or goes on.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let until = Instant::now() + LONGEST_WAIT;
        let mut next = loop {
            match self.0.try_lock() {
                Ok(next) => break next,
                Err(TryLockError::Poisoned(next)) => break next.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
            }
        };
        let now = Instant::now();
        let pause = next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now));
        if pause > LONGEST_WAIT {
            return None;
        }
        thread::sleep(pause);
        let begun = Instant::now();
        let done = work();
        *next = Instant::now().checked_add(begun.elapsed().saturating_mul(PAUSE));
        Some(done)
    }
}
