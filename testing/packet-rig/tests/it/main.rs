//! Tests of the rig itself and its backends, of a proxy that is killed and started again, of random
//! changes, of repairs, of algorithms and weights, of the table in `docs/semantics.md`, and of what
//! the documentation names. One program, so that it is linked once.
//!
//! `SWITCHYARD_BIN` names the proxy (else: the program that cargo built), `SWITCHYARD_BACKENDS` its
//! backends as a comma-separated list (else: all that are built).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod backends;
mod beside;
mod circles;
mod clocks;
mod codes;
mod documents;
mod host_ports;
mod ipvs;
mod lb_algorithm;
mod load;
mod localhost;
mod outage;
mod repairs;
mod restart;
mod rig;
mod rolling_update;
mod semantics;
mod sequences;
mod traffic;
mod userspace;

use packet_rig::backend;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The selected backends that this machine can run.
fn all_backends() -> Vec<&'static str> {
    let mut backends = backend::selected().unwrap();
    backends.retain(|backend| backend::not_runnable(backend).is_none());
    backends
}

/// Those whose traffic goes on without the proxy. Most tests of userspace mode are in a module of
/// their own.
fn backends() -> Vec<&'static str> {
    let mut backends = all_backends();
    backends.retain(|backend| backend::mode(backend) != backend::USERSPACE);
    backends
}

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
