//! The engine: a tracker, a runner and a backend on a thread of their own.
//!
//! ```text
//! inputs ──────────────┐
//! interface addresses ─┼─► runner ─► backend ─► kernel
//! backend's monitor ───┘     │
//!                            └─► observer
//! ```
//!
//! An engine begins and ends as a whole: [`EngineBuilder::start`] starts the thread, and
//! [`Engine::stop`] ends the thread and returns the backend. The kernel is left as it is, so that
//! traffic goes on, and another engine (of this process or of a later one) takes the rules over.
//! Many engines can run in one process, one to a network namespace: everything that an engine
//! starts works in the namespace of the thread that called [`EngineBuilder::start`].

use std::{
    convert::Infallible, future::pending, io, panic::resume_unwind, pin::pin, sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};

pub use crate::model::InterfaceAddresses;
use crate::{
    config::NodeConfig,
    error::ErrorChain,
    model::Backoff,
    objects::Event,
    proxier::{Backend, ExternalChange, Monitor, Proxier},
    runner::{Input, NodeCheck, NodePatience, Observer, Runner, RunnerConfig},
    track::{NodeFacts, Tracker},
    worker::Worker,
};

/// The most inputs that wait for the engine while it commits. More would be memory: a slice may
/// take hundreds of kilobytes, and what is not received yet waits at the server.
const QUEUE: usize = 64;
/// The time that the first sync waits for the interface addresses.
const ADDRESSES_WAIT: Duration = Duration::from_secs(5);
/// The time to wait before interface addresses are asked for again after a failure.
const ADDRESSES_RETRY: Duration = Duration::from_secs(5);
/// The times to wait before a monitor is asked again after failures.
const MONITOR_RETRY: Backoff =
    Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(300) };

/// Why an engine could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The thread or its runtime could not be started.
    #[error("cannot start the engine's thread")]
    Thread(#[source] io::Error),
    /// The proxy has a [name](NodeConfig::service_proxy_name), and the backend does not stand
    /// beside another proxy's, or the other way round: one of the two would remove what the other
    /// has programmed, or serve the same Services.
    #[error("a backend stands beside another proxy if the proxy has a name, and only then")]
    NotBeside,
    /// The thread panicked, so that the backend is lost.
    #[error("the engine panicked")]
    Panicked,
    /// The engine has ended and takes no more inputs.
    #[error("the engine has ended")]
    Ended,
}

/// The settings of an [`Engine`]. All have defaults, except the node and the backend.
pub struct EngineBuilder {
    node: NodeConfig,
    timing: RunnerConfig,
    node_patience: Option<NodePatience>,
    node_check: Option<NodeCheck>,
    observer: Arc<dyn Observer>,
    addresses: Option<Box<dyn InterfaceAddresses>>,
    conflicting: Vec<Arc<dyn Backend>>,
}

impl EngineBuilder {
    /// The timing of syncs; kube-proxy's periods by default.
    pub fn timing(self, timing: RunnerConfig) -> Self {
        Self { timing, ..self }
    }

    /// The time that the first sync waits for facts of the Node, if the configuration takes
    /// anything from the Node. `None`, the default, is for sources that may have no Node: once the
    /// Nodes are listed, nothing more is waited for.
    pub fn node_patience(self, node_patience: Option<NodePatience>) -> Self {
        Self { node_patience, ..self }
    }

    /// Decides whether the configuration can work on this node; by default it can. Called once,
    /// when the Node states everything that the engine waits for, or the engine has given up to
    /// wait; `None` if there is no Node. That is before the first sync, if the configuration takes
    /// anything from the Node. After `false`, the engine reports [`EngineEvent::NodeRefused`], and
    /// makes no more syncs.
    ///
    /// [`EngineEvent::NodeRefused`]: crate::runner::EngineEvent::NodeRefused
    pub fn node_check(self, check: impl Fn(Option<&NodeFacts>) -> bool + Send + 'static) -> Self {
        Self { node_check: Some(Box::new(check)), ..self }
    }

    /// The receiver of reports; by default there is none.
    pub fn observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer, ..self }
    }

    /// The source of the addresses of the node's interfaces. Without a source, the caller sends
    /// [`Input::InterfaceAddresses`], or node ports are served only where whole networks are
    /// configured, or single addresses.
    pub fn addresses(self, addresses: impl InterfaceAddresses + 'static) -> Self {
        Self { addresses: Some(Box::new(addresses)), ..self }
    }

    /// Backends of other modes. What they left behind is removed once this engine's backend
    /// serves; a failed removal is repeated every minute.
    pub fn conflicting(self, conflicting: Vec<Arc<dyn Backend>>) -> Self {
        Self { conflicting, ..self }
    }

    /// Starts the engine, in the network namespace of the calling thread. The backend must have
    /// been opened in the same one.
    ///
    /// # Errors
    /// [`EngineError::Thread`], [`EngineError::NotBeside`]
    pub fn start(self, proxier: impl Proxier + 'static) -> Result<Engine, EngineError> {
        let Self { node, timing, node_patience, node_check, observer, addresses, conflicting } =
            self;
        let proxier: Box<dyn Proxier> = Box::new(proxier);
        if node.service_proxy_name.is_some() != proxier.profile().is_beside {
            return Err(EngineError::NotBeside);
        }
        let monitor = proxier.monitor();
        let runner = Runner::new(Tracker::new(node), proxier, timing, observer)
            .watched(monitor.as_ref().is_some_and(|monitor| monitor.misses_nothing()))
            .waiting_for_node(node_patience, node_check)
            .replacing(conflicting);
        let (inputs, received) = mpsc::channel(QUEUE);
        let to_self = inputs.clone();
        let worker = Worker::start("engine".to_owned(), move |stop| {
            live(runner, monitor, addresses, received, to_self, stop.requested())
        })
        .map_err(EngineError::Thread)?;
        Ok(Engine { inputs, worker })
    }
}

/// Runs all parts of an engine until the engine is stopped.
async fn live(
    mut runner: Runner,
    monitor: Option<Box<dyn Monitor>>,
    addresses: Option<Box<dyn InterfaceAddresses>>,
    received: Receiver<Input>,
    to_self: Sender<Input>,
    stop: impl Future<Output = ()>,
) -> Box<dyn Proxier> {
    let mut stop = pin!(stop);
    // The tasks end with the set.
    let mut tasks = JoinSet::new();
    if let Some(mut addresses) = addresses {
        let first = tokio::select! {
            biased;
            () = &mut stop => return runner.into_proxier(),
            first = timeout(ADDRESSES_WAIT, addresses.changed()) => first,
        };
        // The first sync should know the addresses.
        match first {
            Ok(Ok(first)) => runner.set_interface_addresses(first),
            Ok(Err(error)) => tracing::error!(
                err = %ErrorChain(&*error),
                "Failed to list the node's addresses; continuing without them"
            ),
            Err(_) => tracing::error!(
                "Listing the node's addresses took longer than {ADDRESSES_WAIT:?}; continuing without them"
            ),
        }
        tasks.spawn(follow_addresses(addresses, to_self.clone()));
    }
    if let Some(monitor) = monitor {
        tasks.spawn(watch(monitor, to_self));
    }
    tokio::select! {
        proxier = runner.run(received, stop) => proxier,
        never = panicked(&mut tasks) => match never {},
    }
}

/// Panics as a task does: without its reports, the engine would take what it knows for true.
async fn panicked(tasks: &mut JoinSet<()>) -> Infallible {
    while let Some(ended) = tasks.join_next().await {
        if let Err(Ok(panic)) = ended.map_err(JoinError::try_into_panic) {
            resume_unwind(panic);
        }
    }
    pending().await
}

/// Sends the monitor's reports to the runner.
async fn watch(mut monitor: Box<dyn Monitor>, inputs: Sender<Input>) {
    let mut failures = 0_u32;
    loop {
        let change = match monitor.externally_changed().await {
            Ok(change) => {
                failures = 0;
                change
            }
            Err(error) => {
                if failures == 0 {
                    tracing::error!(
                        err = %ErrorChain(&error),
                        "Failed to watch for changes by other programs; retrying"
                    );
                }
                sleep(MONITOR_RETRY.delay(failures)).await;
                failures = failures.saturating_add(1);
                // Changes have gone unnoticed.
                ExternalChange::Suspected
            }
        };
        if inputs.send(Input::ExternallyChanged(change)).await.is_err() {
            return;
        }
    }
}

/// Sends the interface addresses whenever they change.
async fn follow_addresses(mut addresses: Box<dyn InterfaceAddresses>, inputs: Sender<Input>) {
    loop {
        match addresses.changed().await {
            Ok(found) => {
                if inputs.send(Input::InterfaceAddresses(found)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::error!(err = %ErrorChain(&*error), "Failed to watch the node's addresses");
                sleep(ADDRESSES_RETRY).await;
            }
        }
    }
}

/// A running proxy of one node. See the [module's documentation](self).
///
/// An engine that is dropped stops as by [`Engine::stop`].
pub struct Engine {
    inputs: Sender<Input>,
    worker: Worker<Box<dyn Proxier>>,
}

impl Engine {
    /// Begins to describe an engine for this node.
    pub fn builder(node: NodeConfig) -> EngineBuilder {
        EngineBuilder {
            node,
            timing: RunnerConfig::default(),
            node_patience: None,
            node_check: None,
            observer: Arc::new(()),
            addresses: None,
            conflicting: Vec::new(),
        }
    }

    /// Returns a handle for inputs, which are applied in the order in which they are sent. Handles
    /// do not keep the engine running.
    pub fn inputs(&self) -> Sender<Input> {
        self.inputs.clone()
    }

    /// Sends an event. Waits while many inputs are queued.
    ///
    /// # Errors
    /// [`EngineError::Ended`]
    pub async fn send(&self, event: Event) -> Result<(), EngineError> {
        self.inputs.send(event.into()).await.map_err(|_| EngineError::Ended)
    }

    /// Waits until the engine ends by itself, which only a panic makes it do.
    pub async fn ended(&self) {
        self.worker.ended().await;
    }

    /// Stops the engine and returns its backend. Inputs that are not synced yet are dropped; the
    /// kernel is left as it is. Blocks until a sync that is under way has ended, so that an
    /// observer, which is called by the engine's thread, must not stop its engine.
    ///
    /// # Errors
    /// [`EngineError::Panicked`]
    pub fn stop(self) -> Result<Box<dyn Proxier>, EngineError> {
        self.worker.stop().ok_or(EngineError::Panicked)
    }
}

#[cfg(test)]
mod tests {
    use std::{error, net::IpAddr};

    use async_trait::async_trait;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        proxier::{Mode, Profile, ProxierError, SyncReport},
        transition::Transition,
    };

    struct Idle;

    #[async_trait]
    impl Proxier for Idle {
        fn profile(&self) -> Profile {
            Profile::new(Mode::new("idle"))
        }

        async fn sync(&mut self, _: &Transition<'_>) -> Result<SyncReport, ProxierError> {
            Ok(SyncReport::default())
        }

        async fn clean_up(&mut self) -> Result<(), ProxierError> {
            Ok(())
        }
    }

    /// Lists of addresses, and failures, one after the other; then nothing.
    struct Scripted(Vec<Option<IpAddr>>);

    #[async_trait]
    impl InterfaceAddresses for Scripted {
        async fn changed(&mut self) -> Result<Vec<IpAddr>, Box<dyn error::Error + Send + Sync>> {
            match self.0.pop() {
                Some(Some(ip)) => Ok(vec![ip]),
                Some(None) => Err("no list".into()),
                None => pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_waits_for_addresses_stops_at_once() {
        let tracker = Tracker::new(NodeConfig::new("node-1"));
        let runner = Runner::new(tracker, Box::new(Idle), RunnerConfig::default(), Arc::new(()));
        let (inputs, received) = mpsc::channel(QUEUE);
        let start = Instant::now();
        let addresses: Box<dyn InterfaceAddresses> = Box::new(Scripted(Vec::new()));
        let stop = sleep(ADDRESSES_WAIT / 2);
        live(runner, None, Some(addresses), received, inputs, stop).await;
        assert_eq!(start.elapsed(), ADDRESSES_WAIT / 2);
    }

    /// Fails twice, reports a change, and fails again.
    struct Failing(u32);

    #[async_trait]
    impl Monitor for Failing {
        async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
            self.0 += 1;
            match self.0 {
                3 => Ok(ExternalChange::Changed { by: None }),
                _ => {
                    Err(ProxierError::backend(Mode::new("idle"), "no memory", io::Error::other("")))
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_monitor_that_fails_is_asked_again() {
        let (inputs, mut received) = mpsc::channel(1);
        let task = tokio::spawn(watch(Box::new(Failing(0)), inputs));
        let start = Instant::now();
        let mut reports = Vec::new();
        while reports.len() < 4 {
            let Some(Input::ExternallyChanged(change)) = received.recv().await else { panic!() };
            reports.push((change == ExternalChange::Suspected, start.elapsed().as_secs()));
        }
        assert_eq!(reports, [(true, 5), (true, 15), (false, 15), (true, 20)]);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_followed_after_a_failure() {
        let [first, second] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let (inputs, mut received) = mpsc::channel(QUEUE);
        let script = vec![Some(second), None, None, Some(first)];
        let task = tokio::spawn(follow_addresses(Box::new(Scripted(script)), inputs));
        let start = Instant::now();
        for (ip, after) in [(first, Duration::ZERO), (second, ADDRESSES_RETRY * 2)] {
            let Some(Input::InterfaceAddresses(found)) = received.recv().await else { panic!() };
            assert_eq!((found, start.elapsed()), (vec![ip], after));
        }
        task.abort();
    }
}
