//! The listener, its connections, and the handle on a running stand-in.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::{BodyExt, Limited};
use hyper::{Request, body::Body, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tracing::debug;

use crate::{
    answer::Status,
    faults::Faults,
    route,
    state::Shared,
    store::Store,
    tls::{ClientCertificate, Identity},
};

/// The longest body that is read.
const MAX_BODY: usize = 16 << 20;

/// The configuration of the stand-in.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on; port 0 selects a free port.
    pub address: SocketAddr,
    /// Further names and addresses for the certificate, which always has `localhost` and the
    /// loopback addresses.
    pub names: Vec<String>,
    /// The interval at which a bookmark is sent on watches; every minute by default, as by a real
    /// server.
    pub bookmarks: Duration,
    /// Whether lists can be streamed.
    pub streaming_lists: bool,
    /// The token that clients must send.
    pub token: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            names: Vec::new(),
            bookmarks: Duration::from_secs(60),
            streaming_lists: true,
            token: "standin-token".to_owned(),
        }
    }
}

/// A running stand-in, which ends when it is dropped.
#[derive(Debug)]
pub struct Standin {
    shared: Arc<Shared>,
    address: SocketAddr,
    identity: Arc<Identity>,
    task: JoinHandle<()>,
}

impl Standin {
    /// Starts a stand-in with an empty store, on the current tokio runtime.
    pub async fn start(options: Options) -> Self {
        let listener = TcpListener::bind(options.address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut names: Vec<_> = ["127.0.0.1", "::1", "localhost"].map(String::from).into();
        names.push(address.ip().to_string());
        names.extend(options.names.iter().cloned());
        names.sort();
        names.dedup();
        let identity = Arc::new(Identity::new(names));
        let shared = Arc::new(Shared::new(&options));
        let task = tokio::spawn(accept(listener, identity.clone(), shared.clone()));
        Self { shared, address, identity, task }
    }

    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The Events that clients created, oldest first.
    pub fn events(&self) -> Vec<Value> {
        self.shared.events()
    }

    /// The newest requests, oldest first, as `GET /api/v1/nodes?limit=500`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests()
    }

    /// The `User-Agent` of the newest request.
    pub fn user_agent(&self) -> Option<String> {
        self.shared.user_agent()
    }

    /// Replaces the token that clients must send.
    pub fn set_token(&self, token: &str) {
        token.clone_into(&mut self.shared.token());
    }

    /// Issues a client certificate that counts instead of the token.
    pub fn issue_certificate(&self) -> ClientCertificate {
        let certificate = self.identity.issue(false);
        self.shared.certificates().insert(certificate.der.clone());
        certificate
    }

    /// Issues a client certificate that has expired: connections with it end with a TLS alert.
    pub fn issue_expired_certificate(&self) -> ClientCertificate {
        self.identity.issue(true)
    }

    /// Rejects all client certificates that were issued so far with 401.
    pub fn revoke_certificates(&self) {
        self.shared.certificates().clear();
    }

    /// A kubeconfig for the stand-in, with its token.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_for(&format!("{{token: {}}}", serde_json::json!(*self.shared.token())))
    }

    /// A kubeconfig for the stand-in with the fields of a user, as YAML in one line.
    pub fn kubeconfig_for(&self, user: &str) -> String {
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
  user: {user}
",
            self.url(),
            STANDARD.encode(self.identity.ca_pem()),
        )
    }

    pub fn write_kubeconfig(&self, path: &Path) {
        fs::write(path, self.kubeconfig()).unwrap();
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.faults.cut_connections();
    }
}

async fn accept(listener: TcpListener, identity: Arc<Identity>, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if !shared.faults.lock().refuses_connections => {
                tokio::spawn(connection(stream, identity.clone(), shared.clone()));
            }
            Ok(_) => (),
            Err(error) => {
                // Most likely the process is out of file descriptors for the moment.
                debug!(%error, "Cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection until it ends or is cut.
async fn connection(stream: TcpStream, identity: Arc<Identity>, shared: Arc<Shared>) {
    let mut cuts = shared.faults.cuts.subscribe();
    let serve = async {
        let _ = stream.set_nodelay(true);
        let stream = match identity.acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return debug!(%error, "TLS handshake failed"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let certificate = certificates.and_then(|chain| chain.first()).map(|first| first.to_vec());
        let service = service_fn(|request| {
            let (shared, certificate) = (shared.clone(), certificate.clone());
            async move {
                let counts = certificate.map(|der| shared.certificates().contains(&der));
                Ok::<_, std::convert::Infallible>(respond(&shared, request, counts).await)
            }
        });
        let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        if let Err(error) = served {
            debug!(%error, "Connection ended");
        }
    };
    tokio::select! {
        () = serve => (),
        // Drops the stream in the middle.
        _ = cuts.changed() => (),
    }
}

/// Answers a request. `certificate` says whether the client certificate of the connection counts,
/// if there is one.
pub(crate) async fn respond<B>(
    shared: &Shared,
    request: Request<B>,
    certificate: Option<bool>,
) -> hyper::Response<crate::answer::StreamedBody>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => {
            let request = Request::from_parts(head, ());
            let answer = route::answer(shared, &request, &body.to_bytes(), certificate);
            shared.faults.may_answer().await;
            answer
        }
        Err(error) => {
            let media = shared.media_type(&head.headers);
            Status::bad_request(error.to_string()).into_answer(media)
        }
    }
}
