//! The listener, its connections, and the handle on all of it.

use std::{
    collections::VecDeque,
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt, Limited};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::{
    answer::Status,
    faults::Faults,
    route,
    store::Store,
    tls::{Identity, TlsError},
};

/// How many requests are remembered.
const MAX_REQUESTS: usize = 10_000;
/// The longest body that is read.
const MAX_BODY: usize = 16 << 20;

/// How the stand-in is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen. Port 0 picks one.
    pub address: SocketAddr,
    /// Further names and addresses for the certificate; `localhost` and the loopback addresses are
    /// always there.
    pub names: Vec<String>,
    /// How often watches get a bookmark; a real server's minute by default.
    pub bookmarks: Duration,
    /// How many changes of each resource a watch can go back.
    pub log_capacity: usize,
    /// Whether lists can be streamed.
    pub streaming_lists: bool,
    /// The token that clients must bring.
    pub token: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            names: Vec::new(),
            bookmarks: Duration::from_secs(60),
            log_capacity: 10_000,
            streaming_lists: true,
            token: "standin-token".to_owned(),
        }
    }
}

/// Why the stand-in cannot start, or cannot write its kubeconfig.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StandinError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// There is no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The kubeconfig cannot be written.
    #[error("cannot write the kubeconfig")]
    Kubeconfig(#[source] io::Error),
    /// An object of the caller's is not taken.
    #[error(transparent)]
    Store(#[from] crate::StoreError),
}

/// What connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) token: String,
    pub(crate) bookmarks: Duration,
    requests: Mutex<VecDeque<(String, String)>>,
    events: Mutex<Vec<Value>>,
}

impl Shared {
    pub(crate) fn record(&self, request: String, user_agent: Option<&str>) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() == MAX_REQUESTS {
            requests.pop_front();
        }
        requests.push_back((request, user_agent.unwrap_or_default().to_owned()));
    }

    pub(crate) fn keep_event(&self, event: Value) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// A running stand-in. It ends when this is dropped.
#[derive(Debug)]
pub struct Standin {
    shared: Arc<Shared>,
    address: SocketAddr,
    ca_pem: String,
    task: JoinHandle<()>,
}

impl Standin {
    /// Starts a stand-in with an empty store, on the current tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on, or no certificate can be made.
    pub async fn start(options: Options) -> Result<Self, StandinError> {
        let listen = |source| StandinError::Listen { address: options.address, source };
        let listener = TcpListener::bind(options.address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let mut names: Vec<_> = ["127.0.0.1", "::1", "localhost"].map(String::from).into();
        names.push(address.ip().to_string());
        names.extend(options.names.iter().cloned());
        names.sort();
        names.dedup();
        let Identity { acceptor, ca_pem } = Identity::new(names)?;
        let store = Store::new(options.log_capacity);
        let shared = Arc::new(Shared {
            faults: Faults::new(store.clone(), options.streaming_lists),
            store,
            token: options.token,
            bookmarks: options.bookmarks,
            requests: Mutex::default(),
            events: Mutex::default(),
        });
        let task = tokio::spawn(accept(listener, acceptor, shared.clone()));
        Ok(Self { shared, address, ca_pem, task })
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The switches for trouble.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a client wants it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The Events that clients created, oldest first.
    pub fn events(&self) -> Vec<Value> {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The newest requests, oldest first, as `GET /api/v1/nodes?limit=500`.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().map(|(request, _)| request.clone()).collect()
    }

    /// The `User-Agent` of the newest request.
    pub fn user_agent(&self) -> Option<String> {
        let requests = self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.back().map(|(_, user_agent)| user_agent.clone())
    }

    /// A kubeconfig for the stand-in.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1
kind: Config
current-context: standin
contexts:
- name: standin
  context: {{cluster: standin, user: standin}}
clusters:
- name: standin
  cluster:
    server: {}
    certificate-authority-data: {}
users:
- name: standin
  user: {{token: {}}}
",
            self.url(),
            STANDARD.encode(&self.ca_pem),
            serde_json::json!(self.shared.token),
        )
    }

    /// Writes [`Standin::kubeconfig`] to a file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), StandinError> {
        fs::write(path, self.kubeconfig()).map_err(StandinError::Kubeconfig)
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.faults.cut_connections();
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if !shared.faults.refuses_connections() => {
                tokio::spawn(connection(stream, acceptor.clone(), shared.clone()));
            }
            Ok(_) => (),
            Err(error) => {
                // Out of descriptors, most likely: they come back.
                debug!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection until it ends or is cut.
async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let mut cuts = shared.faults.watch_cuts();
    let serve = async {
        let _ = stream.set_nodelay(true);
        let stream = match acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return debug!(%error, "no TLS"),
        };
        let service = service_fn(|request| {
            let shared = shared.clone();
            async move { Ok::<_, std::convert::Infallible>(respond(&shared, request).await) }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        if let Err(error) = served {
            debug!(%error, "connection ended");
        }
    };
    tokio::select! {
        () = serve => (),
        // Drops the stream in the middle.
        _ = cuts.changed() => (),
    }
}

async fn respond(
    shared: &Shared,
    request: Request<Incoming>,
) -> hyper::Response<crate::answer::StreamedBody> {
    let (head, body) = request.into_parts();
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => route::answer(shared, &Request::from_parts(head, ()), &body.to_bytes()),
        Err(error) => Status::bad_request(error.to_string()).into_answer(),
    }
}
