//! Pipes, by which the system moves bytes between sockets without copying them.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use switchyard_core::error::ErrorChain;

use crate::forwarder::{
    platform::{Pipe, Platform},
    slots::{PipeSlot, Slots},
};

/// The number of empty pipes that are kept for transfers to come.
const IDLE: usize = 64;

/// The pipes that no transfer has at the moment.
#[derive(Default)]
pub(crate) struct Pipes {
    idle: Mutex<Vec<PooledPipe>>,
    /// The system has pipes, but does not move bytes of sockets.
    useless: AtomicBool,
}

/// A pipe that a transfer has. It is empty when it is given back, and closed otherwise.
pub(crate) struct PooledPipe {
    pub(crate) pipe: Box<dyn Pipe>,
    _slot: PipeSlot,
}

impl Pipes {
    /// Lends a pipe, if there may be another one.
    pub(crate) fn lend(&self, platform: &dyn Platform, slots: &Arc<Slots>) -> Option<PooledPipe> {
        if self.useless.load(Ordering::Relaxed) {
            return None;
        }
        self.lock().pop().or_else(|| {
            let _slot = slots.take_for_pipe()?;
            Some(PooledPipe { pipe: platform.pipe().ok()?, _slot })
        })
    }

    pub(crate) fn give_back(&self, empty: PooledPipe) {
        let mut idle = self.lock();
        if idle.len() < IDLE {
            idle.push(empty);
        }
    }

    /// Whether an error means that the system cannot move bytes of sockets; then no more pipes are
    /// lent.
    pub(crate) fn are_useless(&self, error: &io::Error) -> bool {
        use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
        let useless = matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported);
        if useless && !self.useless.swap(true, Ordering::Relaxed) {
            tracing::info!(err = %ErrorChain(error), "Bulk data is copied: splice refused");
        }
        useless
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PooledPipe>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.lock().len()
    }
}
