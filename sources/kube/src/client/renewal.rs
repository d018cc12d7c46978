//! The service that makes a new connection pool when credentials change.
//!
//! The `kube` client copies client certificates when it is made. The service therefore makes
//! another client when the files of certificates or tokens change, and when the server rejects the
//! credentials of an exec plugin. Requests that are under way, such as open watches, end with the
//! client that they began with; client-go closes them, which only servers notice.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use hyper::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use switchyard_core::error::ErrorChain;
use tokio::{sync::Mutex as AsyncMutex, task, time::Instant};
use tower::Service;
use tracing::{info, warn};

use super::{ClientError, access::Access, connect};

/// The interval at which credential files are read without a reason, as in client-go.
const CHECK_AGAIN: Duration = Duration::from_secs(60);
/// The time to wait at least between two reads of the files, and between two attempts to make a
/// client, while requests are rejected.
const CHECK_REJECTED_AGAIN: Duration = Duration::from_secs(1);
/// The time to wait at least between two runs of a plugin whose credentials are rejected.
const RUN_PLUGIN_AGAIN: Duration = Duration::from_secs(10);

/// A service that sends requests with the current credentials. Clones share them.
#[derive(Clone)]
pub(super) struct Renewing(Arc<Shared>);

struct Shared {
    access: Access,
    hasher: RandomState,
    current: Mutex<Current>,
    /// Held while a client is made.
    renewal: Arc<AsyncMutex<()>>,
}

#[derive(Clone)]
struct Current {
    client: Client,
    /// The number of clients that were made before this one.
    generation: u64,
    /// A hash of the credential files that the client was made from.
    files: u64,
    files_read: Instant,
    plugin_run: Option<Instant>,
    /// Whether the server rejected the credentials.
    is_rejected: bool,
}

impl Renewing {
    /// Reads the credentials and makes the first client.
    pub(super) fn new(access: Access) -> Result<Self, ClientError> {
        let hasher = RandomState::new();
        let files = hash_files(&hasher, access.credential_files());
        let current = Current {
            client: make_client(&access, true)?,
            generation: 0,
            files,
            files_read: Instant::now(),
            plugin_run: None,
            is_rejected: false,
        };
        let shared =
            Shared { access, hasher, current: Mutex::new(current), renewal: Arc::default() };
        Ok(Self(Arc::new(shared)))
    }
}

impl Service<Request<Body>> for Renewing {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, kube::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        async move {
            let (client, generation) = shared.client().await;
            let answer = client.send(request).await;
            match &answer {
                Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                    shared.reject(generation);
                }
                Err(error) if is_about_tls(error) => shared.reject(generation),
                _ => (),
            }
            answer
        }
        .boxed()
    }
}

impl Shared {
    /// Returns the client with the newest credentials.
    async fn client(self: &Arc<Self>) -> (Client, u64) {
        let is_fresh = |current: &Current| {
            let limit = if current.is_rejected { CHECK_REJECTED_AGAIN } else { CHECK_AGAIN };
            current.files_read.elapsed() < limit
        };
        let current = self.lock().clone();
        if is_fresh(&current) {
            return (current.client, current.generation);
        }
        let renewal = Arc::clone(&self.renewal).lock_owned().await;
        // Another request may have made a client in the meantime.
        let current = self.lock().clone();
        if !is_fresh(&current) {
            let shared = Arc::clone(self);
            // The plugin may take longer than the request may, and is not run again before its end.
            let renewing = task::spawn_blocking(move || {
                shared.renew(&current);
                drop(renewal);
            });
            if let Err(error) = renewing.await {
                warn!(err = %ErrorChain(&error), "Failed to load the new client credentials");
            }
        }
        let current = self.lock();
        (current.client.clone(), current.generation)
    }

    /// Makes a client if there is reason to expect other credentials. Waits for the plugin, if any.
    fn renew(&self, current: &Current) {
        let files = hash_files(&self.hasher, self.access.credential_files());
        let may_run_plugin = self.access.has_plugin()
            && current.plugin_run.is_none_or(|run| run.elapsed() >= RUN_PLUGIN_AGAIN);
        self.lock().files_read = Instant::now();
        if files == current.files && !(may_run_plugin && current.is_rejected) {
            return;
        }
        let made = make_client(&self.access, false);
        let mut current = self.lock();
        if self.access.has_plugin() {
            current.plugin_run = Some(Instant::now());
        }
        match made {
            Ok(client) => {
                info!("Client credentials rotated; new connections use them");
                current.client = client;
                current.generation += 1;
                current.files = files;
                current.is_rejected = false;
            }
            // The pair of files may be half written: they are read again.
            Err(error) => {
                warn!(err = %ErrorChain(&error), "Failed to load the new client credentials")
            }
        }
    }

    /// Records that the server rejected the credentials of a client.
    fn reject(&self, generation: u64) {
        let mut current = self.lock();
        if current.generation == generation {
            current.is_rejected = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Each change is complete when the lock is released.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_client(access: &Access, is_start: bool) -> Result<Client, ClientError> {
    connect::client(&access.client_config(is_start)?)
        .map_err(|error| ClientError::Client(Box::new(error)))
}

/// Whether a request failed in the TLS layer, as it does when the server rejects a certificate.
fn is_about_tls(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns a hash of the files' contents; a file that cannot be read counts as empty.
fn hash_files(hasher: &RandomState, files: &[PathBuf]) -> u64 {
    let contents = files.iter().map(|file| fs::read(file).unwrap_or_default());
    hasher.hash_one(contents.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::KubeConfig;

    fn kubeconfig(cluster: Value, user: Value) -> String {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c", "user": user}],
        });
        kubeconfig.to_string()
    }

    /// A plugin that counts its runs in a file.
    const PLUGIN: &str = r#"echo >> "$RUNS"
        echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": "t"}}'"#;

    #[tokio::test(start_paused = true)]
    async fn a_plugin_whose_credentials_are_rejected_is_not_run_in_a_loop() {
        let dir = tempfile::tempdir().unwrap();
        let (path, runs) = (dir.path().join("kubeconfig"), dir.path().join("runs"));
        let cluster = json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
        let user = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", PLUGIN], "env": [{"name": "RUNS", "value": runs}],
        }});
        fs::write(&path, kubeconfig(cluster, user)).unwrap();
        let config = KubeConfig { kubeconfig: Some(path), ..KubeConfig::new("test") };
        let Renewing(shared) = Renewing::new(Access::load(&config).unwrap()).unwrap();
        let count = || fs::read(&runs).unwrap().len();
        let (start, mut seen) = (Instant::now(), Vec::new());
        let mut before = count();
        for _ in 0..=25 {
            if start.elapsed().as_secs() == 21 {
                // A request that is given up.
                drop(shared.client().now_or_never());
                drop(shared.renewal.lock().await);
            }
            let (_, generation) = shared.client().await;
            shared.reject(generation);
            if count() > before {
                seen.push((start.elapsed().as_secs(), count() - before, generation));
                before = count();
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        // The client runs the plugin twice: for a certificate, and for a token.
        assert_eq!(seen, [(1, 2, 1), (11, 2, 2), (21, 2, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_again_and_the_last_token_stays() {
        // Beside the file, a token in the kubeconfig counts at the start alone.
        for beside in [json!(null), json!("static")] {
            let dir = tempfile::tempdir().unwrap();
            let (path, token) = (dir.path().join("kubeconfig"), dir.path().join("token"));
            let user = json!({"tokenFile": token, "token": beside});
            let cluster = json!({"server": "http://127.0.0.1:1"});
            fs::write(&path, kubeconfig(cluster, user)).unwrap();
            let config = KubeConfig { kubeconfig: Some(path), ..KubeConfig::new("test") };
            let access = Access::load(&config).unwrap();
            for unusable in ["\n", "a\u{7f}b"] {
                fs::write(&token, unusable).unwrap();
                assert_eq!(Renewing::new(access.clone()).is_ok(), beside == "static");
            }
            fs::write(&token, "one\n").unwrap();
            let Renewing(shared) = Renewing::new(access).unwrap();
            fs::write(&token, "two").unwrap();
            tokio::time::advance(Duration::from_secs(50)).await;
            assert_eq!(shared.client().await.1, 0);
            tokio::time::advance(Duration::from_secs(15)).await;
            assert_eq!(shared.client().await.1, 1);
            fs::write(&token, "three\r\n").unwrap();
            tokio::time::advance(Duration::from_secs(2)).await;
            shared.reject(1);
            assert_eq!(shared.client().await.1, 2, "after a rejection");
            fs::write(&token, "").unwrap();
            for _ in 0..2 {
                tokio::time::advance(Duration::from_secs(65)).await;
                assert_eq!(shared.client().await.1, 2, "beside {beside}");
                let _ = fs::remove_file(&token);
            }
        }
    }
}
