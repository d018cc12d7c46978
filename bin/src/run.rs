//! Proxying: sources and servers around an engine.
//!
//! ```text
//! source -> events \                                      / logs
//!                   inputs -> engine (its own thread) -> -- metrics -> HTTP servers
//! interfaces ------/ /          |                         \ health --/
//! configuration ----/         kernel
//! ```
//!
//! What becomes of changes of the configuration, [`reload`] decides.
//!
//! The engine has a thread of its own because a commit blocks it. Nothing here ends on its own;
//! signals keep their default dispositions, so that the program just stops and what it programmed
//! stays.

use std::{convert::Infallible, io, sync::Arc, thread, time::Duration};

use proxy_core::{
    proxier::{Proxier, ProxierError},
    runner::{Input, Observer, Pace, Runner, RunnerConfig},
    track::Tracker,
};
use tokio::{
    runtime,
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot, watch,
    },
    task::JoinError,
};

use crate::{
    backend::{self, Built},
    config::{
        Loaded,
        settings::{PeriodSettings, Settings},
    },
    events::{self, Event, Recorder},
    feed::{self, FeedError, Link},
    flags::Flags,
    flows,
    health::ProxyHealth,
    http::{
        Handler,
        healthz::HealthzHandler,
        metrics::{MetricsHandler, Shown},
        moving::{self, Place},
        service_health::{NotServed, ServiceHealthServers},
    },
    metrics::Metrics,
    node::discovery::Discovery,
    node_addresses,
    observe::EngineObserver,
    reload::{self, Parts, Reloader},
    source::kube::WatchHealth,
};

/// Inputs that may wait for the engine while it commits.
const QUEUE: usize = 4096;
/// How long to wait for the Event that says why the program ends.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Threads for sources and servers.
const WORKERS: usize = 2;

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The backend cannot be used.
    #[error(transparent)]
    Backend(#[from] ProxierError),
    /// The metrics cannot be registered.
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    /// A thread or a runtime could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Objects cannot be had.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// An address could not be bound, and the configuration says that this is fatal.
    #[error("cannot serve {0}")]
    Server(&'static str, #[source] io::Error),
    /// The configuration file says something else now that needs another start: whoever supervises
    /// this program starts it again.
    #[error("content of the proxy server's configuration file was updated")]
    ConfigurationChanged,
    /// A task panicked.
    #[error("a task ended unexpectedly")]
    Task(#[source] JoinError),
    /// The engine ended, which only a panic makes it do.
    #[error("the engine ended unexpectedly")]
    Engine,
}

/// Proxies for ever, with settings that were made from what was loaded with these flags. If that is
/// in another mode than the configured one, `mode_replaced` says why.
pub fn run(
    settings: &Settings,
    loaded: &Loaded,
    flags: &Flags,
    mode_replaced: Option<String>,
) -> Result<Infallible, RunError> {
    let config = &loaded.config;
    let Built { proxier, families, stats } = backend::build(&settings.backend)?;
    let monitor = proxier.monitor();
    let health = Arc::new(ProxyHealth::new(reload::patience(&settings.periods)));
    let families = backend::enabled(&families);
    let metrics = Arc::new(Metrics::new(settings.backend.mode, &families, &config.feature_gates)?);
    if let Some(stats) = stats {
        metrics.count_rules(stats);
    }
    let observer = EngineObserver::new(Arc::clone(&health), Arc::clone(&metrics), &families)
        .with_flows(flows::start(settings.backend.mode, Arc::clone(&metrics)));
    let (recorder, recorded) = events::recorder();
    if let Some(why) = mode_replaced {
        recorder.record(Event::mode_replaced(why));
    }
    recorder.record(Event::starting());
    let report = not_served(recorder.clone(), settings.node.node_name.clone());
    let service_health = ServiceHealthServers::new(Arc::clone(&health), families, report);
    let health_checks = observer.health_checks();
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(RunError::Thread)?;
    let link = Link { watches: WatchHealth::new(), recorded, requests: metrics.requests.clone() };
    let watches = link.watches.clone();
    let healthz = HealthzHandler::new(Arc::clone(&health), Arc::clone(&metrics), watches.clone());
    let (shown, what_is_shown) = watch::channel(Shown::new(settings, config));
    let exposition = MetricsHandler::new(Arc::clone(&metrics), watches, what_is_shown);
    let places = reload::places(&settings.servers).map(watch::Sender::new);
    let wanted_places = places.each_ref().map(watch::Sender::subscribe);
    let discovery = Discovery::of(config, settings);
    let (inputs, received) = mpsc::channel(QUEUE);
    let parts = Parts {
        inputs: inputs.clone(),
        health,
        places,
        shown,
        metrics,
        recorder: recorder.clone(),
        node: discovery.known(),
    };
    let reloader = Reloader::new(flags.clone(), loaded, settings.clone(), parts);
    let settings = settings.clone();
    let result = runtime.block_on(async {
        let engine = start_engine(&settings, proxier, Arc::new(observer), received)?;
        if let Some(monitor) = monitor {
            tokio::spawn(monitor.run(inputs.clone()));
        }
        let servers = serve(wanted_places, Arc::new(healthz), Arc::new(exposition));
        let serving = tokio::spawn(async move {
            let error = tokio::select! {
                error = servers => error,
                never = service_health.run(health_checks) => match never {},
            };
            if let RunError::Server(server, _) = &error {
                recorder.record(Event::server_failed(server, crate::error_chain(&error)));
                recorder.flush(LAST_WORDS).await;
            }
            error
        });
        // One sender stays here: the engine must not end because its feed did, or the reason would
        // be lost.
        let feeding = tokio::spawn(provide(settings, discovery, inputs.clone(), link));
        let error = tokio::select! {
            _ = engine => RunError::Engine,
            error = feeding => error.map_or_else(RunError::Task, RunError::Feed),
            error = serving => error.unwrap_or_else(RunError::Task),
            () = reloader.run() => RunError::ConfigurationChanged,
        };
        drop(inputs);
        Err(error)
    });
    // Whatever still runs need not be waited for.
    runtime.shutdown_background();
    result
}

/// Removes what any backend programs. Needs no cluster.
pub fn cleanup(settings: &Settings) -> Result<(), RunError> {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Thread)?;
    Ok(runtime.block_on(backend::cleanup(&settings.backend))?)
}

/// When the engine syncs, by kube-proxy's periods.
pub(crate) fn runner_config(periods: &PeriodSettings) -> RunnerConfig {
    RunnerConfig {
        pace: Pace::Adaptive { longest: periods.min_sync },
        longest_retry: periods.sync,
        ..RunnerConfig::default()
    }
}

/// Starts the engine. What is returned is ready when it has ended.
fn start_engine(
    settings: &Settings,
    backend: Box<dyn Proxier>,
    observer: Arc<dyn Observer>,
    inputs: Receiver<Input>,
) -> Result<oneshot::Receiver<Infallible>, RunError> {
    let runtime =
        runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Thread)?;
    let tracker = Tracker::new(settings.node.clone());
    let runner = Runner::new(tracker, backend, runner_config(&settings.periods), observer);
    let (alive, ended) = oneshot::channel();
    let body = move || {
        // Dropped when the thread ends, however it does.
        let _alive: oneshot::Sender<Infallible> = alive;
        runtime.block_on(runner.run(inputs));
    };
    thread::Builder::new().name("engine".into()).spawn(body).map_err(RunError::Thread)?;
    Ok(ended)
}

/// Feeds the engine. Ends only if that is impossible.
async fn provide(
    settings: Settings,
    discovery: Discovery,
    inputs: Sender<Input>,
    link: Link,
) -> FeedError {
    // Which addresses node ports are served on should be known at the first sync.
    match node_addresses::list().await {
        Ok(addresses) => {
            // If nobody listens, that is noticed elsewhere.
            let _ = inputs.send(Input::InterfaceAddresses(addresses)).await;
        }
        Err(error) => {
            tracing::error!(
                err = crate::error_chain(&error),
                "Failed to list the node's addresses; going on without"
            );
        }
    }
    tokio::select! {
        () = node_addresses::follow(inputs.clone()) => FeedError::Ended,
        error = feed::run(
            &settings.source,
            &settings.node.node_name,
            discovery,
            inputs,
            link,
        ) => error,
    }
}

/// Serves health and metrics. Ends only if the configuration says that a failure is fatal.
async fn serve(
    [healthz_place, metrics_place]: [watch::Receiver<Place>; 2],
    healthz: Arc<dyn Handler>,
    metrics: Arc<dyn Handler>,
) -> RunError {
    tokio::select! {
        error = moving::serve("healthz", healthz_place, healthz) => {
            RunError::Server("healthz", error)
        }
        error = moving::serve("metrics", metrics_place, metrics) => {
            RunError::Server("metrics", error)
        }
    }
}

/// Logs that a Service's health is not served, and makes an Event of it.
fn not_served(recorder: Recorder, node: String) -> impl Fn(NotServed<'_>) + Send + 'static {
    move |NotServed { service, address, error }| {
        tracing::error!(%service, %address, err = %error, "Failed to start healthcheck");
        let note =
            format!("node {node} failed to start healthcheck \"{service}\" on {address}: {error}");
        recorder.record(Event::service_health_failed(service, note));
    }
}
