//! The client of the API server: credentials that are renewed, proxies, and reports of requests.

mod access;
mod connect;
mod observed;
mod plugin;
mod proxy;
mod renewal;
mod token;

use std::{error::Error, io, path::PathBuf, time::Duration};

use kube::{Client, config::InClusterError};
use switchyard_core::error::ErrorChain;
use tokio::{
    task::{self, JoinError},
    time,
};
use tracing::warn;

#[cfg(feature = "testing")]
pub use self::plugin::has_credentials;
use self::{access::Access, observed::Observed, renewal::Renewing};
use crate::kube::{config::KubeConfig, watch::Pauses};

/// Why the configuration does not say how to reach the API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig `{path}`")]
    Kubeconfig {
        /// The file.
        path: String,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "neither a kubeconfig nor a server is given, and this is no pod with a service account"
    )]
    InCluster(#[source] InClusterError),
    /// The kubeconfig's server, or `master`, is no address.
    #[error("`{0}` is not the address of a server")]
    Server(String),
    /// The token file cannot be used.
    #[error("cannot use the token file `{}`", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The exec plugin provided no credentials.
    #[error("the exec plugin `{command}` failed")]
    Plugin {
        /// The command.
        command: String,
        /// The cause.
        source: io::Error,
    },
    /// The credentials, the certificates or the proxy cannot be used.
    #[error("cannot make a client for the API server")]
    Client(#[source] Box<kube::Error>),
    /// No authority is named, and those of the system cannot be used.
    #[error(
        "the kubeconfig names no certificate authority for the API server, and the system's cannot be \
         used; a container needs the host's /etc/ssl/certs"
    )]
    Authorities(#[source] Box<kube::Error>),
    /// The task that makes the client panicked.
    #[error("the client for the API server could not be made")]
    Ended(#[source] JoinError),
}

/// Returns a message about text with credentials, which the parser's message may quote.
fn decoding_error(error: &serde_saphyr::Error) -> String {
    match error.location() {
        Some(at) => format!("decoding fails at line {}, column {}", at.line(), at.column()),
        None => "decoding fails".to_owned(),
    }
}

/// A client of the API server, and where its connections go.
#[derive(Clone)]
#[non_exhaustive]
pub struct Connection {
    /// The client. Nothing was sent yet.
    pub client: Client,
    /// The server's name or address, with its port if that is given.
    pub server: String,
    /// The host that connections go to, by name or address: the server, or a proxy before it.
    pub peer: Option<String>,
}

/// Does the same as [`client`], but runs an exec plugin that fails again, with growing pauses.
///
/// # Errors
/// Those of [`client`], but for those of the plugin.
pub async fn connect(config: &KubeConfig) -> Result<Connection, ClientError> {
    let access = Access::load(config)?;
    let (server, peer) = (access.host(), access.peer().map(str::to_owned));
    let mut pauses = Pauses::default();
    loop {
        match with_access(access.clone(), config).await {
            Ok(client) => return Ok(Connection { client, server, peer }),
            Err(error @ ClientError::Plugin { .. }) => {
                let err = ErrorChain(&error).to_string();
                warn!(server, err, "Failed to load the client credentials; retrying");
                time::sleep(pauses.next(Duration::ZERO)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Makes a client for the API server. Nothing is sent yet.
///
/// The server is reached by the proxy that the kubeconfig's `proxy-url` names, or else by the proxy
/// of `HTTPS_PROXY` or `HTTP_PROXY` unless `NO_PROXY` covers the server, as by client-go. Proxies
/// are HTTP, HTTPS and SOCKS 5 proxies.
///
/// # Errors
/// If the kubeconfig, the service account, the address or the proxy cannot be used.
pub async fn client(config: &KubeConfig) -> Result<Client, ClientError> {
    with_access(Access::load(config)?, config).await
}

async fn with_access(access: Access, config: &KubeConfig) -> Result<Client, ClientError> {
    if let Some(observer) = &config.observer {
        observer.connecting_to(&access.host());
    }
    let namespace = access.default_namespace().to_owned();
    // A plugin is a program that is waited for.
    let renewing =
        task::spawn_blocking(|| Renewing::new(access)).await.map_err(ClientError::Ended)??;
    let service = Observed::new(renewing, config.observer.clone());
    Ok(Client::new(service, namespace))
}
