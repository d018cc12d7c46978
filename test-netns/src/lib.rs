//! Network namespaces of single threads, for tests and benchmarks that talk to the kernel
//! themselves. What is in one goes with the thread, however it ends; nothing is written below
//! `/run/netns`. All of it needs root.
//!
//! Tests that put several hosts together use `packet_rig::NetNs`.

use std::{io, panic, thread};

/// Runs `work` in a thread with a new network namespace, in which nothing is up, and passes on its
/// panic if it panics.
pub fn in_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        enter_new_namespace();
        work()
    };
    thread::scope(|scope| scope.spawn(body).join())
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Moves this thread, which must not be used for anything else afterwards, to a new network
/// namespace.
///
/// # Panics
///
/// If that may not be done.
pub fn enter_new_namespace() {
    // SAFETY: unshare takes no pointers, and moves only this thread.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(
        result,
        0,
        "cannot make a network namespace, which needs root: {}",
        io::Error::last_os_error()
    );
}
