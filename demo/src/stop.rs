//! Ctrl-C and similar signals: caught, so that the demo can clean up before its end.

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

/// A request to end the demo.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Starts to listen for signals.
    pub fn listen() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
            // The second signal ends the process at once. The kernel removes what is left.
            flag::register_conditional_default(signal, Arc::clone(&stop.0))?;
            flag::register(signal, Arc::clone(&stop.0))?;
        }
        // A demo that measures milliseconds cannot be suspended.
        flag::register(SIGTSTP, Arc::new(AtomicBool::new(false)))?;
        Ok(stop)
    }

    /// Requests the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns an error if the end was requested.
    pub fn check(&self) -> Result<()> {
        match self.is_set() {
            true => Err(DemoError::Stopped),
            false => Ok(()),
        }
    }

    /// Sleeps for the duration, or until the end is requested.
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
