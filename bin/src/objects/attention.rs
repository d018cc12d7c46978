//! Whether a client sends anything, and whether another one takes its place.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use serde::Serialize;
use tokio::{sync::Notify, time::Instant};

/// The time since a client was heard.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// The time since nothing of the client has waited; `None` while something does.
    silent: Mutex<Option<Instant>>,
    /// The last line of this client, or of one before it; at first, when there was none yet.
    heard: Mutex<Option<Instant>>,
    /// Whether the client is connected.
    pub(super) is_connected: AtomicBool,
    /// Whether the client, or one before it, has ended a list.
    pub(super) is_synced: AtomicBool,
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
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns for how long the client has sent no line.
    pub(super) fn silence(&self) -> Duration {
        let silent = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the time since the last line of any client.
    fn unheard(&self) -> Duration {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.map_or(Duration::ZERO, |since| since.elapsed())
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

/// The record of the last client. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ClientHealth(Arc<Mutex<Option<Arc<Attention>>>>);

/// The state of the last client, or before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientState {
    /// Whether it is connected.
    pub is_connected: bool,
    /// Whether it, or one before it, has ended a list.
    pub is_synced: bool,
    /// The seconds since one sent a line, or since the start.
    pub seconds_silent: u64,
}

impl ClientHealth {
    /// Begins the record of another client. What was heard of the last one, and whether it ended a
    /// list, counts until this one sends something.
    pub(super) fn begins(&self) -> Arc<Attention> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attention = Arc::<Attention>::default();
        let mut heard = Some(Instant::now());
        if let Some(last) = &*last {
            heard = *last.heard.lock().unwrap_or_else(PoisonError::into_inner);
            attention.is_synced.store(last.is_synced.load(Relaxed), Relaxed);
        }
        attention.waits();
        *attention.heard.lock().unwrap_or_else(PoisonError::into_inner) = heard;
        *last = Some(Arc::clone(&attention));
        attention
    }

    /// Returns the state; `None` if there is no socket for objects.
    pub fn state(&self) -> Option<ClientState> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|client| ClientState {
            is_connected: client.is_connected.load(Relaxed),
            is_synced: client.is_synced.load(Relaxed),
            seconds_silent: client.unheard().as_secs(),
        })
    }
}
