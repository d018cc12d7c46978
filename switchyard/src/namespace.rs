//! The network namespace in which a proxy was started.
//!
//! A thread stays in the namespace: `/proc/sys/net` and the kernel's rules are those of the thread
//! that asks, and a program with proxies in several namespaces calls from any thread.

use std::{
    io,
    sync::mpsc::{Sender, channel},
    thread,
};

/// A thread in the namespace, which ends when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Namespace(Sender<Box<dyn FnOnce() + Send>>);

impl Namespace {
    /// Starts the thread, in the network namespace of the calling thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, work) = channel::<Box<dyn FnOnce() + Send>>();
        let body = move || work.into_iter().for_each(|work| work());
        thread::Builder::new().name("namespace".to_owned()).spawn(body)?;
        Ok(Self(sender))
    }

    /// Does some work in the namespace, and waits for the result; `None` after a panic.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = channel();
        self.0.send(Box::new(move || drop(sender.send(work())))).ok()?;
        result.recv().ok()
    }
}
