//! One server for each Service and address, as they come and go.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proxy_core::{
    model::{IpFamily, PerFamily, ServiceName},
    state::{HealthCheck, NodePortAddresses},
};
use tokio::{sync::watch, task::JoinHandle, time};

use super::ServiceHealthHandler;
use crate::{health::ProxyHealth, http::listen};

/// How long to wait before an address that could not be bound is tried again, if no sync comes.
const RETRY: Duration = Duration::from_secs(5);

/// What is to be served, and where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The Services, and what is told of them.
    pub checks: HashMap<ServiceName, HealthCheck>,
    /// The node's addresses on which they are served.
    pub node_ports: PerFamily<NodePortAddresses>,
}

/// A Service that cannot be served at an address.
#[derive(Debug)]
pub struct NotServed<'a> {
    /// The Service.
    pub service: &'a ServiceName,
    /// The address.
    pub address: SocketAddr,
    /// Why.
    pub error: &'a io::Error,
}

/// The servers. All of them are gone when this value is.
pub struct ServiceHealthServers {
    health: Arc<ProxyHealth>,
    families: Vec<IpFamily>,
    report: Box<dyn Fn(NotServed<'_>) + Send>,
    running: HashMap<Place, Server>,
    failed: HashSet<Place>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    service: ServiceName,
    address: SocketAddr,
}

struct Server {
    local_endpoints: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Returns when the address is free again.
    async fn close(mut self) {
        self.task.abort();
        // That it was aborted is no news.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ServiceHealthServers {
    /// Servers in these families, of which there are none yet. `report` is called once for each
    /// address that cannot be bound, and again only if it could be bound meanwhile.
    pub fn new(
        health: Arc<ProxyHealth>,
        families: Vec<IpFamily>,
        report: impl Fn(NotServed<'_>) + Send + 'static,
    ) -> Self {
        let report = Box::new(report);
        Self { health, families, report, running: HashMap::new(), failed: HashSet::new() }
    }

    /// Serves what is wanted, for ever. Whatever is sent, changed or not, is an occasion to try
    /// again what failed.
    pub async fn run(mut self, mut wanted: watch::Receiver<Arc<Wanted>>) -> Infallible {
        let mut applied = Arc::default();
        loop {
            let now = Arc::clone(&wanted.borrow_and_update());
            if !Arc::ptr_eq(&now, &applied) || !self.failed.is_empty() {
                self.apply(&now).await;
                applied = now;
            }
            let retry = async {
                match self.failed.is_empty() {
                    true => std::future::pending().await,
                    false => time::sleep(RETRY).await,
                }
            };
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() {
                    // Nobody will want anything else.
                    std::future::pending::<()>().await;
                },
                () = retry => {}
            }
        }
    }

    async fn apply(&mut self, wanted: &Wanted) {
        let places = self.places(wanted);
        let gone: Vec<Place> =
            self.running.keys().filter(|place| !places.contains_key(place)).cloned().collect();
        for place in gone {
            if let Some(server) = self.running.remove(&place) {
                tracing::debug!(service = %place.service, address = %place.address,
                    "Closing healthcheck");
                server.close().await;
            }
        }
        self.failed.retain(|place| places.contains_key(place));
        for (place, count) in places {
            match self.running.get(&place) {
                Some(server) => server.local_endpoints.store(count, Ordering::Relaxed),
                None => self.open(place, count),
            }
        }
    }

    /// Where to serve which counts, in a fixed order: if two Services have the same port, it
    /// should not be chance that decides.
    fn places(&self, wanted: &Wanted) -> BTreeMap<Place, usize> {
        let mut places = BTreeMap::new();
        for (service, check) in &wanted.checks {
            for family in &self.families {
                let Some(count) = *check.local_endpoints.of(*family) else { continue };
                for ip in addresses(*family, wanted.node_ports.of(*family)) {
                    let address = SocketAddr::new(ip, check.port);
                    places.insert(Place { service: service.clone(), address }, count);
                }
            }
        }
        places
    }

    fn open(&mut self, place: Place, count: usize) {
        let Place { service, address } = &place;
        let listener = match listen::bind_one(*address) {
            Ok(listener) => listener,
            Err(error) => {
                if !self.failed.contains(&place) {
                    (self.report)(NotServed { service, address: *address, error: &error });
                    self.failed.insert(place);
                }
                return;
            }
        };
        tracing::debug!(%service, %address, "Opening healthcheck");
        self.failed.remove(&place);
        let local_endpoints = Arc::new(AtomicUsize::new(count));
        let handler = Arc::new(ServiceHealthHandler {
            service: service.clone(),
            local_endpoints: Arc::clone(&local_endpoints),
            health: Arc::clone(&self.health),
        });
        let task =
            tokio::spawn(async move { listen::accept("service health", listener, handler).await });
        self.running.insert(place, Server { local_endpoints, task });
    }
}

/// The addresses to listen at.
fn addresses(family: IpFamily, node_ports: &NodePortAddresses) -> Vec<IpAddr> {
    match (node_ports, family) {
        (NodePortAddresses::AllLocal, IpFamily::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
        (NodePortAddresses::AllLocal, IpFamily::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
        (NodePortAddresses::Only(ips), _) => ips.iter().copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        sync::{Mutex, PoisonError},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::{sleep, timeout},
    };

    use super::*;

    type Reports = Arc<Mutex<Vec<String>>>;

    /// Servers that run, and where to say what is wanted of them.
    struct Running {
        wanted: watch::Sender<Arc<Wanted>>,
        reports: Reports,
        task: JoinHandle<Infallible>,
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    impl Running {
        fn start() -> Self {
            let reports = Reports::default();
            let theirs = Arc::clone(&reports);
            let servers = ServiceHealthServers::new(
                Arc::new(ProxyHealth::new(Duration::from_secs(60))),
                vec![IpFamily::V4],
                move |NotServed { service, error, .. }| {
                    let mut reports = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                    reports.push(format!("{service}: {:?}", error.kind()));
                },
            );
            let (wanted, receiver) = watch::channel(Arc::default());
            Self { wanted, reports, task: tokio::spawn(servers.run(receiver)) }
        }

        /// These Services at these addresses, each with a port and a count.
        fn want(&self, services: &[(&str, u16, usize)], at: &[&str]) {
            let checks = services.iter().map(|(name, port, count)| {
                let local_endpoints = PerFamily { v4: Some(*count), v6: Some(9) };
                let check = HealthCheck { port: *port, local_endpoints };
                (ServiceName::new("shop", name), check)
            });
            let ips = at.iter().map(|ip| ip.parse().unwrap()).collect();
            let node_ports =
                PerFamily { v4: NodePortAddresses::Only(ips), v6: NodePortAddresses::AllLocal };
            self.wanted.send_replace(Arc::new(Wanted { checks: checks.collect(), node_ports }));
        }

        fn reports(&self) -> Vec<String> {
            self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    /// The Service and the count that answer at `ip`, or nothing if nobody does.
    async fn ask(ip: &str, port: u16) -> Option<(String, u64)> {
        let mut stream = TcpStream::connect((ip, port)).await.ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        let body: serde_json::Value = serde_json::from_str(body).ok()?;
        let name = body["service"]["name"].as_str()?.to_owned();
        Some((name, body["localEndpoints"].as_u64()?))
    }

    async fn expect(ip: &str, port: u16, expected: Option<(&str, u64)>) {
        let expected = expected.map(|(name, count)| (name.to_owned(), count));
        let fulfilled = async {
            while ask(ip, port).await != expected {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let result = timeout(Duration::from_secs(10), fulfilled).await;
        assert!(result.is_ok(), "{ip}:{port}: {:?} instead of {expected:?}", ask(ip, port).await);
    }

    /// Ports that were free a moment ago.
    fn free_ports() -> [u16; 2] {
        let listeners = [(); 2].map(|()| TcpListener::bind("0.0.0.0:0").unwrap());
        listeners.map(|listener| listener.local_addr().unwrap().port())
    }

    #[tokio::test]
    async fn servers_follow_what_is_wanted() {
        let servers = Running::start();
        let [one, two] = free_ports();
        servers.want(&[("web", one, 1)], &["127.0.0.1"]);
        expect("127.0.0.1", one, Some(("web", 1))).await;
        expect("127.0.0.2", one, None).await;
        // A count, an address, a port.
        servers.want(&[("web", one, 2)], &["127.0.0.1"]);
        expect("127.0.0.1", one, Some(("web", 2))).await;
        servers.want(&[("web", one, 2)], &["127.0.0.2"]);
        expect("127.0.0.2", one, Some(("web", 2))).await;
        expect("127.0.0.1", one, None).await;
        servers.want(&[("web", two, 0)], &["127.0.0.2"]);
        expect("127.0.0.2", two, Some(("web", 0))).await;
        expect("127.0.0.2", one, None).await;
        // Ports change hands at once.
        servers.want(&[("web", one, 4), ("api", two, 5)], &["127.0.0.2"]);
        expect("127.0.0.2", two, Some(("api", 5))).await;
        expect("127.0.0.2", one, Some(("web", 4))).await;
        servers.want(&[("web", two, 4), ("api", one, 5)], &["127.0.0.2"]);
        expect("127.0.0.2", one, Some(("api", 5))).await;
        expect("127.0.0.2", two, Some(("web", 4))).await;
        servers.want(&[], &["127.0.0.2"]);
        expect("127.0.0.2", one, None).await;
        assert_eq!(servers.reports(), [""; 0]);
    }

    #[tokio::test]
    async fn open_connections_end_with_their_server() {
        let servers = Running::start();
        let [port, _] = free_ports();
        servers.want(&[("web", port, 1)], &["127.0.0.1"]);
        expect("127.0.0.1", port, Some(("web", 1))).await;
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        assert!(stream.read(&mut [0; 1000]).await.unwrap() > 0);
        servers.want(&[], &[]);
        let mut rest = Vec::new();
        let end = timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(end.is_ok(), "the connection is still open");
    }

    #[tokio::test]
    async fn an_address_in_use_is_said_once_and_tried_again() {
        let servers = Running::start();
        let [port, _] = free_ports();
        let blocker = TcpListener::bind(("127.0.0.1", port)).unwrap();
        for count in 1..4 {
            servers.want(&[("web", port, count)], &["127.0.0.1"]);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(servers.reports(), ["shop/web: AddrInUse"]);
        drop(blocker);
        // The next sync is an occasion, whatever it was about.
        servers.wanted.send_modify(|_| {});
        expect("127.0.0.1", port, Some(("web", 3))).await;

        // The first in the alphabet has a port that two want, even if it comes later ...
        servers.want(&[("web", port, 1), ("zoo", port, 2)], &["127.0.0.1"]);
        sleep(Duration::from_millis(100)).await;
        expect("127.0.0.1", port, Some(("web", 1))).await;
        assert_eq!(servers.reports()[1..], ["shop/zoo: AddrInUse"]);
        // ... and the other has it when it is free.
        servers.want(&[("zoo", port, 2)], &["127.0.0.1"]);
        expect("127.0.0.1", port, Some(("zoo", 2))).await;
    }

    #[test]
    fn all_local_addresses_are_one() {
        let all = NodePortAddresses::AllLocal;
        assert_eq!(addresses(IpFamily::V4, &all), ["0.0.0.0".parse::<IpAddr>().unwrap()]);
        assert_eq!(addresses(IpFamily::V6, &all), ["::".parse::<IpAddr>().unwrap()]);
    }
}
