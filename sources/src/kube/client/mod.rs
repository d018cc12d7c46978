//! The client of the API server: credentials that are renewed, proxies, and reports of requests.

mod access;
mod connect;
mod observed;
mod plugin;
mod proxy;
mod renewal;
mod retry_after;
mod token;

use std::{error::Error, io, path::PathBuf};

use kube::{Client, config::InClusterError};
use tokio::task::{self, JoinError};

#[cfg(feature = "testing")]
pub use self::plugin::has_credentials;
pub(super) use self::retry_after::RetryAfter;
use self::{access::Access, observed::Observed, renewal::Renewing};
use crate::kube::config::KubeConfig;

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
    /// The task that makes the client panicked.
    #[error("the client for the API server could not be made")]
    Ended(#[source] JoinError),
}

/// Returns the host that connections of a [`client`] go to, by name or address: that of the API
/// server, or of a proxy before it. Nothing is sent.
///
/// # Errors
/// Those of [`client`].
pub fn peer(config: &KubeConfig) -> Result<Option<String>, ClientError> {
    Ok(Access::load(config)?.peer().map(str::to_owned))
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
    let access = Access::load(config)?;
    if let Some(observer) = &config.observer {
        observer.connecting_to(&access.host());
    }
    let namespace = access.default_namespace().to_owned();
    // A plugin is a program that is waited for.
    let renewing =
        task::spawn_blocking(|| Renewing::new(access)).await.map_err(ClientError::Ended)??;
    let service = Observed::new(renewing, config.observer.clone());
    Ok(Client::new(RetryAfter(service), namespace))
}
