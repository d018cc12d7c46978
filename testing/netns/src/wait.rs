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
    time * *FACTOR.get_or_init(|| {
        let Ok(text) = env::var(SLOWNESS) else { return 1 };
        let factor = text.parse().ok().filter(|factor| *factor > 0);
        factor.unwrap_or_else(|| panic!("{SLOWNESS}: no number: {text:?}"))
    })
}

/// Repeats `look` until it succeeds, and returns what it found.
///
/// # Panics
///
/// If nothing was found within [`PATIENCE`], [`scaled`]; the message is the error of the last look.
#[track_caller]
pub fn until_ok<T, E: Display>(mut look: impl FnMut() -> Result<T, E>) -> T {
    let patience = scaled(PATIENCE);
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < deadline, "not within {patience:?}: {last}"),
        }
        thread::sleep(PERIOD);
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
