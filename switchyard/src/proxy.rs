//! The running proxy.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use switchyard_core::{
    config::NodeConfig,
    engine::{Engine, EngineError},
    objects::{Event, Kind, Object, ObjectKey},
    proxier::{Backend, Profile, ProxierError, SyncReport},
    runner::{EngineEvent, Input, Observer, RunnerConfig},
};
use tokio::{
    runtime,
    sync::{
        broadcast,
        mpsc::{Sender, error::TrySendError},
        oneshot, watch,
    },
};

use crate::{
    Builder,
    health::{ProxyHealth, http::connections::Connections},
    localhost,
};

/// A proxy of the Services on a node, which runs until it is stopped or dropped. The kernel is left
/// as it is then, so that traffic goes on; a later proxy takes over what it finds.
pub struct Proxy {
    engine: Engine,
    backend: Arc<dyn Backend>,
    handle: Handle,
    health: Arc<ProxyHealth>,
    connections: Arc<Connections>,
    reports: broadcast::Sender<SyncReport>,
    /// The reports since the start, for the first that asks.
    first_reports: Mutex<Option<broadcast::Receiver<SyncReport>>>,
    servers: Servers,
}

/// The thread of the servers, which ends with this value.
pub(crate) struct Servers {
    stop: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Servers {
    /// Starts a thread that runs what `serve` returns until this value is dropped.
    pub(crate) fn start(
        serve: impl Future<Output = Infallible> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (alive, ended) = oneshot::channel::<()>();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let body = move || {
            let _alive = alive;
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    never = serve => match never {},
                }
            });
        };
        let thread = thread::Builder::new().name("servers".into()).spawn(body)?;
        Ok(Self { stop: Some(stop), ended, thread: Some(thread) })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Why a proxy could not be stopped, or its rules not be removed.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The engine had ended by a panic.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Something is left in the kernel.
    #[error(transparent)]
    Backend(#[from] ProxierError),
}

impl Proxy {
    /// Begins to describe a proxy for this node.
    pub fn builder(node: NodeConfig) -> Builder {
        Builder::new(node)
    }

    pub(crate) fn new(
        engine: Engine,
        backend: Arc<dyn Backend>,
        handle: Handle,
        health: Arc<ProxyHealth>,
        connections: Arc<Connections>,
        (reports, received): (broadcast::Sender<SyncReport>, broadcast::Receiver<SyncReport>),
        servers: Servers,
    ) -> Self {
        let first_reports = Mutex::new(Some(received));
        Self { engine, backend, handle, health, connections, reports, first_reports, servers }
    }

    /// Replaces all objects of a kind: those that are not in `objects` are gone. Nothing is
    /// programmed before Services and EndpointSlices have been listed so. Blocks while many inputs
    /// are queued; see
    /// [`Handle::send`] for async programs.
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

    /// Sends any input. Blocks as [`replace`](Self::replace) does.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub fn send(&self, input: impl Into<Input>) -> Result<(), EngineError> {
        let inputs = &self.handle.inputs;
        let input = match inputs.try_send(input.into()) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(EngineError::Ended),
            Err(TrySendError::Full(input)) => input,
        };
        // A thread of a runtime may not wait by itself.
        let sent =
            thread::scope(|scope| scope.spawn(|| inputs.blocking_send(input).is_ok()).join());
        if matches!(sent, Ok(true)) { Ok(()) } else { Err(EngineError::Ended) }
    }

    /// Returns a handle for async programs and changes of the configuration. Handles do not keep
    /// the proxy running.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns a receiver of the reports of successful syncs: the first call one with those since
    /// the start, a later call one with those from now on.
    pub fn reports(&self) -> Reports {
        let first = self.first_reports.lock().unwrap_or_else(PoisonError::into_inner).take();
        Reports(first.unwrap_or_else(|| self.reports.subscribe()))
    }

    /// The properties of the backend on this node.
    pub fn profile(&self) -> Profile {
        self.handle.profile
    }

    /// The health of the proxy.
    pub fn health(&self) -> Arc<ProxyHealth> {
        Arc::clone(&self.health)
    }

    /// The connections to the servers of health check node ports, with a limit that other servers
    /// can share.
    pub fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }

    /// Waits until the proxy ends by itself, which only a panic makes it do.
    pub async fn ended(&mut self) {
        tokio::select! {
            () = self.engine.ended() => {}
            // Nothing is sent: the thread drops the sender.
            _ = &mut self.servers.ended => {}
        }
    }

    /// Stops the proxy. Inputs that are not synced yet are dropped; the kernel is left as it is.
    /// Blocks until a sync that is under way has ended.
    ///
    /// # Errors
    /// [`StopError::Engine`] if the engine had panicked.
    pub fn stop(self) -> Result<(), StopError> {
        self.end().map(drop)
    }

    /// Stops the proxy, and removes everything that the backend programs. Rules that keep other
    /// hosts from loopback addresses stay as long as the kernel routes these.
    ///
    /// # Errors
    /// [`StopError::Backend`] if something is left.
    pub fn clean_up(self) -> Result<(), StopError> {
        Ok(self.end()?.clean_up(None)?)
    }

    fn end(self) -> Result<Arc<dyn Backend>, StopError> {
        let Self { engine, backend, servers, .. } = self;
        drop(servers);
        drop(engine.stop()?);
        Ok(backend)
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

    /// Waits for the next report, in a thread without a runtime; `None` when the proxy has ended.
    pub fn blocking_recv(&mut self) -> Option<SyncReport> {
        loop {
            match self.0.blocking_recv() {
                Ok(report) => return Some(report),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Sends the reports of syncs.
pub(crate) struct SendReports(pub(crate) broadcast::Sender<SyncReport>);

impl Observer for SendReports {
    fn on_event(&self, event: &EngineEvent<'_>) {
        if let EngineEvent::Synced(outcome) = event {
            // Nobody may listen any more.
            let _ = self.0.send(outcome.report.clone());
        }
    }
}

/// Inputs and changes of the configuration of a proxy, which may have ended.
#[derive(Clone)]
pub struct Handle {
    inputs: Sender<Input>,
    profile: Profile,
    health: Arc<ProxyHealth>,
    /// The configuration of the node as it was asked for.
    asked: watch::Sender<NodeConfig>,
    /// The configuration of the node that is in effect.
    node: watch::Sender<NodeConfig>,
}

impl Handle {
    pub(crate) fn new(
        inputs: Sender<Input>,
        profile: Profile,
        health: Arc<ProxyHealth>,
        asked: watch::Sender<NodeConfig>,
        node: watch::Sender<NodeConfig>,
    ) -> Self {
        Self { inputs, profile, health, asked, node }
    }

    /// The sender of the proxy's inputs, which are applied in the order in which they are sent.
    pub fn inputs(&self) -> Sender<Input> {
        self.inputs.clone()
    }

    /// Sends an input. Waits while many inputs are queued.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn send(&self, input: impl Into<Input>) -> Result<(), EngineError> {
        self.inputs.send(input.into()).await.map_err(|_| EngineError::Ended)
    }

    /// Changes the configuration of the node, with [`NodeConfig::localhost_node_ports`] as it is.
    /// The name stays.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn set_node(&self, mut node: NodeConfig) -> Result<(), EngineError> {
        self.asked.send_replace(node.clone());
        localhost::check(&self.profile, &mut node);
        if *self.node.borrow() == node {
            return Ok(());
        }
        self.node.send_replace(node.clone());
        self.send(Input::Node(node)).await
    }

    /// Changes the timing of syncs.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn set_timing(&self, timing: RunnerConfig) -> Result<(), EngineError> {
        self.health.set_timeout(Self::health_timeout(&timing));
        self.send(Input::Timing(timing)).await
    }

    /// The time that a requested sync may be outstanding before the proxy is unhealthy.
    pub(crate) fn health_timeout(timing: &RunnerConfig) -> Duration {
        2 * timing.longest_retry
    }
}
