//! The service that makes a new connection pool when credentials change.
//!
//! The `kube` client copies client certificates when it is made. The service therefore makes
//! another client when the files of certificates or tokens change, and when the credentials of an
//! exec plugin expire, or are rejected by the server. Requests that are under way, such as open
//! watches, end with the client that they began with; client-go closes them, which only servers
//! notice.

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
use tokio::{runtime::Handle, sync::Mutex as AsyncMutex, task, time::Instant};
use tokio_rustls::rustls;
use tower::Service;
use tracing::{info, warn};

use super::{ClientError, access::Access, connect, plugin};

/// The interval at which credential files are read without a reason, as in client-go.
const CHECK_AGAIN: Duration = Duration::from_secs(60);
/// The time to wait at least between two reads of the files, and between two attempts to make a
/// client, while requests are rejected.
const CHECK_REJECTED_AGAIN: Duration = Duration::from_secs(1);
/// The time to wait at least between two runs of a plugin, and the time before their expiry at
/// which credentials are renewed.
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
    /// The time at which the credentials of the plugin expire.
    expires: Option<Instant>,
    plugin_run: Option<Instant>,
    is_rejected: bool,
}

impl Current {
    /// Whether nothing has to be read or run before the client can be used.
    fn is_fresh(&self) -> bool {
        let limit = if self.is_rejected { CHECK_REJECTED_AGAIN } else { CHECK_AGAIN };
        self.files_read.elapsed() < limit && !(self.is_old() && self.may_run_plugin())
    }

    /// Whether the credentials of the plugin are about to expire.
    fn is_old(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now() + RUN_PLUGIN_AGAIN)
    }

    /// Whether the credentials of the plugin still work.
    fn is_valid(&self) -> bool {
        !self.is_rejected && self.expires.is_some_and(|expires| expires > Instant::now())
    }

    fn may_run_plugin(&self) -> bool {
        self.plugin_run.is_none_or(|run| run.elapsed() >= RUN_PLUGIN_AGAIN)
    }
}

impl Renewing {
    /// Reads the credentials and makes the first client. Blocks while a plugin runs, so that it is
    /// called from a thread on which a task may block.
    pub(super) fn new(access: Access) -> Result<Self, ClientError> {
        let hasher = RandomState::new();
        let files = hash_files(&hasher, access.credential_files());
        let (client, expires) = make_client(&access, true)?;
        let current = Current {
            client,
            generation: 0,
            files,
            files_read: Instant::now(),
            expires,
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
                Err(error) if is_tls_alert(error) => shared.reject(generation),
                _ => (),
            }
            answer
        }
        .boxed()
    }
}

impl Shared {
    /// Returns the client with the newest credentials, or with those that still work while a plugin
    /// runs.
    async fn client(self: &Arc<Self>) -> (Client, u64) {
        let current = self.lock().clone();
        if current.is_fresh() {
            return (current.client, current.generation);
        }
        let renewal = match Arc::clone(&self.renewal).try_lock_owned() {
            Ok(renewal) => renewal,
            Err(_) if current.is_valid() => return (current.client, current.generation),
            Err(_) => Arc::clone(&self.renewal).lock_owned().await,
        };
        // Another request may have made a client in the meantime.
        let current = self.lock().clone();
        if !current.is_fresh() {
            let (shared, is_valid) = (Arc::clone(self), current.is_valid());
            // The plugin may take longer than the request may, and is not run again before its end.
            let renewing = task::spawn_blocking(move || {
                shared.renew(&current);
                drop(renewal);
            });
            if !is_valid && let Err(error) = renewing.await {
                warn!(err = %ErrorChain(&error), "Failed to load the new client credentials");
            }
        }
        let current = self.lock();
        (current.client.clone(), current.generation)
    }

    /// Makes a client if there is reason to expect other credentials. Waits for the plugin, if any.
    fn renew(&self, current: &Current) {
        let files = hash_files(&self.hasher, self.access.credential_files());
        let has_plugin = self.access.plugin.is_some();
        let runs_plugin =
            has_plugin && (current.is_rejected || current.is_old()) && current.may_run_plugin();
        self.lock().files_read = Instant::now();
        if files == current.files && !runs_plugin {
            return;
        }
        let made = make_client(&self.access, false);
        let mut current = self.lock();
        if has_plugin {
            current.plugin_run = Some(Instant::now());
        }
        match made {
            Ok((client, expires)) => {
                info!("Client credentials rotated; new connections use them");
                current.client = client;
                current.expires = expires;
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

/// Makes a client, and returns when the credentials of the plugin expire, if there is one.
fn make_client(access: &Access, is_start: bool) -> Result<(Client, Option<Instant>), ClientError> {
    let credentials = match &access.plugin {
        Some(plugin) => {
            let run = plugin::run(plugin, plugin::LIMIT);
            let command = plugin.command.clone().unwrap_or_default();
            let failed = |source| ClientError::Plugin { command, source };
            Some(Handle::current().block_on(run).map_err(failed)?)
        }
        None => None,
    };
    let expires = credentials.as_ref().and_then(|credentials| credentials.expires);
    let config = access.client_config(credentials, is_start)?;
    let client = connect::client(&config).map_err(|error| {
        match matches!(error, kube::Error::RustlsTls(_)) && config.root_cert.is_none() {
            true => ClientError::Authorities(Box::new(error)),
            false => ClientError::Client(Box::new(error)),
        }
    })?;
    Ok((client, expires))
}

/// Whether the server ended a request in the TLS layer, as it does when it rejects a certificate.
fn is_tls_alert(error: &kube::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // An error of this type does not have the error in it as its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if matches!(inner, Some(rustls::Error::AlertReceived(_))) {
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
    use std::path::Path;

    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::{super::access::tests::write_kubeconfig, *};

    /// A plugin that counts its runs in a file, and prints the status in another.
    const PLUGIN: &str = r#"echo >> "$RUNS"
        echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status":'
        cat "$STATUS"; echo '}'"#;

    /// Credentials by the plugin, and the files of its runs and its status.
    async fn with_plugin(dir: &Path, status: &Value) -> (Arc<Shared>, PathBuf, PathBuf) {
        let [path, runs, file] = ["kubeconfig", "runs", "status"].map(|name| dir.join(name));
        let cluster = json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
        let env = [("RUNS", &runs), ("STATUS", &file)];
        let user = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", PLUGIN],
            "env": env.map(|(name, value)| json!({"name": name, "value": value})),
        }});
        fs::write(&file, status.to_string()).unwrap();
        let access = Access::load(&write_kubeconfig(&path, &cluster, &user, None)).unwrap();
        let Renewing(shared) =
            task::spawn_blocking(|| Renewing::new(access)).await.unwrap().unwrap();
        (shared, runs, file)
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_whose_credentials_are_rejected_is_not_run_in_a_loop() {
        let dir = tempfile::tempdir().unwrap();
        let (shared, runs, _) = with_plugin(dir.path(), &json!({"token": "t"})).await;
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
        assert_eq!(seen, [(1, 1, 1), (11, 1, 2), (21, 1, 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_is_run_again_when_its_credentials_expire() {
        let dir = tempfile::tempdir().unwrap();
        let status = |seconds| {
            let expires = Timestamp::now() + Duration::from_secs(seconds);
            json!({"token": "t", "expirationTimestamp": expires.to_string()})
        };
        let (shared, runs, file) = with_plugin(dir.path(), &status(1000)).await;
        let count = || fs::read(&runs).unwrap().len();
        tokio::time::advance(Duration::from_secs(900)).await;
        assert_eq!((shared.client().await.1, count()), (0, 1));
        fs::write(&file, status(15).to_string()).unwrap();
        tokio::time::advance(Duration::from_secs(120)).await;
        // Several requests wait for the same run.
        let (one, other) = tokio::join!(shared.client(), shared.client());
        assert_eq!((one.1, other.1, count()), (1, 1, 2));
        tokio::time::advance(Duration::from_secs(12)).await;
        fs::write(&file, "{}").unwrap();
        // Nothing waits for a plugin while its credentials work.
        let busy = Arc::clone(&shared.renewal).lock_owned().await;
        assert_eq!(shared.client().now_or_never().expect("no wait").1, 1);
        drop(busy);
        assert_eq!(shared.client().now_or_never().expect("no wait").1, 1);
        drop(shared.renewal.lock().await);
        assert_eq!(count(), 3);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!((shared.client().await.1, count()), (1, 3), "the last client stays");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((shared.client().await.1, count()), (1, 3), "not in a loop");
        // Without an expiry, as none of the credentials before.
        fs::write(&file, r#"{"token": "u"}"#).unwrap();
        tokio::time::advance(Duration::from_secs(12)).await;
        assert_eq!((shared.client().await.1, count()), (2, 4));
        tokio::time::advance(Duration::from_secs(1000)).await;
        assert_eq!((shared.client().await.1, count()), (2, 4));
    }

    #[test]
    fn the_servers_alert_is_about_credentials_and_its_certificate_is_not() {
        use rustls::{AlertDescription, CertificateError, Error};
        for (error, expected) in [
            (Error::AlertReceived(AlertDescription::CertificateExpired), true),
            (Error::InvalidCertificate(CertificateError::UnknownIssuer), false),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            assert_eq!(is_tls_alert(&kube::Error::Service(error.into())), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_again_and_the_last_token_stays() {
        // Beside the file, a token in the kubeconfig counts at the start alone.
        for beside in [json!(null), json!("static")] {
            let dir = tempfile::tempdir().unwrap();
            let (path, token) = (dir.path().join("kubeconfig"), dir.path().join("token"));
            let user = json!({"tokenFile": token, "token": beside});
            let cluster =
                json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
            let access = Access::load(&write_kubeconfig(&path, &cluster, &user, None)).unwrap();
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
