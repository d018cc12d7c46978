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
//! Nothing here ends by itself, and a signal ends the program at once ([`process`]); in userspace
//! mode, SIGTERM lets connections go on for a time before.

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::SocketAddr,
    os::unix::net::UnixListener,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use switchyard::{
    Proxy, StartError,
    health::{
        NotServed,
        http::{Handler, connections::Connections},
    },
};
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily, ServiceName},
    proxier::{Backend, Mode, Probed},
    runner::Observer,
};
use switchyard_sources::kube::WatchHealth;
use switchyard_userspace::forwarder::Counters;
use tokio::{
    runtime,
    sync::watch,
    task::{JoinError, JoinSet},
};

use crate::config::{Loaded, flags::Flags, release, settings::Settings, version};
use crate::observability::{
    conntrack::{Destinations, Shares, count_for_ever},
    http::{
        healthz::HealthzHandler,
        metrics::{ConfigPages, MetricsHandler},
        rebind::{self, Bound, ServerAddress},
    },
    metrics::Metrics,
    status::{StatusBoard, StatusSources},
};
use crate::{
    backends,
    comparison::service::TableReader,
    explain::{
        self, feed::Feeds, history::History, server, service_flows::ServiceFlows, sources::Sources,
        top::TopSources,
    },
    flowtable, local_socket, logging,
    node::watch::{self as node_watch, NodeChecks, NodeError, NodeWatch},
    node_events::{self, Event, EventQueue, Recorder, UnsupportedEvents},
    objects::ClientLink,
    other_tables::OtherTables,
    process,
    reload::{LiveParts, Reloader},
    select::Chosen,
    source_task::{self, ApiServerLink, SourceError},
};

/// The time that new connections have to begin to wait for the next start, however short the drain.
const LEAST_DRAIN: Duration = Duration::from_secs(5);

/// The time that the program waits, before it ends, until the Event with the reason is sent.
const FINAL_EVENT_WAIT: Duration = Duration::from_secs(3);
/// The number of threads for the source and the servers. What asks the kernel is done on others.
const WORKERS: usize = 2;

/// Why the program ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot register the metrics")]
    Metrics(#[from] prometheus::Error),
    #[error(transparent)]
    Start(#[from] StartError),
    /// The threads of the sources and servers could not be started.
    #[error("cannot start a thread")]
    Runtime(#[source] io::Error),
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The program cannot work on this node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An address could not be bound, which is fatal with `bindAddressHardFail`.
    #[error("cannot serve {0} at {1}")]
    Server(&'static str, SocketAddr, #[source] io::Error),
    /// A changed field of the configuration file requires a restart, by the program's supervisor.
    #[error("content of the proxy server's configuration file was updated")]
    ConfigurationChanged,
    #[error("cannot handle SIGTERM")]
    Signal(#[source] io::Error),
    #[error("a task ended unexpectedly")]
    Task(#[source] JoinError),
    /// The engine ended, which happens only in a panic.
    #[error("the engine ended unexpectedly")]
    Engine,
}

/// Proxies in the chosen mode until something makes the program end, and returns the reason.
/// `settings` are those of the mode, and `loaded` is the configuration that `flags` led to;
/// the backend of userspace mode, if it is chosen, counts `traffic`.
pub fn run(
    settings: &Settings,
    loaded: &Loaded,
    flags: &Flags,
    (backends, traffic): (Vec<Arc<dyn Backend>>, &Arc<Counters>),
    Chosen { mode, probed, warning, .. }: Chosen,
) -> Result<Infallible, RunError> {
    let supported = probed.families;
    let metrics = metrics(mode, supported, loaded, flags, traffic)?;
    let node = Arc::new(NodeWatch::new(NodeChecks::new(&loaded.config, settings, supported)));
    let (recorder, recorded) = node_events::recorder();
    let destinations = settings.conntrack_services.map(|_| Arc::<Destinations>::default());
    let board = Arc::<StatusBoard>::default();
    let local = local_socket(flags);
    let history = local.as_ref().map(|_| Arc::new(History::default()));
    let client = ClientLink::default();
    let feeds = local.as_ref().map(|_| Arc::<Feeds>::default());
    let observers = (
        (destinations.clone(), client.problems.clone()),
        (Arc::clone(&board), (history.clone(), feeds.clone())),
    );
    let backend = Arc::clone(backends::get(&backends, mode).map_err(StartError::from)?);
    let proxy = start_proxy(
        settings,
        (&backend, backends, probed),
        &metrics,
        &node,
        (&recorder, observers),
    )?;
    if let Some(why) = warning {
        recorder.record(Event::mode_replaced(why));
    }
    recorder.record(Event::starting());

    let link = api_server_link(mode, settings, flags, &metrics, recorded);
    let (watches, names) = (link.watches.clone(), Arc::clone(&link.names));
    let (pages, shown_pages) = watch::channel(ConfigPages::new(settings, &loaded.config));
    let healthz = HealthzHandler::new(proxy.health(), Arc::clone(&metrics), watches.clone());
    let status = StatusSources {
        board,
        health: proxy.health(),
        table: Arc::clone(&metrics.table.usage),
        watches,
        client: client.health.clone(),
        node: settings.node.node_name.clone(),
    };
    let exposition = MetricsHandler::new(
        Arc::clone(&metrics),
        status.clone(),
        shown_pages,
        logging::set_verbosity,
    );
    let addresses = watch::Sender::new(rebind::addresses(&settings.servers));
    let bound = watch::Sender::default();
    let is_bound = bound.subscribe();
    let serving = serve(
        (addresses.subscribe(), bound),
        [Arc::new(healthz), Arc::new(exposition)],
        proxy.connections(),
        recorder.clone(),
    );
    let table = node_events::watch_table(Arc::clone(&metrics.table.usage), recorder.clone());
    let counting = destinations.zip(settings.conntrack_services).map(|(destinations, period)| {
        count_connections(destinations, period, &metrics, &status.board)
    });
    let (source, node_name) = (settings.source.clone(), settings.node.node_name.clone());
    let objects = proxy.handle().inputs();
    let sourcing =
        async move { source_task::run(&source, &node_name, objects, link, client).await };
    let answering = local.zip(history).zip(feeds).map(|((listener, history), feeds)| {
        let (engine, flows) = (proxy.handle().inputs(), Some(Arc::default()));
        let nft = backends::nft_config(&settings.backend, supported);
        let tables = (mode == Mode::NFTABLES).then(|| Arc::new(TableReader::new(nft)));
        let (audits, others) = (Arc::default(), Some(Arc::new(OtherTables::new(mode))));
        let (traffic, seen) = (Arc::clone(traffic), ServiceFlows::default());
        let (metrics, last) = (Arc::clone(&metrics), Default::default());
        let dumps = Default::default();
        let top = TopSources { status, metrics, mode, backend, dumps, traffic, flows: seen, last };
        let top = Some(Arc::new(top));
        answer_locally(
            listener,
            Sources { engine, history, feeds, names, flows, tables, audits, others, top },
        )
    });
    let failure = node.failure();
    let parts = LiveParts {
        proxy: proxy.handle(),
        addresses,
        bound: is_bound,
        pages,
        metrics,
        recorder,
        node: node.known(),
        supported,
    };
    let reloader = Reloader::new(flags.clone(), loaded, settings.clone(), parts);

    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    // The kernel's modes have nothing to drain.
    let drain = (mode == Mode::USERSPACE).then_some(settings.backend.userspace.drain);
    // They go on while connections end.
    let mut helpers = JoinSet::new();
    let error: Option<RunError> = runtime.block_on(async {
        let (serving, sourcing) = (tokio::spawn(serving), tokio::spawn(sourcing));
        helpers.spawn(table);
        counting.map(|counting| helpers.spawn(counting));
        accelerate(mode, settings.flowtable_devices.clone(), &mut helpers);
        answering.map(|answering| helpers.spawn(answering));
        tokio::select! {
            () = proxy.ended() => RunError::Engine,
            error = node_watch::failed(failure) => RunError::Node(error),
            error = sourcing => error.map_or_else(RunError::Task, RunError::Source),
            error = serving => error.unwrap_or_else(RunError::Task),
            error = panicked(&mut helpers) => RunError::Task(error),
            () = reloader.run() => RunError::ConfigurationChanged,
            terminated = terminated(), if drain.is_some() => match terminated {
                Ok(()) => return None,
                Err(error) => RunError::Signal(error),
            },
        }
        .into()
    });
    let error = end(proxy, error, drain);
    // The remaining tasks need not end before the program does.
    runtime.shutdown_background();
    Err(error)
}

/// Returns what the source of objects exchanges with an API server beside objects.
fn api_server_link(
    mode: Mode,
    settings: &Settings,
    flags: &Flags,
    metrics: &Arc<Metrics>,
    recorded: EventQueue,
) -> ApiServerLink {
    let shown = Arc::clone(metrics);
    let is_named = version::reported(flags) != release::KUBERNETES;
    ApiServerLink {
        watches: WatchHealth::new(),
        recorded,
        requests: Arc::new(metrics.requests.clone()),
        addresses: (mode == Mode::IPVS).then(|| settings.backend.ipvs.api_addresses.clone()),
        names: Arc::default(),
        release: Box::new(move |release| {
            if !is_named {
                shown.build.set(release);
            }
        }),
    }
}

/// Counts tracked connections by Service for ever, for the metrics and the status.
fn count_connections(
    destinations: Arc<Destinations>,
    period: Duration,
    metrics: &Arc<Metrics>,
    board: &Arc<StatusBoard>,
) -> impl Future<Output = ()> + use<> {
    let (metrics, board) = (Arc::clone(metrics), Arc::clone(board));
    let publish = move |shares: Option<Shares<ServiceName>>| {
        metrics.table_shares(shares.as_ref());
        if let Some(shares) = &shares {
            board.counted(shares, Instant::now());
        }
    };
    count_for_ever(period, move || destinations.count(), publish)
}

/// Lets connections end, if the mode drains them and the program is to end by SIGTERM, which has no
/// error, or for a restart. Returns the error, if there is one.
fn end(proxy: Proxy, error: Option<RunError>, drain: Option<Duration>) -> RunError {
    match (error, drain) {
        (None, limit) => {
            let limit = limit.unwrap_or_default();
            tracing::info!(?limit, "Terminated: waiting for the end of connections");
            drain_within(proxy, limit);
            tracing::info!("Ending");
            logging::flush();
            process::end_as_terminated()
        }
        (Some(error @ RunError::ConfigurationChanged), Some(limit)) => {
            process::end_by_next_term();
            tracing::info!(?limit, "Waiting for the end of connections before the restart");
            drain_within(proxy, limit);
            error
        }
        (Some(error), _) => {
            // A sync that is under way may take minutes, and need not end.
            std::mem::forget(proxy);
            error
        }
    }
}

/// Has the kernel forward connections between these devices past the rules, if there are any.
fn accelerate(mode: Mode, devices: Vec<String>, helpers: &mut JoinSet<()>) {
    if devices.is_empty() {
        return;
    }
    if matches!(mode, Mode::NFTABLES | Mode::IPTABLES) {
        helpers.spawn(flowtable::follow(devices));
    } else {
        tracing::warn!(%mode, "--flowtable-devices has no effect in this mode");
    }
}

/// Returns the error of a task that panics. A task that ends otherwise has nothing more to do.
async fn panicked(tasks: &mut JoinSet<()>) -> JoinError {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return error;
        }
    }
    pending().await
}

/// Opens the local socket, without which proxying goes on.
fn local_socket(flags: &Flags) -> Option<UnixListener> {
    let path = explain::socket(flags);
    let opened = local_socket::open(&path);
    opened
        .inspect_err(|error| {
            tracing::warn!(err = %ErrorChain(error), path = %path.display(), "No local socket for switchyard explain");
        })
        .ok()
        .flatten()
}

async fn answer_locally(listener: UnixListener, sources: Sources) {
    match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => server::serve(listener, sources).await,
        Err(error) => {
            tracing::warn!(err = %ErrorChain(&error), "No local socket for switchyard explain");
        }
    }
}

/// Waits for SIGTERM.
async fn terminated() -> io::Result<()> {
    process::terminated()?.await;
    Ok(())
}

/// Lets connections go on for a time, and has new ones wait for the next start.
fn drain_within(proxy: Proxy, limit: Duration) {
    logging::flush();
    let (drained, is_drained) = mpsc::channel();
    // A sync that is under way may take minutes.
    thread::spawn(move || {
        let _ = drained.send(proxy.drain(limit));
    });
    let _ = is_drained.recv_timeout(limit.max(LEAST_DRAIN));
}

/// Returns the metrics of a proxy that programs the families in `supported`.
fn metrics(
    mode: Mode,
    supported: PerFamily<bool>,
    loaded: &Loaded,
    flags: &Flags,
    traffic: &Arc<Counters>,
) -> Result<Arc<Metrics>, RunError> {
    let families: Vec<IpFamily> =
        IpFamily::ALL.into_iter().filter(|family| *supported.get(*family)).collect();
    let gates = &loaded.config.feature_gates;
    Ok(Arc::new(Metrics::new(mode, &families, gates, version::reported(flags), traffic)?))
}

/// Starts the proxy, which reports to the log, the metrics and the Events.
fn start_proxy(
    settings: &Settings,
    (backend, backends, probed): (&Arc<dyn Backend>, Vec<Arc<dyn Backend>>, Probed),
    metrics: &Arc<Metrics>,
    node: &Arc<NodeWatch>,
    (recorder, more): (&Recorder, impl Observer + 'static),
) -> Result<Proxy, RunError> {
    let node_name = &settings.node.node_name;
    let unsupported = UnsupportedEvents::new(recorder.clone(), node_name.clone());
    metrics.started();
    let (check, flows, listeners) = (Arc::clone(node), Arc::clone(metrics), Arc::clone(metrics));
    let proxy = Proxy::builder(settings.node.clone())
        .shared_backend(Arc::clone(backend))
        .probed(probed)
        .replacing(backends)
        .localhost(settings.node.localhost_node_ports)
        .timing(settings.periods.runner_config())
        .node_patience(node_watch::patience(&settings.source))
        .node_check(move |facts| check.check(facts))
        .observer(((Arc::clone(metrics), more), (Arc::clone(node), unsupported)))
        .on_reconciled(move |report| flows.flows_reconciled(report))
        .on_ipv6_localhost(move |open, failures| listeners.localhost_listeners(open, failures))
        .on_not_served(not_served(recorder.clone(), node_name.clone()))
        .start()?;
    Ok(proxy)
}

/// Serves health and metrics. Ends only with a failure that is fatal by the configuration, once the
/// Event with the reason is sent.
async fn serve(
    (addresses, bound): (watch::Receiver<[ServerAddress; 2]>, watch::Sender<Bound<2>>),
    [healthz, metrics]: [Arc<dyn Handler>; 2],
    connections: Arc<Connections>,
    recorder: Recorder,
) -> RunError {
    let handlers = [("healthz", healthz), ("metrics", metrics)];
    let (server, address, error) = rebind::serve(addresses, handlers, connections, bound).await;
    let error = RunError::Server(server, address, error);
    recorder.record(Event::server_failed(server, ErrorChain(&error).to_string()));
    recorder.flush(FINAL_EVENT_WAIT).await;
    error
}

/// Returns a function that records an Event that a Service's health cannot be served.
fn not_served(recorder: Recorder, node: String) -> impl Fn(NotServed<'_>) + Send + 'static {
    move |NotServed { service, address, error }| {
        let note =
            format!("node {node} failed to start healthcheck \"{service}\" on {address}: {error}");
        recorder.record(Event::service_health_failed(service, note));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_noticed_behind_one_that_ends() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tasks.spawn(async { panic!("as a defect") });
        assert!(panicked(&mut tasks).await.is_panic());
    }
}
