//! The running proxy: an engine, and around it the source of objects, the servers, and the reader
//! of configuration changes.
//!
//! ```text
//! source of objects ─────┐                                      ┌─► logs
//! interface addresses ───┼─► engine (a thread of its own) ──────┼─► metrics ─► HTTP servers
//! configuration changes ─┘      │                               └─► health ──► HTTP servers
//!                               ▼
//!                            kernel
//! ```
//!
//! [`reload`](crate::reload) decides what a change of the configuration does.
//!
//! The engine has a thread of its own because a commit blocks it. Nothing here ends by itself, and
//! signals keep their default dispositions: a signal ends the program at once, and the rules in the
//! kernel stay.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use jiff::Timestamp;
use switchyard_core::{
    engine::{Engine, EngineError},
    error::ErrorChain,
    model::{IpFamily, PerFamily},
    proxier::{Backend, Mode, Proxier},
};
use switchyard_health::{
    HealthCheckUpdates, NotServed, ProxyHealth, ServiceHealthServers,
    http::{
        Handler,
        connections::{Connections, Limits},
    },
};
use switchyard_interfaces::AddressFollower;
use switchyard_source_kube::WatchHealth;
use tokio::{runtime, sync::watch, task::JoinError};

use crate::config::{Loaded, flags::Flags, settings::Settings, version};
use crate::observability::{
    engine_observer::EngineObserver,
    http::{
        healthz::HealthzHandler,
        metrics::{ConfigPages, MetricsHandler},
        rebind::{self, ServerAddress},
    },
    metrics::Metrics,
};
use crate::{
    adapters::{ObservedRequests, SourceWatches},
    conntrack, descriptors,
    localhost::{self, RouteLocalnet, sockets},
    logging,
    node::watch::{self as node_watch, NodeChecks, NodeError, NodeWatch},
    node_events::{self, Event, Recorder, UnsupportedEvents},
    reload::{LiveParts, Reloader},
    source_task::{self, ApiServerLink, SourceError},
};

/// How long the program waits, before it ends, until the Event with the reason is sent.
const FINAL_EVENT_WAIT: Duration = Duration::from_secs(3);
/// The number of threads for the source and the servers.
const WORKERS: usize = 2;

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The metrics cannot be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    /// The engine could not be started.
    #[error(transparent)]
    Start(#[from] EngineError),
    /// The threads of the sources and servers could not be started.
    #[error("cannot start a thread")]
    Runtime(#[source] io::Error),
    /// The source of objects failed.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The program cannot work on this node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An address could not be bound, which is fatal with `bindAddressHardFail`.
    #[error("cannot serve {0}")]
    Server(&'static str, #[source] io::Error),
    /// A changed field of the configuration file requires a restart, by the program's supervisor.
    #[error("content of the proxy server's configuration file was updated")]
    ConfigurationChanged,
    /// A task panicked.
    #[error("a task ended unexpectedly")]
    Task(#[source] JoinError),
    /// The engine ended, which happens only in a panic.
    #[error("the engine ended unexpectedly")]
    Engine,
}

/// The backend that serves, open.
pub struct Serving {
    /// The backend.
    pub proxier: Box<dyn Proxier>,
    /// The families that it programs.
    pub families: PerFamily<bool>,
    /// The backends of other modes, which may have left something behind.
    pub conflicting: Vec<Arc<dyn Backend>>,
    /// Why another mode than the configured one was chosen, if so.
    pub warning: Option<String>,
}

/// Proxies until something makes the program end, and returns the reason. `settings` are those of the
/// mode, and `loaded` is the configuration that `flags` led to.
pub fn run(
    settings: &Settings,
    loaded: &Loaded,
    flags: &Flags,
    Serving { proxier, families: supported, conflicting, warning }: Serving,
) -> Result<Infallible, RunError> {
    let config = &loaded.config;
    let profile = proxier.profile();
    let families: Vec<IpFamily> =
        IpFamily::ALL.into_iter().filter(|family| *supported.get(*family)).collect();
    let health = Arc::new(ProxyHealth::new(settings.periods.health_timeout()));
    let release = version::reported(flags);
    let metrics = Arc::new(Metrics::new(profile.mode, &families, &config.feature_gates, release)?);
    let observer = EngineObserver::new(Arc::clone(&metrics));
    health.started(&families, Timestamp::now());
    let updates = HealthCheckUpdates::default();
    let flows = conntrack::start(&profile, Arc::clone(&metrics));
    let health_checks = updates.receiver();
    let node = Arc::new(NodeWatch::new(NodeChecks::new(config, settings, supported)));
    let (known_node, node_failure) = (node.known(), node.failure());

    let (recorder, event_queue) = node_events::recorder();
    let unsupported = UnsupportedEvents::new(recorder.clone(), settings.node.node_name.clone());
    let (synced_ports, node_ports) = sockets::channel(profile.mode == Mode::NFTABLES);
    let (ipv6_localhost, is_on) = watch::channel(settings.serves_ipv6_localhost && supported.v6);
    let mut engine = Engine::builder(settings.node.clone())
        .timing(settings.periods.runner_config())
        .node_patience(node_watch::patience(&settings.source))
        .node_check({
            let node = Arc::clone(&node);
            move |facts| node.check(facts)
        })
        .observer(Arc::new((
            (Arc::clone(&health), (observer, updates)),
            ((flows, RouteLocalnet::new(&profile)), (node, (unsupported, synced_ports))),
        )))
        .addresses(
            AddressFollower::new()
                .without(switchyard_ipvs::DEVICE)
                .without(switchyard_userspace::DEVICE),
        )
        .conflicting(conflicting)
        .start(proxier)?;

    if let Some(why) = warning {
        recorder.record(Event::mode_replaced(why));
    }
    recorder.record(Event::starting());
    let not_served = not_served(recorder.clone(), settings.node.node_name.clone());
    let connections = Connections::new(Limits::new(descriptors::limit()));
    let service_health = ServiceHealthServers::new(
        Arc::clone(&health),
        families,
        Arc::clone(&connections),
        not_served,
    );

    let link = ApiServerLink {
        watches: WatchHealth::new(),
        recorded: event_queue,
        requests: Arc::new(ObservedRequests(metrics.requests.clone())),
    };
    let watches = Arc::new(SourceWatches(link.watches.clone()));
    let healthz = HealthzHandler::new(Arc::clone(&health), Arc::clone(&metrics), watches.clone());
    let (pages, shown_pages) = watch::channel(ConfigPages::new(settings, config));
    let exposition =
        MetricsHandler::new(Arc::clone(&metrics), watches, shown_pages, logging::set_verbosity);
    let addresses = rebind::addresses(&settings.servers).map(watch::Sender::new);
    let servers = serve(
        addresses.each_ref().map(watch::Sender::subscribe),
        Arc::new(healthz),
        Arc::new(exposition),
        connections,
    );

    let (node_config, current_config) = watch::channel(settings.node.clone());
    let parts = LiveParts {
        inputs: engine.inputs(),
        health,
        addresses,
        pages,
        metrics,
        recorder: recorder.clone(),
        node: known_node,
        supported,
        profile,
        node_config,
        ipv6_localhost,
    };
    let localhost = sockets::serve(node_ports, is_on, Arc::clone(&parts.metrics));
    let reloader = Reloader::new(flags.clone(), loaded, settings.clone(), parts);
    let (source, node_name) = (settings.source.clone(), settings.node.node_name.clone());
    let (objects, inputs) = (engine.inputs(), engine.inputs());
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let error = runtime.block_on(async {
        let serving = tokio::spawn(async move {
            let error = tokio::select! {
                error = servers => error,
                never = service_health.run(health_checks) => match never {},
            };
            if let RunError::Server(server, _) = &error {
                recorder.record(Event::server_failed(server, ErrorChain(&error).to_string()));
                recorder.flush(FINAL_EVENT_WAIT).await;
            }
            error
        });
        let sourcing =
            tokio::spawn(async move { source_task::run(&source, &node_name, objects, link).await });
        tokio::select! {
            () = engine.ended() => RunError::Engine,
            error = node_watch::failed(node_failure) => RunError::Node(error),
            error = sourcing => error.map_or_else(RunError::Task, RunError::Source),
            error = serving => error.unwrap_or_else(RunError::Task),
            () = reloader.run() => RunError::ConfigurationChanged,
            never = localhost::watch(&profile, current_config, inputs) => match never {},
            never = localhost => match never {},
        }
    });
    // The remaining tasks need not end before the program does.
    runtime.shutdown_background();
    Err(error)
}

/// Serves health and metrics. Ends only with a failure that is fatal by the configuration.
async fn serve(
    [healthz_address, metrics_address]: [watch::Receiver<ServerAddress>; 2],
    healthz: Arc<dyn Handler>,
    metrics: Arc<dyn Handler>,
    connections: Arc<Connections>,
) -> RunError {
    tokio::select! {
        error = rebind::serve("healthz", healthz_address, healthz, Arc::clone(&connections)) => {
            RunError::Server("healthz", error)
        }
        error = rebind::serve("metrics", metrics_address, metrics, connections) => {
            RunError::Server("metrics", error)
        }
    }
}

/// Returns a function that logs that a Service's health cannot be served, and records an Event.
fn not_served(recorder: Recorder, node: String) -> impl Fn(NotServed<'_>) + Send + 'static {
    move |NotServed { service, address, error }| {
        tracing::error!(%service, %address, err = %ErrorChain(error), "Failed to start healthcheck");
        let note =
            format!("node {node} failed to start healthcheck \"{service}\" on {address}: {error}");
        recorder.record(Event::service_health_failed(service, note));
    }
}
