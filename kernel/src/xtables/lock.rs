//! The xtables lock, which all programs of the legacy flavour take before they change a table.
//!
//! The lock is `flock` on `/run/xtables.lock`, or on the file that the environment variable
//! `XTABLES_LOCKFILE` names (`man iptables`).

use std::{
    env,
    ffi::OsString,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// The environment variable that names the file.
pub(crate) const VARIABLE: &str = "XTABLES_LOCKFILE";
/// The file that is locked where the environment names none.
const DEFAULT: &str = "/run/xtables.lock";
/// The pauses between attempts double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest wait for the lock.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Returns the file that the programs lock in this process's environment.
pub(crate) fn default_file() -> PathBuf {
    file(env::var_os(VARIABLE))
}

fn file(variable: Option<OsString>) -> PathBuf {
    variable.unwrap_or_else(|| DEFAULT.into()).into()
}

/// Takes the lock, until the returned file is dropped.
///
/// # Errors
/// `WouldBlock` if the lock is not free within five seconds, and others if the file cannot be
/// opened or locked.
pub(crate) fn acquire(path: &Path) -> Result<File, TryLockError> {
    wait(path, LONGEST_WAIT, File::try_lock).0
}

/// Waits until no program holds the lock, five seconds at most. Returns how long that took; zero if
/// the lock was free, or cannot be looked at: the program that needs the file reports why.
pub(crate) fn wait_until_free(path: &Path) -> Duration {
    wait(path, LONGEST_WAIT, File::try_lock_shared).1
}

fn wait(
    path: &Path,
    longest: Duration,
    try_lock: impl Fn(&File) -> Result<(), TryLockError>,
) -> (Result<File, TryLockError>, Duration) {
    let start = Instant::now();
    let mut pause = FIRST_PAUSE;
    let lock = || {
        let file = File::open(path).map_err(TryLockError::Error)?;
        try_lock(&file).map(|()| file)
    };
    let mut locked = lock();
    while matches!(locked, Err(TryLockError::WouldBlock)) && start.elapsed() < longest {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        locked = lock();
    }
    let waited = if pause == FIRST_PAUSE { Duration::ZERO } else { start.elapsed() };
    (locked, waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_names_the_file() {
        assert_eq!(file(None), Path::new("/run/xtables.lock"));
        assert_eq!(file(Some("/x/lock".into())), Path::new("/x/lock"));
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_by_both() {
        let lock = tempfile::NamedTempFile::new().unwrap();
        let path = lock.path();
        assert_eq!(wait_until_free(path), Duration::ZERO);
        let held = acquire(path).unwrap();
        assert!(wait(path, Duration::ZERO, File::try_lock).0.is_err());
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait_until_free(path));
            let acquiring = scope.spawn(|| acquire(path).is_ok());
            thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished() && !acquiring.is_finished());
            drop(held);
            assert!(acquiring.join().unwrap());
            assert!(waiting.join().unwrap() > Duration::ZERO);
        });
        let missing = acquire(Path::new("/nonexistent/lock"));
        assert!(matches!(missing, Err(TryLockError::Error(_))), "{missing:?}");
    }
}
