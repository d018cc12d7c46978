//! The running proxy.

use std::{
    future::pending,
    mem,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use switchyard_core::{
    config::NodeConfig,
    engine::{Engine, EngineError},
    objects::{Event, Kind, Object, ObjectKey},
    proxier::{Backend, Forwards, Profile, ProxierError, SyncReport},
    runner::{EngineEvent, Input, Observer, RunnerConfig},
    worker::Worker,
};
use tokio::{
    sync::{
        broadcast,
        mpsc::{Permit, Sender},
        watch,
    },
    task::unconstrained,
};

use crate::{
    Builder,
    health::{ProxyHealth, http::connections::Connections},
    localhost::Node,
    namespace::Namespace,
};

/// The interval at which connections are looked at while they are waited for.
const LOOK: Duration = Duration::from_millis(20);

/// A proxy of the Services on a node, which runs until it is stopped or dropped. The kernel is left
/// as it is then, so that traffic goes on; a later proxy takes over what it finds.
pub struct Proxy {
    pub(crate) servers: Worker<()>,
    pub(crate) sockets: Option<Worker<()>>,
    /// Closed when the thread that removes conntrack entries has ended.
    pub(crate) reconciling: Option<watch::Sender<()>>,
    pub(crate) engine: Engine,
    pub(crate) forwards: Option<Forwards>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) handle: Handle,
    pub(crate) connections: Arc<Connections>,
    /// The sender, which the engine has.
    pub(crate) reports: broadcast::WeakSender<SyncReport>,
    /// The reports since the start, for the first that asks.
    pub(crate) first_reports: Mutex<Option<broadcast::Receiver<SyncReport>>>,
}

impl Proxy {
    /// Begins to describe a proxy for this node.
    pub fn builder(node: NodeConfig) -> Builder {
        Builder::new(node)
    }

    /// Replaces all objects of a kind: those that are not in `objects` are gone. Nothing is
    /// programmed before Services and EndpointSlices have been listed so. Blocks while many inputs
    /// are queued; see [`Handle::send`] for async programs.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub fn replace(
        &self,
        kind: Kind,
        objects: impl IntoIterator<Item = Object>,
    ) -> Result<(), EngineError> {
        let objects = objects.into_iter().collect();
        self.send(Event::Replace { kind, objects, malformed: Vec::new() })
    }

    /// Adds an object, or changes it. Blocks as [`replace`](Self::replace) does.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub fn apply(&self, object: impl Into<Object>) -> Result<(), EngineError> {
        self.send(Event::Apply(object.into()))
    }

    /// Removes an object. Blocks as [`replace`](Self::replace) does.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub fn delete(&self, key: ObjectKey) -> Result<(), EngineError> {
        self.send(Event::Delete(key))
    }

    /// Sends any input, as [`Handle::send`] does. Blocks as [`replace`](Self::replace) does.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub fn send(&self, input: impl Into<Input>) -> Result<(), EngineError> {
        block_on(self.handle.send(input))
    }

    /// Returns a handle for async programs and changes of the configuration. Handles do not keep
    /// the proxy running, but they keep its network namespace.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns a receiver of the reports of successful syncs: the first call one with those since
    /// the start, a later call one with those from now on.
    pub fn reports(&self) -> Reports {
        let first = self.first_reports.lock().unwrap_or_else(PoisonError::into_inner).take();
        let later = || self.reports.upgrade().map(|reports| reports.subscribe());
        // Nothing is sent when the engine has ended.
        Reports(first.or_else(later).unwrap_or_else(|| broadcast::channel(1).1))
    }

    /// The properties of the backend on this node.
    pub fn profile(&self) -> Profile {
        self.handle.profile
    }

    /// The health of the proxy.
    pub fn health(&self) -> Arc<ProxyHealth> {
        Arc::clone(&self.handle.health)
    }

    /// The connections to the servers of health check node ports, with a limit that other servers
    /// can share.
    pub fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }

    /// Waits until a thread of the proxy ends by itself, which only a panic makes it do.
    pub async fn ended(&self) {
        let sockets = async {
            match &self.sockets {
                Some(sockets) => sockets.ended().await,
                None => pending().await,
            }
        };
        let reconciling = async {
            match &self.reconciling {
                Some(reconciling) => reconciling.closed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.engine.ended() => {}
            () = self.servers.ended() => {}
            () = sockets => {}
            () = reconciling => {}
        }
    }

    /// Stops the proxy. Inputs that are not synced yet are dropped; the kernel is left as it is.
    /// Blocks until a sync that is under way has ended.
    ///
    /// # Errors
    /// [`EngineError::Panicked`]
    pub fn stop(self) -> Result<(), EngineError> {
        let Self { servers, sockets, engine, .. } = self;
        drop((servers, sockets));
        engine.stop().map(drop)
    }

    /// Stops the proxy, as [`stop`](Self::stop) does, but lets the connections that the proxy itself
    /// forwards go on until they end, at most for a time. New ones are accepted, and inputs synced,
    /// until then, or until the last tenth of the time: a successor may start only when the program
    /// has ended. The proxy is not healthy any more. Blocks until the end. A sync that is under way
    /// takes of this time, and may exceed it; new connections wait then for the successor.
    ///
    /// # Errors
    /// [`EngineError::Panicked`], [`EngineError::Thread`]
    pub fn drain(self, limit: Duration) -> Result<(), EngineError> {
        let Self { servers, sockets, engine, forwards, handle, .. } = self;
        let start = Instant::now();
        handle.health.ending();
        drop((servers, sockets));
        let are_accepted = || start.elapsed() < limit - limit / 10;
        while forwards.as_ref().is_some_and(|forwards| (forwards.are_there)()) && are_accepted() {
            thread::sleep(LOOK);
        }
        let stopping = thread::Builder::new().spawn(|| engine.stop());
        let stopping = stopping.map_err(EngineError::Thread)?;
        while !stopping.is_finished() && are_accepted() {
            thread::sleep(LOOK);
        }
        if let Some(Forwards { pause, .. }) = forwards.filter(|_| !stopping.is_finished()) {
            handle.namespace.run(pause);
        }
        let mut proxier = stopping.join().map_err(|_| EngineError::Panicked)??;
        let drain = move || proxier.drain(limit.saturating_sub(start.elapsed()));
        handle.namespace.run(drain).ok_or(EngineError::Panicked)
    }

    /// Stops the proxy, and removes everything that the backend programs, also after a panic. Rules
    /// that keep other hosts from loopback addresses stay as long as the kernel routes these.
    ///
    /// # Errors
    /// If something is left.
    pub fn clean_up(self) -> Result<(), ProxierError> {
        let (backend, namespace) = (Arc::clone(&self.backend), self.handle.namespace.clone());
        let mode = self.handle.profile.mode;
        drop(self);
        let cleaned = namespace.run(move || backend.clean_up(None));
        cleaned
            .unwrap_or_else(|| Err(ProxierError::backend(mode, "cannot clean up", "it panicked")))
    }
}

/// Waits for a future on this thread, which may be one of a runtime.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(thread::current())).into();
    // In a task, tokio would have the future yield to others, which it cannot.
    let mut future = pin!(unconstrained(future));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// The reports of successful syncs. A reader that is late misses the oldest ones.
#[derive(Debug)]
pub struct Reports(broadcast::Receiver<SyncReport>);

impl Reports {
    /// Waits for the next report; `None` when the proxy has ended.
    pub async fn recv(&mut self) -> Option<SyncReport> {
        loop {
            match self.0.recv().await {
                Ok(report) => return Some(report),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Waits for the next report, and blocks; `None` when the proxy has ended.
    pub fn blocking_recv(&mut self) -> Option<SyncReport> {
        block_on(self.recv())
    }
}

/// Sends the reports of syncs, and records the end of the engine, which drops its observers then.
pub(crate) struct SendReports(
    pub(crate) broadcast::Sender<SyncReport>,
    pub(crate) Arc<ProxyHealth>,
);

impl Observer for SendReports {
    fn on_event(&self, event: &EngineEvent<'_>) {
        if let EngineEvent::Synced(outcome) = event {
            // It fails without a receiver.
            let _ = self.0.send(outcome.report.clone());
        }
    }
}

impl Drop for SendReports {
    fn drop(&mut self) {
        self.1.ended();
    }
}

/// Inputs and changes of the configuration of a proxy, which may have ended.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inputs: Sender<Input>,
    pub(crate) profile: Profile,
    pub(crate) health: Arc<ProxyHealth>,
    pub(crate) node: watch::Sender<Node>,
    pub(crate) namespace: Namespace,
}

impl Handle {
    /// The sender of the proxy's inputs, which are applied in the order in which they are sent. It
    /// is for sources of objects: a configuration that is sent there does not reach the whole
    /// proxy.
    pub fn inputs(&self) -> Sender<Input> {
        self.inputs.clone()
    }

    /// Sends an input. Waits while many inputs are queued. A configuration is set as by
    /// [`set_node`](Self::set_node), the timing as by [`set_timing`](Self::set_timing).
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn send(&self, input: impl Into<Input>) -> Result<(), EngineError> {
        match input.into() {
            Input::Node(node) => self.set_node(node).await,
            Input::Timing(timing) => self.set_timing(timing).await,
            input => {
                self.reserve().await?.send(input);
                Ok(())
            }
        }
    }

    /// Changes the configuration of the node. The names of the node and of the proxy stay, and so
    /// do [`NodeConfig::loopback_endpoints`] and [`NodeConfig::localhost_node_ports`]: see
    /// [`set_localhost`](Self::set_localhost).
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn set_node(&self, node: NodeConfig) -> Result<(), EngineError> {
        self.change(|asked| {
            let before = mem::replace(asked, node);
            asked.node_name = before.node_name;
            asked.localhost_node_ports = before.localhost_node_ports;
        })
        .await
    }

    /// Changes whether node ports are served on loopback addresses, as
    /// [`Builder::localhost`] does.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn set_localhost(&self, localhost: bool) -> Result<(), EngineError> {
        self.change(|asked| asked.localhost_node_ports = localhost).await
    }

    async fn change(&self, change: impl FnOnce(&mut NodeConfig)) -> Result<(), EngineError> {
        // With a place for the input, all happens at once or not at all, and the last of several
        // callers has the last word everywhere.
        let permit = self.reserve().await?;
        self.node.send_modify(|node| {
            let mut asked = node.asked.clone();
            change(&mut asked);
            let profile = self.profile;
            let Some(changed) = self.namespace.run(move || Node::new(asked, &profile)) else {
                return;
            };
            if changed.used != node.used {
                permit.send(Input::Node(changed.used.clone()));
            }
            *node = changed;
        });
        Ok(())
    }

    /// Changes the timing of syncs.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn set_timing(&self, timing: RunnerConfig) -> Result<(), EngineError> {
        let permit = self.reserve().await?;
        // The lock keeps several callers in order.
        self.node.send_if_modified(|_| {
            self.health.set_timeout(Self::health_timeout(&timing));
            permit.send(Input::Timing(timing));
            false
        });
        Ok(())
    }

    async fn reserve(&self) -> Result<Permit<'_, Input>, EngineError> {
        self.inputs.reserve().await.map_err(|_| EngineError::Ended)
    }

    /// The time that a requested sync may be outstanding before the proxy is unhealthy.
    pub(crate) fn health_timeout(timing: &RunnerConfig) -> Duration {
        timing.longest_retry.saturating_mul(2)
    }
}

#[cfg(test)]
mod tests;
