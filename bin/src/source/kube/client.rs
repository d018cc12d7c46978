//! How to reach the API server.

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    client::ClientBuilder,
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::{KubeConfig, requests::Counting};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why it is not known how to reach the API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig `{path}`")]
    Kubeconfig {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: Box<KubeconfigError>,
    },
    /// There is neither a kubeconfig nor a service account.
    #[error(
        "neither a kubeconfig nor a server is given, and this is no pod with a service account"
    )]
    InCluster(#[source] InClusterError),
    /// `master` is no address.
    #[error("`{0}` is not the address of a server")]
    Master(String),
    /// The credentials or certificates cannot be used.
    #[error("cannot make a client for the API server")]
    Client(#[source] Box<kube::Error>),
}

/// Makes a client for the API server. Nothing is sent yet.
///
/// # Errors
/// If the kubeconfig, the service account or the address cannot be used.
pub async fn client(config: &KubeConfig) -> Result<Client, ClientError> {
    let mut kube = match (&config.kubeconfig, &config.master) {
        (Some(path), _) => from_file(path).await?,
        (None, Some(_)) => Config::new(Default::default()),
        (None, None) => Config::incluster().map_err(ClientError::InCluster)?,
    };
    if let Some(master) = &config.master {
        // As client-go has it: a bare address is spoken to with TLS if we know whom to trust.
        let has_tls = kube.root_cert.is_some() || kube.accept_invalid_certs;
        let scheme = match (master.contains("://"), has_tls) {
            (true, _) => "",
            (false, true) => "https://",
            (false, false) => "http://",
        };
        let address = format!("{scheme}{master}");
        kube.cluster_url = address.parse().map_err(|_| ClientError::Master(master.clone()))?;
        if kube.cluster_url.host().is_none() {
            return Err(ClientError::Master(master.clone()));
        }
    }
    // Whoever's certificate nobody looks at needs no authorities. Without this the system's would
    // be read, and an image that holds nothing but this program has none.
    let is_plain = kube.cluster_url.scheme_str() == Some("http");
    if kube.root_cert.is_none() && (is_plain || kube.accept_invalid_certs) {
        kube.root_cert = Some(Vec::new());
    }
    kube.connect_timeout = Some(CONNECT_TIMEOUT);
    // The watches have their own back-off, and say what they wait for.
    kube.default_retry = false;
    if let (Ok(name), Ok(value)) = ("user-agent".parse(), config.user_agent.parse()) {
        kube.headers.push((name, value));
    }
    let host = kube.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let builder =
        ClientBuilder::try_from(kube).map_err(|error| ClientError::Client(Box::new(error)))?;
    Ok(match config.requests.clone() {
        Some(metrics) => {
            metrics.set_host(host);
            builder.with_layer(&Counting(metrics)).build()
        }
        None => builder.build(),
    })
}

async fn from_file(path: &Path) -> Result<Config, ClientError> {
    let failed = |source| ClientError::Kubeconfig {
        path: path.display().to_string(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
    let ca_file = ca_file(&kubeconfig);
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?;
    // So that the file is read again when the authority changes.
    config.root_cert_file = ca_file.map(Into::into);
    Ok(config)
}

/// The file with the authority's certificate in the current context, if it is a file.
fn ca_file(kubeconfig: &Kubeconfig) -> Option<String> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *current)?;
    let cluster = &context.context.as_ref()?.cluster;
    let named = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    let cluster = named.cluster.as_ref()?;
    match cluster.certificate_authority_data {
        Some(_) => None,
        None => cluster.certificate_authority.clone(),
    }
}
