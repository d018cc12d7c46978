//! Tests of the rig itself, of a proxy that is killed and started again, of random changes, of the
//! table in `docs/semantics.md`, and of what the documentation names. One program, so that it is linked once.
//!
//! `SWITCHYARD_BIN` names the proxy (else: the program that cargo built), `SWITCHYARD_BACKENDS` its
//! backends as a comma-separated list (else: all that are built).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod documents;
mod load;
mod localhost;
mod proxy;
mod restart;
mod rig;
mod semantics;
mod sequences;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held for writing by the test that keeps the machine busy, and for reading by the tests that
/// would take a busy machine for lost traffic.
static LOAD: RwLock<()> = RwLock::new(());

/// Waits until no test that needs a calm machine runs, and keeps such tests from starting.
fn keep_busy() -> RwLockWriteGuard<'static, ()> {
    LOAD.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test keeps the machine busy, and keeps such tests from starting.
fn stay_calm() -> RwLockReadGuard<'static, ()> {
    LOAD.read().unwrap_or_else(PoisonError::into_inner)
}
