//! Whether a client sends anything, and whether another one takes its place.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// The time since a client was heard.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The time since nothing of the client has waited; `None` while something does.
    silent: Mutex<Option<Instant>>,
    is_replaced: Notify,
}

impl Attention {
    /// Notes that everything was taken that the client had sent.
    pub(super) fn waits(&self) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    /// Notes that the client has sent a line.
    pub(super) fn hears(&self) {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns for how long the client has sent no line.
    pub(super) fn silence(&self) -> Duration {
        let silent = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Has the client go.
    pub(super) fn take_place(&self) {
        self.is_replaced.notify_one();
    }

    /// Returns once another client takes the place.
    pub(super) async fn replaced(&self) {
        self.is_replaced.notified().await;
    }
}
