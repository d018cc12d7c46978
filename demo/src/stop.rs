//! Ctrl-C and its like: noticed, so that everything is put away before the end.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP},
    flag,
};

use crate::error::{DemoError, Result};

/// Whether somebody wants the demo to end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Begins to listen for signals.
    pub fn listen() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // The second one ends the process at once. The kernel puts away what is left.
            flag::register_conditional_default(signal, Arc::clone(&stop.0))?;
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        // A demo that measures milliseconds cannot be suspended.
        flag::register(SIGTSTP, Arc::new(AtomicBool::new(false)))?;
        Ok(stop)
    }

    /// Asks for the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if the end was asked for.
    pub fn check(&self) -> Result<()> {
        match self.is_set() {
            true => Err(DemoError::Stopped),
            false => Ok(()),
        }
    }

    /// Sleeps, but not beyond the wish for an end.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let deadline = Instant::now() + duration;
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_ends_when_the_end_is_asked_for() {
        let stop = Stop::default();
        let other = stop.clone();
        let asking = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            other.set();
        });
        let started = Instant::now();
        assert!(matches!(stop.sleep(Duration::from_secs(60)), Err(DemoError::Stopped)));
        assert!(started.elapsed() < Duration::from_secs(30));
        asking.join().unwrap();
    }
}
