//! The running program: a proxy, and around it the source of objects, the servers, and the reader
//! of configuration changes.
//!
//! ```text
//! source of objects ─────┐                              ┌─► logs
//!                        ├─► proxy (its own threads) ───┼─► metrics ─► HTTP servers
//! configuration changes ─┘      │                       └─► health ──► HTTP servers
//!                               ▼
//!                            kernel
//! ```
//!
//! [`reload`](crate::reload) decides what a change of the configuration does.
//!
//! Nothing here ends by itself, and
//! signals keep their default dispositions: a signal ends the program at once, and the rules in the
//! kernel stay.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use switchyard::{
    Proxy, StartError,
    health::{
        NotServed,
        http::{Handler, connections::Connections},
    },
};
use switchyard_core::{error::ErrorChain, model::IpFamily, proxier::Backend};
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
    backends, bridges, logging,
    node::watch::{self as node_watch, NodeChecks, NodeError, NodeWatch},
    node_events::{self, Event, Recorder, UnsupportedEvents},
    reload::{LiveParts, Reloader},
    select::Chosen,
    source_task::{self, ApiServerLink, SourceError},
};

/// The time that the program waits, before it ends, until the Event with the reason is sent.
const FINAL_EVENT_WAIT: Duration = Duration::from_secs(3);
/// The number of threads for the source and the servers.
const WORKERS: usize = 2;

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The metrics cannot be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    /// The table of backends lacks the chosen mode, which the choice of the mode rules out.
    #[error("there is no such backend")]
    NoBackend,
    /// The proxy could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
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

/// Proxies in the chosen mode until something makes the program end, and returns the reason.
/// `settings` are those of the mode, and `loaded` is the configuration that `flags` led to.
pub fn run(
    settings: &Settings,
    loaded: &Loaded,
    flags: &Flags,
    backends: Vec<Arc<dyn Backend>>,
    Chosen { mode, probed, warning, .. }: Chosen,
) -> Result<Infallible, RunError> {
    let config = &loaded.config;
    let backend = Arc::clone(backends::get(&backends, mode).ok_or(RunError::NoBackend)?);
    let supported = probed.families;
    let families: Vec<IpFamily> =
        IpFamily::ALL.into_iter().filter(|family| *supported.get(*family)).collect();
    let release = version::reported(flags);
    let metrics = Arc::new(Metrics::new(mode, &families, &config.feature_gates, release)?);
    let node = Arc::new(NodeWatch::new(NodeChecks::new(config, settings, supported)));
    let (known_node, node_failure) = (node.known(), node.failure());
    let (recorder, event_queue) = node_events::recorder();
    let unsupported = UnsupportedEvents::new(recorder.clone(), settings.node.node_name.clone());
    let observer = EngineObserver::new(Arc::clone(&metrics));
    let mut proxy = Proxy::builder(settings.node.clone())
        .shared_backend(backend)
        .probed(probed)
        .replacing(backends)
        .localhost(settings.node.localhost_node_ports)
        .timing(settings.periods.runner_config())
        .node_patience(node_watch::patience(&settings.source))
        .node_check({
            let node = Arc::clone(&node);
            move |facts| node.check(facts)
        })
        .observer((observer, (node, unsupported)))
        .on_reconciled({
            let metrics = Arc::clone(&metrics);
            move |report| metrics.flows_reconciled(report)
        })
        .on_ipv6_localhost({
            let metrics = Arc::clone(&metrics);
            move |open, failures| metrics.localhost_listeners(open, failures)
        })
        .on_not_served(not_served(recorder.clone(), settings.node.node_name.clone()))
        .start()?;
    bridges::check(&proxy.profile(), &settings.node);

    if let Some(why) = warning {
        recorder.record(Event::mode_replaced(why));
    }
    recorder.record(Event::starting());
    let link = ApiServerLink {
        watches: WatchHealth::new(),
        recorded: event_queue,
        requests: Arc::new(ObservedRequests(metrics.requests.clone())),
    };
    let watches = Arc::new(SourceWatches(link.watches.clone()));
    let healthz = HealthzHandler::new(proxy.health(), Arc::clone(&metrics), watches.clone());
    let (pages, shown_pages) = watch::channel(ConfigPages::new(settings, config));
    let exposition =
        MetricsHandler::new(Arc::clone(&metrics), watches, shown_pages, logging::set_verbosity);
    let addresses = rebind::addresses(&settings.servers).map(watch::Sender::new);
    let servers = serve(
        addresses.each_ref().map(watch::Sender::subscribe),
        Arc::new(healthz),
        Arc::new(exposition),
        proxy.connections(),
    );

    let parts = LiveParts {
        proxy: proxy.handle(),
        addresses,
        pages,
        metrics,
        recorder: recorder.clone(),
        node: known_node,
        supported,
    };
    let reloader = Reloader::new(flags.clone(), loaded, settings.clone(), parts);
    let (source, node_name) = (settings.source.clone(), settings.node.node_name.clone());
    let objects = proxy.handle().inputs();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let error = runtime.block_on(async {
        let serving = tokio::spawn(async move {
            let error = servers.await;
            if let RunError::Server(server, _) = &error {
                recorder.record(Event::server_failed(server, ErrorChain(&error).to_string()));
                recorder.flush(FINAL_EVENT_WAIT).await;
            }
            error
        });
        let sourcing =
            tokio::spawn(async move { source_task::run(&source, &node_name, objects, link).await });
        tokio::select! {
            () = proxy.ended() => RunError::Engine,
            error = node_watch::failed(node_failure) => RunError::Node(error),
            error = sourcing => error.map_or_else(RunError::Task, RunError::Source),
            error = serving => error.unwrap_or_else(RunError::Task),
            () = reloader.run() => RunError::ConfigurationChanged,
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

/// Returns a function that records an Event that a Service's health cannot be served.
fn not_served(recorder: Recorder, node: String) -> impl Fn(NotServed<'_>) + Send + 'static {
    move |NotServed { service, address, error }| {
        let note =
            format!("node {node} failed to start healthcheck \"{service}\" on {address}: {error}");
        recorder.record(Event::service_health_failed(service, note));
    }
}
