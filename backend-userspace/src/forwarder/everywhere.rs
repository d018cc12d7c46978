//! The flows of a listener for datagrams on all threads: how many each source has, and the wish of
//! a thread without idle flows that one of another thread ends.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::forwarder::limits::{LimitReached, count_down};

/// The flows of a listener on all threads.
#[derive(Default)]
pub(crate) struct Everywhere {
    /// The number of flows of each source.
    counts: Mutex<HashMap<IpAddr, usize>>,
    threads: Mutex<Vec<UnboundedSender<Wanted>>>,
}

/// The room for a flow of a source, which each thread is asked for once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) source: IpAddr,
    pub(crate) full: LimitReached,
    asked: usize,
}

impl Wanted {
    pub(crate) fn new(source: IpAddr, full: LimitReached) -> Self {
        Self { source, full, asked: 1 }
    }
}

impl Everywhere {
    /// Adds a thread, which others ask by the receiver.
    pub(crate) fn join(&self) -> (UnboundedSender<Wanted>, UnboundedReceiver<Wanted>) {
        let (sender, receiver) = unbounded_channel();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(sender.clone());
        (sender, receiver)
    }

    /// Asks the thread after this one, if that was not asked yet.
    pub(crate) fn ask_next(&self, this: &UnboundedSender<Wanted>, wanted: Wanted) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_closed());
        let place = threads.iter().position(|thread| thread.same_channel(this));
        if let Some(place) = place.filter(|_| wanted.asked < threads.len()) {
            let asked = wanted.asked + 1;
            let _ = threads[(place + 1) % threads.len()].send(Wanted { asked, ..wanted });
        }
    }

    pub(crate) fn count(&self, source: IpAddr) -> usize {
        self.counts().get(&source).copied().unwrap_or(0)
    }

    pub(crate) fn began(&self, source: IpAddr) {
        *self.counts().entry(source).or_default() += 1;
    }

    pub(crate) fn ended(&self, source: IpAddr) {
        count_down(&mut self.counts(), source);
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
