//! The servers of the health of Services, one for each Service and address.

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

use switchyard_core::{
    model::{IpFamily, PerFamily, ServiceName},
    state::{HealthCheck, NodePortAddresses},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle, time};

use super::ServiceHealthHandler;
use crate::health::{
    ProxyHealth,
    http::{connections::Connections, listen, serve},
};

/// The wait before a failed bind is retried, unless a sync comes earlier.
const RETRY: Duration = Duration::from_secs(5);

/// The Services whose health is to be served, and the addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HealthChecks {
    /// The health checks, by Service.
    pub checks: HashMap<ServiceName, HealthCheck>,
    /// The node's addresses that serve the health checks.
    pub addresses: PerFamily<NodePortAddresses>,
}

/// A Service that cannot be served at an address.
#[derive(Debug)]
pub struct NotServed<'a> {
    /// The Service.
    pub service: &'a ServiceName,
    /// The address.
    pub address: SocketAddr,
    /// Why the address cannot be served.
    pub error: &'a io::Error,
}

/// The servers. Dropping this value closes all servers.
pub struct ServiceHealthServers {
    health: Arc<ProxyHealth>,
    families: Vec<IpFamily>,
    connections: Arc<Connections>,
    report: Box<dyn Fn(NotServed<'_>) + Send>,
    running: HashMap<ServerKey, Server>,
    failed: HashSet<ServerKey>,
}

/// The Service and the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ServerKey {
    service: ServiceName,
    address: SocketAddr,
}

struct Server {
    local_endpoints: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Closes the server, and returns when the address is free.
    async fn close(mut self) {
        self.task.abort();
        // The only error is that the task was aborted.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ServiceHealthServers {
    /// Returns a set of servers, which is empty, for these families. Servers and connections count
    /// for the limits of `connections`. `report` is called once for each address that cannot be
    /// served, and again only after the address was served in between.
    pub fn new(
        health: Arc<ProxyHealth>,
        families: Vec<IpFamily>,
        connections: Arc<Connections>,
        report: impl Fn(NotServed<'_>) + Send + 'static,
    ) -> Self {
        let report = Box::new(report);
        let (running, failed) = (HashMap::new(), HashSet::new());
        Self { health, families, connections, report, running, failed }
    }

    /// Serves the wanted health checks, for ever. Each value that is sent, changed or not, makes
    /// failed binds be retried.
    pub async fn run(mut self, mut wanted: watch::Receiver<Arc<HealthChecks>>) -> Infallible {
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
                    // The wanted health checks cannot change any more.
                    std::future::pending::<()>().await;
                },
                () = retry => {}
            }
        }
    }

    async fn apply(&mut self, wanted: &HealthChecks) {
        let keys = self.keys(wanted);
        let gone: Vec<ServerKey> =
            self.running.keys().filter(|key| !keys.contains_key(key)).cloned().collect();
        for key in gone {
            if let Some(server) = self.running.remove(&key) {
                tracing::debug!(service = %key.service, address = %key.address,
                    "Closing healthcheck");
                server.close().await;
            }
        }
        self.failed.retain(|key| keys.contains_key(key));
        for (key, count) in keys {
            match self.running.get(&key) {
                Some(server) => server.local_endpoints.store(count, Ordering::Relaxed),
                None => self.open(key, count),
            }
        }
    }

    /// Returns the servers to run and the count of endpoints at each. The order is fixed: if two
    /// Services have the same port, chance must not decide which of them is served.
    fn keys(&self, wanted: &HealthChecks) -> BTreeMap<ServerKey, usize> {
        let mut keys = BTreeMap::new();
        for (service, check) in &wanted.checks {
            for family in &self.families {
                let Some(count) = *check.local_endpoints.get(*family) else { continue };
                for ip in addresses(*family, wanted.addresses.get(*family)) {
                    let address = SocketAddr::new(ip, check.port);
                    keys.insert(ServerKey { service: service.clone(), address }, count);
                }
            }
        }
        keys
    }

    fn open(&mut self, key: ServerKey, count: usize) {
        let ServerKey { service, address } = &key;
        let listener = match self.bind(*address) {
            Ok(listener) => listener,
            Err(error) => {
                if !self.failed.contains(&key) {
                    (self.report)(NotServed { service, address: *address, error: &error });
                    self.failed.insert(key);
                }
                return;
            }
        };
        tracing::debug!(%service, %address, "Opening healthcheck");
        self.failed.remove(&key);
        let local_endpoints = Arc::new(AtomicUsize::new(count));
        let handler = Arc::new(ServiceHealthHandler {
            service: service.clone(),
            local_endpoints: Arc::clone(&local_endpoints),
            health: Arc::clone(&self.health),
        });
        let connections = Arc::clone(&self.connections);
        let task = tokio::spawn(async move {
            match serve::accept("service health", listener, handler, connections).await {}
        });
        self.running.insert(key, Server { local_endpoints, task });
    }

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        if self.running.len() >= self.connections.limits().service_health_servers {
            return Err(io::Error::other("the limit of file descriptors allows no more servers"));
        }
        listen::bind_one(address)
    }
}

/// Returns the addresses to listen at.
fn addresses(family: IpFamily, node_ports: &NodePortAddresses) -> Vec<IpAddr> {
    match (node_ports, family) {
        (NodePortAddresses::Only(ips), _) => ips.iter().copied().collect(),
        (_, IpFamily::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
        (_, IpFamily::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
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
    use crate::health::http::connections::Limits;

    type Reports = Arc<Mutex<Vec<String>>>;

    /// Running servers, and the sender of the wanted health checks.
    struct Running {
        wanted: watch::Sender<Arc<HealthChecks>>,
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
            Self::with_limits(Limits::new(1024))
        }

        fn with_limits(limits: Limits) -> Self {
            let reports = Reports::default();
            let theirs = Arc::clone(&reports);
            let servers = ServiceHealthServers::new(
                Arc::new(ProxyHealth::new(Duration::from_secs(60))),
                vec![IpFamily::V4],
                Connections::new(limits),
                move |NotServed { service, error, .. }| {
                    let mut reports = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                    reports.push(format!("{service}: {:?}", error.kind()));
                },
            );
            let (wanted, receiver) = watch::channel(Arc::default());
            Self { wanted, reports, task: tokio::spawn(servers.run(receiver)) }
        }

        /// Sends these Services at these addresses, each with a port and a count.
        fn want(&self, services: &[(&str, u16, usize)], at: &[&str]) {
            let checks = services.iter().map(|(name, port, count)| {
                let local_endpoints = PerFamily { v4: Some(*count), v6: Some(9) };
                let check = HealthCheck { port: *port, local_endpoints };
                (ServiceName::new("shop", name), check)
            });
            let ips = at.iter().map(|ip| ip.parse().unwrap()).collect();
            let addresses =
                PerFamily { v4: NodePortAddresses::Only(ips), v6: NodePortAddresses::AllLocal };
            self.wanted
                .send_replace(Arc::new(HealthChecks { checks: checks.collect(), addresses }));
        }

        fn reports(&self) -> Vec<String> {
            self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    /// Returns the Service and the count that `ip` answers with, or `None` without an answer.
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

    /// Returns ports that were free just now.
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
        // The count, the address and the port change.
        servers.want(&[("web", one, 2)], &["127.0.0.1"]);
        expect("127.0.0.1", one, Some(("web", 2))).await;
        servers.want(&[("web", one, 2)], &["127.0.0.2"]);
        expect("127.0.0.2", one, Some(("web", 2))).await;
        expect("127.0.0.1", one, None).await;
        servers.want(&[("web", two, 0)], &["127.0.0.2"]);
        expect("127.0.0.2", two, Some(("web", 0))).await;
        expect("127.0.0.2", one, None).await;
        // Two Services swap their ports.
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
        // The next sync makes failed binds be retried.
        servers.wanted.send_modify(|_| {});
        expect("127.0.0.1", port, Some(("web", 3))).await;

        // Of two Services with the same port, the first by name is served ...
        servers.want(&[("web", port, 1), ("zoo", port, 2)], &["127.0.0.1"]);
        sleep(Duration::from_millis(100)).await;
        expect("127.0.0.1", port, Some(("web", 1))).await;
        assert_eq!(servers.reports()[1..], ["shop/zoo: AddrInUse"]);
        // ... and the other Service is served when the port is free.
        servers.want(&[("zoo", port, 2)], &["127.0.0.1"]);
        expect("127.0.0.1", port, Some(("zoo", 2))).await;
    }

    #[tokio::test]
    async fn servers_have_a_limit() {
        let servers = Running::with_limits(Limits { connections: 100, service_health_servers: 2 });
        let [one, two] = free_ports();
        let at = ["127.0.0.1", "127.0.0.2"];
        servers.want(&[("api", one, 1), ("web", two, 2)], &at);
        expect("127.0.0.1", one, Some(("api", 1))).await;
        expect("127.0.0.2", one, Some(("api", 1))).await;
        expect("127.0.0.1", two, None).await;
        // Another server takes the place of a server that ends.
        servers.want(&[("web", two, 2)], &at);
        expect("127.0.0.1", two, Some(("web", 2))).await;
        expect("127.0.0.2", two, Some(("web", 2))).await;
        assert_eq!(servers.reports(), ["shop/web: Other"; 2]);
    }

    #[test]
    fn all_local_addresses_are_one() {
        let all = NodePortAddresses::AllLocal;
        assert_eq!(addresses(IpFamily::V4, &all), ["0.0.0.0".parse::<IpAddr>().unwrap()]);
        assert_eq!(addresses(IpFamily::V6, &all), ["::".parse::<IpAddr>().unwrap()]);
    }
}
