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

/// The record of a client.
#[derive(Debug)]
pub(super) struct Attention {
    /// The time since nothing of the client has waited; `None` while something does.
    silent: Mutex<Option<Instant>>,
    pub(super) is_connected: AtomicBool,
    is_replaced: Notify,
    all: Arc<AllClients>,
}

/// The record of all clients, one after the other.
#[derive(Debug)]
struct AllClients {
    /// The time of the last line; at first, of the start.
    heard: Mutex<Instant>,
    /// Whether one has ended a list.
    is_synced: AtomicBool,
}

impl Attention {
    /// Notes that everything was taken that the client had sent.
    pub(super) fn waits(&self) {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
    }

    /// Notes that the client has sent a line.
    pub(super) fn hears(&self) {
        *self.silent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.all.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns for how long the client has sent no line.
    pub(super) fn silence(&self) -> Duration {
        let silent = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Notes that the client has ended a list.
    pub(super) fn ends_list(&self) {
        self.all.is_synced.store(true, Relaxed);
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
    pub is_connected: bool,
    /// Whether it, or one before it, has ended a list.
    pub is_synced: bool,
    /// The seconds since one sent a line, or since the start.
    pub seconds_silent: u64,
}

impl ClientHealth {
    /// Begins the record of another client.
    pub(super) fn begins(&self) -> Arc<Attention> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let first = || Arc::new(AllClients { heard: Mutex::new(now), is_synced: false.into() });
        let attention = Arc::new(Attention {
            silent: Mutex::new(Some(now)),
            is_connected: false.into(),
            is_replaced: Notify::new(),
            all: last.as_ref().map_or_else(first, |last| Arc::clone(&last.all)),
        });
        *last = Some(Arc::clone(&attention));
        attention
    }

    /// Returns the state; `None` if there is no socket for objects.
    pub fn state(&self) -> Option<ClientState> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|client| ClientState {
            is_connected: client.is_connected.load(Relaxed),
            is_synced: client.all.is_synced.load(Relaxed),
            seconds_silent: {
                let heard = client.all.heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.elapsed().as_secs()
            },
        })
    }
}
