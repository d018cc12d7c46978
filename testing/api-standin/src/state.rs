//! The state that connections share.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::{HeaderMap, header::ACCEPT};
use serde_json::Value;

use crate::{faults::Faults, media::MediaType, server::Options, store::Store};

/// The number of requests that are remembered.
const MAX_REQUESTS: usize = 10_000;

/// The state that connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) bookmarks: Duration,
    token: Mutex<String>,
    /// The client certificates that count, in DER.
    certificates: Mutex<BTreeSet<Vec<u8>>>,
    /// Requests with their `User-Agent`.
    requests: Mutex<VecDeque<(String, String)>>,
    events: Mutex<Vec<Value>>,
}

impl Shared {
    pub(crate) fn new(options: &Options) -> Self {
        let store = Store::default();
        Self {
            faults: Faults::new(store.clone(), options.streaming_lists),
            store,
            bookmarks: options.bookmarks,
            token: Mutex::new(options.token.clone()),
            certificates: Mutex::default(),
            requests: Mutex::default(),
            events: Mutex::default(),
        }
    }

    /// Returns the media type in which to answer a request with these headers.
    pub(crate) fn media_type(&self, headers: &HeaderMap) -> MediaType {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let faults = self.faults.lock();
        MediaType::negotiate(accept, faults.offers_protobuf, faults.drops_fields)
    }

    pub(crate) fn record(&self, request: String, user_agent: Option<&str>) {
        let mut requests = lock(&self.requests);
        if requests.len() == MAX_REQUESTS {
            requests.pop_front();
        }
        requests.push_back((request, user_agent.unwrap_or_default().to_owned()));
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        lock(&self.requests).iter().map(|(request, _)| request.clone()).collect()
    }

    pub(crate) fn user_agent(&self) -> Option<String> {
        lock(&self.requests).back().map(|(_, user_agent)| user_agent.clone())
    }

    pub(crate) fn keep_event(&self, event: Value) {
        lock(&self.events).push(event);
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        lock(&self.events).clone()
    }

    pub(crate) fn token(&self) -> MutexGuard<'_, String> {
        lock(&self.token)
    }

    pub(crate) fn certificates(&self) -> MutexGuard<'_, BTreeSet<Vec<u8>>> {
        lock(&self.certificates)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
