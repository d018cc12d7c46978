//! Seeds of random tests: written in the source, so that an ordinary run is repeatable.
//! `SWITCHYARD_SEED=N` replays one seed, as a failing test prints it; with
//! `SWITCHYARD_SOAK=SECONDS`, tests take seeds from the clock, and go on for so long if they can.
//!
//! The functions here panic if a variable cannot be read, because a test that ignored the variable
//! would not test what was asked for.

use std::{
    env,
    panic::Location,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// The seed of property tests in an ordinary run.
const SEED: u64 = 1;

/// The seed to replay: the value of `SWITCHYARD_SEED`, if it is set.
pub fn replayed_seed() -> Option<u64> {
    number("SWITCHYARD_SEED")
}

/// The length of a soak run: the value of `SWITCHYARD_SOAK`, if it is set.
pub fn soak_time() -> Option<Duration> {
    number("SWITCHYARD_SOAK").map(Duration::from_secs)
}

/// A seed that no earlier call in this second has returned: the nanoseconds of the clock.
pub fn clock_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The low 64 bits last until the year 2554; all that counts is that they differ.
    now.as_nanos() as u64
}

/// The configuration of a property test that runs `cases` cases, or as many as `PROPTEST_CASES`
/// asks for.
///
/// The random numbers follow from one seed, which is printed; the output of a test is shown if the
/// test fails. The seed is fixed unless `SWITCHYARD_SEED` or `SWITCHYARD_SOAK` is set. A case that
/// fails is kept in `proptest-regressions` beside the `src` or `tests` of the calling file, where
/// proptest finds the case and runs it first from then on.
#[track_caller]
pub fn proptest_config(cases: u32) -> Config {
    let seed = replayed_seed().unwrap_or_else(|| match soak_time() {
        Some(_) => clock_seed(),
        None => SEED,
    });
    println!("to repeat these cases: SWITCHYARD_SEED={seed}");
    Config {
        cases: number("PROPTEST_CASES").unwrap_or(cases),
        failure_persistence: Some(Box::new(FileFailurePersistence::default())),
        source_file: Some(Location::caller().file()),
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    }
}

/// The value of a variable of the environment, if the variable is set.
fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.trim().parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} must be a number, and is {text:?}")))
}
