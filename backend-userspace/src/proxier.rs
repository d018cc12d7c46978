//! The backend, open: a forwarder, and the capture mode that leads traffic to it.

use std::{
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use ipnet::IpNet;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{IpFamily, ServiceName},
    proxier::{
        Drift, ExternalChange, Forwards, Mode, Monitor, Profile, Proxier, ProxierError, SyncReport,
    },
    state::{LocalPods, NodeState, State},
    transition::Transition,
};
#[cfg(target_os = "linux")]
use switchyard_kernel::route::interface_networks;

use crate::capture::Capture;
use crate::forwarder::{CAPABILITIES, Forwarder, LocalClients, Panicked};

/// The backend, whatever its capture mode.
pub(crate) const PROFILE: Profile = Profile {
    conflicts_with: &[Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS],
    capabilities: CAPABILITIES,
    translates_flows: false,
    ..Profile::new(Mode::USERSPACE)
};

/// The time to wait before a failed removal of leftovers is tried again.
const RETRY_REMOVAL: Duration = Duration::from_secs(60);

/// The time to go on accepting when new connections wait for another program: so long, connections
/// may arrive whose handshake has begun before, which a closed listener would reset.
const HANDSHAKES: Duration = Duration::from_millis(500);

/// The rules that other capture modes left.
struct Leftovers {
    remove: Box<dyn Fn() -> Result<(), ProxierError> + Send>,
    due: Instant,
}

/// userspace mode, open.
pub(crate) struct UserspaceProxier {
    forwarder: Forwarder,
    capture: Box<dyn Capture>,
    /// `None` once they are removed.
    leftovers: Option<Leftovers>,
}

impl UserspaceProxier {
    pub(crate) fn new(forwarder: Forwarder, capture: Box<dyn Capture>) -> Self {
        Self { forwarder, capture, leftovers: None }
    }

    /// Has `remove` called after the first sync: it removes the rules of other capture modes, which
    /// would lead traffic to sockets that are gone.
    pub(crate) fn replacing(
        self,
        remove: impl Fn() -> Result<(), ProxierError> + Send + 'static,
    ) -> Self {
        let leftovers = Leftovers { remove: Box::new(remove), due: Instant::now() };
        Self { leftovers: Some(leftovers), ..self }
    }

    /// Removes what other capture modes left, once this one serves.
    fn remove_leftovers(&mut self, report: &mut SyncReport) {
        let Some(leftovers) = &mut self.leftovers else { return };
        if leftovers.due <= Instant::now() {
            let Err(error) = (leftovers.remove)() else {
                self.leftovers = None;
                return;
            };
            tracing::warn!(err = %ErrorChain(&error), "Failed to remove the rules of another capture mode");
            leftovers.due = Instant::now() + RETRY_REMOVAL;
        }
        report.cleanup_failed = true;
        let after = leftovers.due.saturating_duration_since(Instant::now());
        report.requeue_after = Some(report.requeue_after.map_or(after, |other| other.min(after)));
    }
}

#[async_trait]
impl Proxier for UserspaceProxier {
    fn profile(&self) -> Profile {
        self.capture.profile(PROFILE)
    }

    fn prepare(&mut self, node: &NodeConfig) -> Result<(), ProxierError> {
        self.capture.prepare(node)
    }

    /// First the forwarder knows the endpoints, then traffic reaches it, and last of all it forgets
    /// Service ports.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        if change.node_changed() || change.is_resync() {
            self.forwarder.set_local_clients(local_clients(&change.after().node));
        }
        for port in change.ports().filter_map(|change| change.after) {
            self.forwarder.serve(port);
        }
        let mut report = self.capture.sync(change, &self.forwarder).await?;
        let gone = change.ports().filter(|change| change.after.is_none());
        self.forwarder.remove(&gone.map(|change| change.id).collect());
        self.remove_leftovers(&mut report);
        report.degraded.extend(self.forwarder.panicked().take());
        Ok(report)
    }

    fn compare(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        self.capture.compare(state, service)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.capture.clean_up().await
    }

    fn forwards(&self) -> Option<Forwards> {
        let (streams, pause) = (self.forwarder.streams(), self.capture.pause());
        Some(Forwards { are_there: Box::new(streams), pause })
    }

    fn drain(&mut self, limit: Duration) {
        let start = Instant::now();
        (self.capture.pause())();
        if self.capture.pauses() {
            thread::sleep(HANDSHAKES.min(limit));
        }
        self.forwarder.drain(limit.saturating_sub(start.elapsed()));
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        let (capture, panicked) = (self.capture.monitor(), self.forwarder.panicked());
        Some(Box::new(UserspaceMonitor { capture, panicked }))
    }
}

/// The monitor of the capture mode, and of listeners that panic, which a sync reports.
struct UserspaceMonitor {
    capture: Option<Box<dyn Monitor>>,
    panicked: Panicked,
}

#[async_trait]
impl Monitor for UserspaceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let capture = async {
            match &mut self.capture {
                Some(capture) => capture.externally_changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = capture => changed,
            () = self.panicked.added() => Ok(ExternalChange::Suspected),
        }
    }
}

/// The pods of this node, as far as their addresses show them: a socket does not know the interface
/// that a connection came in through.
fn local_clients(node: &NodeState) -> LocalClients {
    let network = |family| match node.local_pods.get(family) {
        Some(LocalPods::Source(net)) => Some(*net),
        _ => None,
    };
    LocalClients {
        networks: IpFamily::ALL.into_iter().filter_map(network).collect(),
        pods: node.pod_networks.clone(),
        addresses: node.addresses.clone(),
        links: links(),
    }
}

/// The networks of the node's interfaces.
#[cfg(target_os = "linux")]
fn links() -> Vec<IpNet> {
    let networks = interface_networks().unwrap_or_else(|error| {
        tracing::warn!(err = %ErrorChain(&error), "Failed to list the networks of interfaces");
        Vec::new()
    });
    networks.into_iter().filter_map(|(ip, prefix)| IpNet::new(ip, prefix).ok()).collect()
}

#[cfg(not(target_os = "linux"))]
fn links() -> Vec<IpNet> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Read, Write},
        mem,
        net::{SocketAddr, TcpListener, TcpStream},
        sync::{Arc, Mutex},
        thread,
        time::Duration,
    };

    use serde_json::json;
    use switchyard_core::{
        config::NodeConfig,
        state::{Action, Masquerade, PoolKind},
        testing::{NODE, Stepped, endpoint, node, service, slice},
    };

    use crate::forwarder::{ForwarderConfig, Listener};

    use super::*;

    /// A capture mode with one listener, at which it asks in each sync.
    #[derive(Clone, Default)]
    struct Asking(Arc<Mutex<Heard>>);

    #[derive(Default)]
    struct Heard {
        listener: Option<SocketAddr>,
        answers: Vec<Option<u8>>,
        fails: bool,
    }

    #[async_trait]
    impl Capture for Asking {
        fn profile(&self, of_proxy: Profile) -> Profile {
            let capabilities = of_proxy.capabilities.with_loopback_endpoints();
            Profile { capabilities, ..of_proxy }
        }

        async fn sync(
            &mut self,
            change: &Transition<'_>,
            forwarder: &Forwarder,
        ) -> Result<SyncReport, ProxierError> {
            let mut heard = self.0.lock().unwrap();
            if mem::take(&mut heard.fails) {
                return Err(refused());
            }
            let address = heard.listener.unwrap_or_else(|| {
                let port = change.ports().next().unwrap().id.clone();
                let address = SocketAddr::from(([127, 0, 0, 1], 0));
                let pool = PoolKind::Cluster;
                let action = Action::Pool { pool, masquerade: Masquerade::Never };
                let listener = Listener { port, address, action, allowed_sources: None };
                forwarder.listen(&listener).unwrap()
            });
            heard.listener = Some(address);
            heard.answers.push(ask(address));
            Ok(SyncReport::default())
        }

        async fn clean_up(&mut self) -> Result<(), ProxierError> {
            Ok(())
        }
    }

    fn refused() -> ProxierError {
        ProxierError::backend(Mode::USERSPACE, "refused by a test", io::Error::other("refused"))
    }

    fn forwarder() -> Forwarder {
        let settings = ForwarderConfig { threads: Some(1), ..ForwarderConfig::default() };
        Forwarder::start(settings).unwrap()
    }

    /// Connects, and returns the byte that the server sends; `None` if no server takes the
    /// connection.
    fn ask(address: SocketAddr) -> Option<u8> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).ok().map(|()| answer[0])
    }

    /// The forwarder knows a Service port until the capture mode has let go of it.
    #[test]
    fn a_service_port_is_served_until_no_traffic_reaches_it() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = i64::from(server.local_addr().unwrap().port());
        thread::spawn(move || {
            for client in server.incoming() {
                let _ = client.and_then(|mut client| client.write_all(&[7]));
            }
        });
        let capture = Asking::default();
        let heard = Arc::clone(&capture.0);
        let proxier = UserspaceProxier::new(forwarder(), Box::new(capture));
        let mut config = NodeConfig::new(NODE);
        config.loopback_endpoints = true;
        let mut node = Stepped::new(config, proxier);
        let web = service("web", "10.96.0.1").port("http", "TCP", 80);
        let endpoints =
            slice("web", "1").port("http", "TCP", port).endpoint(endpoint("127.0.0.1", NODE));
        node.sync([web.apply(), endpoints.apply()]);
        node.sync([web.delete()]);
        let heard = heard.lock().unwrap();
        assert_eq!(heard.answers, [Some(7), Some(7)]);
        assert_eq!(ask(heard.listener.unwrap()), None);
    }

    /// Leftovers stay until this capture mode serves, and a failed removal is repeated.
    #[test]
    fn leftovers_go_after_the_first_sync() {
        let capture = Asking::default();
        capture.0.lock().unwrap().fails = true;
        let removals = Arc::new(Mutex::new(0));
        let seen = Arc::clone(&removals);
        let remove = move || {
            let mut removals = seen.lock().unwrap();
            *removals += 1;
            if *removals == 1 { Err(refused()) } else { Ok(()) }
        };
        let proxier = UserspaceProxier::new(forwarder(), Box::new(capture)).replacing(remove);
        let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
        node.apply([service("web", "10.96.0.1").port("http", "TCP", 80).apply()]);
        assert!(node.try_sync().is_err());
        assert_eq!(*removals.lock().unwrap(), 0);
        let report = node.full();
        assert!(report.cleanup_failed && report.requeue_after.is_some());
        assert_eq!(*removals.lock().unwrap(), 1);
        assert!(node.full().cleanup_failed, "tried again after a while");
        assert_eq!(*removals.lock().unwrap(), 1);
        node.proxier.leftovers.as_mut().unwrap().due = Instant::now();
        for _ in 0..2 {
            assert!(!node.full().cleanup_failed);
            assert_eq!(*removals.lock().unwrap(), 2);
        }
    }

    /// Without a network of all pods, those of the Node are known.
    #[test]
    fn pods_of_ipv6_are_clients_of_their_own() {
        let proxier = UserspaceProxier::new(forwarder(), Box::new(Asking::default()));
        let mut stepped = Stepped::new(NodeConfig::new(NODE), proxier);
        let cidrs = json!(["2001:db8::/64"]);
        let web = service("web", "10.96.0.1").port("http", "TCP", 80);
        stepped.sync([node(NODE, "192.0.2.1").set("spec.podCIDRs", cidrs).apply(), web.apply()]);
        let clients = local_clients(&stepped.tracker.state().node);
        let source = |ip: &str| clients.source(ip.parse().unwrap());
        assert_ne!(source("2001:db8::1"), source("2001:db8::2"));
    }

    #[test]
    fn a_listener_that_panics_is_reported() {
        let proxier = UserspaceProxier::new(forwarder(), Box::new(Asking::default()));
        let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
        node.sync([service("web", "10.96.0.1").port("http", "TCP", 80).apply()]);
        let id = node.tracker.transition().after().service_ports.keys().next().unwrap().clone();
        let mut monitor = node.proxier.monitor().unwrap();
        node.proxier.forwarder.panicked().add(id.clone());
        let noticed = node.runtime.block_on(monitor.externally_changed());
        assert_eq!(noticed.unwrap(), ExternalChange::Suspected);
        let degraded = node.full().degraded;
        assert_eq!(degraded.iter().map(|port| &port.port).collect::<Vec<_>>(), [&id]);
        assert_eq!(node.full().degraded, []);
    }
}
