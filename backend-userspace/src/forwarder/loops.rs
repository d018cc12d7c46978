//! The threads of a forwarder, each with an event loop of its own: what a thread has accepted stays
//! there, and nothing changes between threads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    time::timeout,
};

use crate::forwarder::slots::Slots;

/// The interval of a timer that ends before those that connections set, which are longer. A new
/// timer that would be the first to end costs a system call, and wakes the thread for nothing.
const TICK: Duration = Duration::from_millis(200);

/// The same while there is no connection.
const LONG_TICK: Duration = Duration::from_secs(1);

/// The file descriptors of a thread's event loop: an instance of epoll and its copy, what wakes it
/// and, in a program that takes signals by Tokio, a copy of what these come by.
pub(crate) const DESCRIPTORS: usize = 4;

/// The event loops of all threads.
pub(crate) struct Loops {
    handles: Vec<Handle>,
    turns: AtomicUsize,
}

/// The threads, which end when the value is dropped, and with them all their tasks.
#[derive(Default)]
pub(crate) struct Threads(Vec<(oneshot::Sender<()>, JoinHandle<()>)>);

impl Loops {
    /// Starts threads, in the network namespace of the calling thread.
    pub(crate) fn start(count: usize, slots: &Arc<Slots>) -> io::Result<(Arc<Self>, Threads)> {
        let (mut handles, mut threads) = (Vec::new(), Threads::default());
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
            handles.push(runtime.handle().clone());
            let (stop, mut stopped) = oneshot::channel();
            let slots = Arc::clone(slots);
            let tick = move || if slots.taken() == 0 { LONG_TICK } else { TICK };
            let serve = async move { while timeout(tick(), &mut stopped).await.is_err() {} };
            let thread = thread::Builder::new().name("forwarder".to_owned());
            threads.0.push((stop, thread.spawn(move || runtime.block_on(serve))?));
        }
        Ok((Arc::new(Self { handles, turns: AtomicUsize::new(0) }), threads))
    }

    /// Returns all loops, beginning with another one each time.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Handle> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed) % self.handles.len().max(1);
        let (later, first) = self.handles.split_at(turn);
        first.iter().chain(later)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let (stops, threads): (Vec<_>, Vec<_>) = self.0.drain(..).unzip();
        drop(stops);
        for thread in threads {
            let _ = thread.join();
        }
    }
}
