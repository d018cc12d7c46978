//! Commits of another program in the meantime.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::nftables::{TransportKind, ruleset::Transaction};

/// Ends the other thread, also if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while another thread in this network namespace commits transactions by turns, with a
/// pause after each. Returns what `work` returns, and the number of commits.
///
/// # Panics
///
/// If a transaction is refused.
pub fn while_others_commit<T>(
    turns: &[&Transaction],
    pause: Duration,
    work: impl FnOnce() -> T,
) -> (T, usize) {
    let (stop, commits) = (AtomicBool::new(false), AtomicUsize::new(0));
    let result = thread::scope(|scope| {
        let _stop = Stop(&stop);
        let committer = scope.spawn(|| {
            let mut other = TransportKind::Netlink.open().expect("netlink is there");
            for turn in turns.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                other.commit(turn).expect("committed");
                commits.fetch_add(1, Ordering::Relaxed);
                thread::sleep(pause);
            }
        });
        while commits.load(Ordering::Relaxed) == 0 {
            assert!(!committer.is_finished(), "the other program cannot commit");
            thread::yield_now();
        }
        work()
    });
    (result, commits.into_inner())
}
