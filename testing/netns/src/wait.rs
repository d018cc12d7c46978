//! Waiting for what another program does.
//!
//! A look that fails is repeated like one that does not find what it looks for: programs that list
//! rules read them in several dumps, and fail when another program changes the rules in between.

use std::{
    env,
    fmt::Display,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// The time that tests wait for what should happen, on a machine of usual speed: longer than
/// anything takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Set to a number: how many times slower this machine is than those that the tests' times are made
/// for, such as a machine that is emulated.
const SLOWNESS: &str = "SWITCHYARD_SLOWNESS";
/// The interval at which tests look.
pub const PERIOD: Duration = Duration::from_millis(20);

/// The time that takes the place of `time` on this machine, which the environment's
/// `SWITCHYARD_SLOWNESS` may call slower than usual.
///
/// # Panics
///
/// If the variable is no whole number above 0.
pub fn scaled(time: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    let read = || match env::var(SLOWNESS) {
        Ok(text) => factor(&text).unwrap_or_else(|| panic!("{SLOWNESS}: no number: {text:?}")),
        Err(_) => 1,
    };
    time * *FACTOR.get_or_init(read)
}

fn factor(text: &str) -> Option<u32> {
    text.parse().ok().filter(|factor| *factor > 0)
}

/// Repeats `look` until it succeeds, and returns what it found.
///
/// # Panics
///
/// If nothing was found within [`PATIENCE`], [`scaled`]; the message is the error of the last look.
#[track_caller]
pub fn until_ok<T, E: Display>(look: impl FnMut() -> Result<T, E>) -> T {
    let patience = scaled(PATIENCE);
    match within(patience, look) {
        Ok(found) => found,
        Err(last) => panic!("not within {patience:?}: {last}"),
    }
}

/// Waits until `done` returns true.
///
/// # Panics
///
/// If it is not true within [`PATIENCE`], [`scaled`]; the message is `what`.
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
    fn a_slowness_is_a_whole_number() {
        assert_eq!(factor("3"), Some(3));
        for text in ["0", "", "1.5", "-1", "fast"] {
            assert_eq!(factor(text), None, "{text}");
        }
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
