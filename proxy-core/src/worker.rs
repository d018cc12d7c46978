//! Threads with a runtime, which neither hold up the thread that starts them nor need its runtime.

use std::{
    io,
    thread::{Builder, JoinHandle, current},
};

use tokio::{runtime, sync::watch};

/// A thread that runs one future until the value is dropped.
pub struct Worker<T> {
    /// The thread holds a receiver as long as it runs.
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<Option<T>>>,
}

/// The receiver of the request to stop.
#[derive(Debug)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Waits until the worker is to end.
    pub async fn requested(mut self) {
        // An error is the end of the worker's owner.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

/// A runtime that can be dropped anywhere, also by an async program, and waits for no blocking task
/// then.
struct Runtime(Option<runtime::Runtime>);

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread, in the network namespace of the calling thread. `work` should end when it
    /// is [requested](Stop::requested).
    ///
    /// # Errors
    /// If the system has no thread or no file descriptors for it.
    pub fn start<F: Future<Output = T>>(
        name: String,
        work: impl FnOnce(Stop) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let runtime = Runtime(Some(runtime));
        let (stop, running) = watch::channel(false);
        let body = move || {
            // Dropped in reverse order: the worker has ended when all that it held is gone.
            let running = running;
            let runtime = runtime;
            runtime.0.as_ref().map(|runtime| runtime.block_on(work(Stop(running.clone()))))
        };
        let thread = Builder::new().name(name).spawn(body)?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Waits until the thread has ended.
    pub async fn ended(&self) {
        self.stop.closed().await;
    }

    /// Stops the thread, and returns the result of the future; `None` after a panic. Blocks until
    /// the thread has ended, except on that thread, where there is no result.
    pub fn stop(mut self) -> Option<T> {
        self.join()
    }
}

impl<T> Worker<T> {
    fn join(&mut self) -> Option<T> {
        self.stop.send_replace(true);
        let thread = self.thread.take().filter(|thread| thread.thread().id() != current().id())?;
        // A panic was reported when it happened.
        thread.join().ok()?
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        drop(self.join());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    #[tokio::test]
    async fn a_runtime_can_be_dropped_by_a_task() {
        drop(Runtime(Some(runtime::Builder::new_current_thread().build().unwrap())));
    }

    /// An observer of an engine may drop the engine.
    #[test]
    fn a_worker_can_be_dropped_on_its_thread() {
        let own = Arc::new(Mutex::new(None));
        let (dropped, drops) = mpsc::channel();
        let theirs = Arc::clone(&own);
        let (started, starts) = mpsc::channel::<()>();
        let work = move |stop: Stop| async move {
            starts.recv().unwrap();
            drop(theirs.lock().unwrap().take());
            stop.requested().await;
            dropped.send(()).unwrap();
        };
        *own.lock().unwrap() = Some(Worker::start("own".to_owned(), work).unwrap());
        started.send(()).unwrap();
        drops.recv().unwrap();
    }
}
