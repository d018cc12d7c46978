//! Waiting for what happens in another thread or process.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than anything takes that tests wait for, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `holds` returns true.
///
/// # Panics
/// If that takes more than a minute.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "does not happen: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}
