//! Waiting for what another program does.
//!
//! A look that fails is repeated like one that does not find what it looks for: programs that list
//! rules read them in several dumps, and fail when another program changes the rules in between.

use std::{
    fmt::Display,
    thread,
    time::{Duration, Instant},
};

/// How long tests wait for what should happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often tests look.
pub const PERIOD: Duration = Duration::from_millis(20);

/// Repeats `look` until it succeeds, and returns what it found.
///
/// # Panics
///
/// If nothing was found within [`PATIENCE`]; the message is the error of the last look.
#[track_caller]
pub fn until_ok<T, E: Display>(look: impl FnMut() -> Result<T, E>) -> T {
    match within(PATIENCE, look) {
        Ok(found) => found,
        Err(last) => panic!("not within {PATIENCE:?}: {last}"),
    }
}

/// Waits until `done` returns true.
///
/// # Panics
///
/// If it is not true within [`PATIENCE`]; the message is `what`.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    until_ok(|| if done() { Ok(()) } else { Err(what) });
}

/// Repeats `look` until it succeeds, or the time is over; then returns the last error.
fn within<T, E>(patience: Duration, mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + patience;
    loop {
        let looked = look();
        if looked.is_ok() || Instant::now() >= deadline {
            return looked;
        }
        thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_look_is_repeated() {
        let mut looks = 0;
        let found = until_ok(|| {
            looks += 1;
            if looks < 3 { Err("not yet") } else { Ok(looks) }
        });
        assert_eq!(found, 3);
    }

    #[test]
    fn the_last_error_is_reported() {
        let mut looks = 0;
        let last = within(PERIOD * 3, || -> Result<(), u32> {
            looks += 1;
            Err(looks)
        });
        assert!(looks > 1);
        assert_eq!(last, Err(looks));
    }
}
