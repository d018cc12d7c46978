//! The endpoints at which a sweep leaves clients, shared by the engine's thread, which changes
//! them, and the thread that removes the clients of all others.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};
use switchyard_kernel::nftables::Value;

use super::locked;

#[derive(Debug)]
pub(super) struct Endpoints {
    /// `None` once the sweep is called off.
    known: Mutex<Option<HashSet<Value>>>,
    /// Whether the engine's thread waits for the lock.
    is_awaited: AtomicBool,
}

impl Endpoints {
    pub(super) fn new(known: HashSet<Value>) -> Self {
        Self { known: Mutex::new(Some(known)), is_awaited: AtomicBool::new(false) }
    }

    /// Locks the endpoints for the engine's thread, which waits for one portion of removals at
    /// most.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<HashSet<Value>>> {
        self.is_awaited.store(true, Ordering::SeqCst);
        let guard = locked(&self.known);
        self.is_awaited.store(false, Ordering::SeqCst);
        guard
    }

    /// Locks the endpoints while a portion of clients is removed, after the engine's thread. A
    /// mutex alone would go to this thread again and again, which has it most of the time.
    pub(super) fn lock_for_removal(&self) -> MutexGuard<'_, Option<HashSet<Value>>> {
        while self.is_awaited.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        locked(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::testing::until;

    use super::*;

    #[test]
    fn the_engine_waits_for_one_portion() {
        let endpoints = Endpoints::new(HashSet::new());
        for _ in 0..20 {
            let portion = endpoints.lock_for_removal();
            let has_gone_first = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _known = endpoints.lock();
                    has_gone_first.store(true, Ordering::SeqCst);
                });
                until("the engine waits", || endpoints.is_awaited.load(Ordering::SeqCst));
                drop(portion);
                let _portion = endpoints.lock_for_removal();
                assert!(has_gone_first.load(Ordering::SeqCst));
            });
        }
    }
}
