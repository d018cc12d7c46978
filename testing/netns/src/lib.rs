//! Network namespaces of single threads, for tests and benchmarks that talk to the kernel
//! themselves. A namespace and its contents disappear with the thread, however the thread ends;
//! nothing is written below `/run/netns`. Root is needed.
//!
//! Tests that put several hosts together use `packet_rig::NetNs`.
//!
//! [`nft_trixie`] brings a second version of nft. [`wait`] repeats a look at what another program does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

mod nft;
pub mod wait;

use std::{io, panic, thread};

pub use self::nft::nft_trixie;

/// Runs `work` in a thread with a new network namespace, in which no interface is up. A panic of
/// `work` is passed on.
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
/// If the kernel refuses, as it does without root.
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
