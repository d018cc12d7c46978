//! The task of a listener, whose end can be waited for.

use std::{
    pin::Pin,
    sync::mpsc::{Receiver, Sender, channel},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::AbortHandle};

/// The time to wait for tasks to end. They end at once, unless the threads are overloaded, and then
/// the caller should not hang.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Task {
    abort: AbortHandle,
    ended: Receiver<()>,
}

/// The future of a [`Task`]. Fields are dropped in order: the sender after the sockets of the
/// future.
struct Running {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    _running: Sender<()>,
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.future.as_mut().poll(context)
    }
}

impl Task {
    pub(crate) fn start(
        thread: &Handle,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let (running, ended) = channel();
        let running = Running { future: Box::pin(future), _running: running };
        Self { abort: thread.spawn(running).abort_handle(), ended }
    }

    /// Ends tasks, and waits until their sockets are closed, so that their addresses can be bound
    /// again.
    pub(crate) fn end_all(tasks: impl IntoIterator<Item = Self>) {
        let tasks: Vec<Self> = tasks.into_iter().collect();
        for task in &tasks {
            task.abort.abort();
        }
        let deadline = Instant::now() + PATIENCE;
        for task in tasks {
            // The sender is dropped without a message.
            let _ = task.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }
}
