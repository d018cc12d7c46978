//! The state of the client, for the metrics and the status.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use serde::Serialize;

/// The record of the client. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ClientHealth(Arc<Mutex<Option<Record>>>);

#[derive(Debug)]
struct Record {
    /// The connections, of which one may be about to end.
    connections: usize,
    is_synced: bool,
    /// The last line, or the start.
    heard: Instant,
}

/// The state of the client at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientState {
    /// Whether a client is connected.
    pub is_connected: bool,
    /// Whether it has ended a list, or the last one had.
    pub is_synced: bool,
    /// The seconds since a client sent a line, or else since the start.
    pub seconds_silent: u64,
}

impl ClientHealth {
    fn change(&self, change: impl FnOnce(&mut Record)) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(record.get_or_insert_with(|| Record {
            connections: 0,
            is_synced: false,
            heard: Instant::now(),
        }));
    }

    /// Notes that clients may come.
    pub(super) fn starts(&self) {
        self.change(|_| {});
    }

    /// Notes a client, until the value goes.
    pub(super) fn connected(&self) -> Connected {
        self.change(|record| {
            record.connections += 1;
            record.is_synced = false;
        });
        Connected(self.clone())
    }

    /// Returns the state; `None` if there is no socket for objects.
    pub fn state(&self) -> Option<ClientState> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.as_ref().map(|record| ClientState {
            is_connected: record.connections > 0,
            is_synced: record.is_synced,
            seconds_silent: record.heard.elapsed().as_secs(),
        })
    }
}

/// A client that is connected.
pub(super) struct Connected(ClientHealth);

impl Connected {
    /// Notes a line of the client.
    pub(super) fn hears(&self) {
        self.0.change(|record| record.heard = Instant::now());
    }

    /// Notes that a list has ended.
    pub(super) fn syncs(&self) {
        self.0.change(|record| record.is_synced = true);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.change(|record| record.connections -= 1);
    }
}
