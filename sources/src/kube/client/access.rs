//! The `kube` configuration of a client, from a kubeconfig, a pod's service account or an address.
//!
//! The kubeconfig's fields are copied here and not by `kube`'s loader, because that loader applies
//! the proxy variables differently from client-go: it matches `NO_PROXY` against the proxy, and
//! fails on entries that client-go skips.

use std::{
    env,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use hyper::Uri;
use k8s_openapi::ByteString;
use kube::{
    Config,
    config::{
        AuthInfo, Cluster, Context, ExecAuthCluster, ExecConfig, Kubeconfig, KubeconfigError,
    },
};
use secrecy::ExposeSecret;
use tracing::warn;

use super::{
    ClientError, KubeConfig, decoding_error, plugin::Credentials, proxy, token::usable_token,
};

/// The credentials and the server, as they were read once at the start. Files that a kubeconfig
/// names are read again for each [`Access::client_config`].
#[derive(Clone, Debug)]
pub(super) struct Access {
    config: Config,
    /// Files whose contents the client copies when it is made.
    credential_files: Vec<PathBuf>,
    token_file: Option<PathBuf>,
    pub(super) plugin: Option<ExecConfig>,
}

impl Access {
    pub(super) fn load(config: &KubeConfig) -> Result<Self, ClientError> {
        let mut kube = match (&config.kubeconfig, &config.master) {
            (Some(path), master) => from_kubeconfig(path, master.clone()).map_err(|source| {
                ClientError::Kubeconfig { path: path.display().to_string(), source }
            })?,
            (None, Some(master)) => Config::new(server_address(master, false)?),
            (None, None) => Config::incluster().map_err(ClientError::InCluster)?,
        };
        let user = &kube.auth_info;
        let has_others = user.token_file.is_some()
            || user.token.is_some()
            || user.auth_provider.is_some()
            || user.username.is_some() && user.password.is_some();
        let is_plain = kube.cluster_url.scheme_str() == Some("http");
        if is_plain {
            if has_others || user.exec.is_some() {
                warn!("Credentials of the kubeconfig not used, as its server has no TLS");
            }
            // As in client-go, credentials are for TLS alone.
            kube.auth_info = AuthInfo::default();
        }
        // Certificates that nothing verifies need no authorities. Without this the system's would
        // be read, and an image that holds nothing but the program has none.
        if kube.root_cert.is_none() && (is_plain || kube.accept_invalid_certs) {
            kube.root_cert = Some(Vec::new());
        }
        if kube.proxy_url.is_none() {
            kube.proxy_url = proxy::from_environment(&kube.cluster_url, |name| env::var(name).ok());
        }
        let user = &kube.auth_info;
        let credential_files = [
            (&user.client_certificate, user.client_certificate_data.is_none()),
            (&user.client_key, user.client_key_data.is_none()),
            (&user.token_file, true),
        ]
        .into_iter()
        .filter_map(|(file, counts)| file.as_ref().filter(|_| counts).map(PathBuf::from))
        .collect();
        let token_file = kube.auth_info.token_file.take().map(PathBuf::from);
        // As in client-go, other credentials go before those of a plugin.
        let plugin = kube.auth_info.exec.take().filter(|_| !has_others);
        if let (Ok(name), Ok(value)) = ("user-agent".parse(), config.user_agent.parse()) {
            kube.headers.push((name, value));
        }
        Ok(Self { config: kube, credential_files, token_file, plugin })
    }

    pub(super) fn default_namespace(&self) -> &str {
        &self.config.default_namespace
    }

    /// The server's name or address, with its port if that is given.
    pub(super) fn host(&self) -> String {
        let authority = self.config.cluster_url.authority();
        authority.map(|text| without_user(text.as_str()).to_owned()).unwrap_or_default()
    }

    /// The host that connections go to, by name or address: the proxy's, or else the server's.
    pub(super) fn peer(&self) -> Option<&str> {
        let url = self.config.proxy_url.as_ref().unwrap_or(&self.config.cluster_url);
        Some(url.host()?.trim_matches(['[', ']']))
    }

    pub(super) fn credential_files(&self) -> &[PathBuf] {
        &self.credential_files
    }

    /// Returns the configuration for a client, with the credentials of the plugin, or with the
    /// token that is in the token file now. As in client-go, the token of a file goes before a
    /// token in the kubeconfig, which counts at the start if the file cannot be read, and a line
    /// break may follow the token.
    pub(super) fn client_config(
        &self,
        credentials: Option<Credentials>,
        is_start: bool,
    ) -> Result<Config, ClientError> {
        let mut config = self.config.clone();
        if let Some(Credentials { token, identity, .. }) = credentials {
            config.auth_info.token = token.map(Into::into);
            if let Some(pair) = identity {
                let [certificate, key] = pair.map(|pem| base64(pem.into_bytes()));
                config.auth_info.client_certificate_data = Some(certificate);
                config.auth_info.client_key_data = Some(key.into());
            }
        }
        if let Some(path) = &self.token_file {
            match read_token(path) {
                Ok(token) => config.auth_info.token = Some(token.into()),
                // Later, the client that there is has the last token of the file.
                Err(_) if is_start && config.auth_info.token.is_some() => {}
                Err(source) => return Err(ClientError::Token { path: path.clone(), source }),
            }
        }
        Ok(config)
    }
}

fn read_token(path: &Path) -> io::Result<String> {
    usable_token(&fs::read_to_string(path)?)
}

/// Encodes data as a kubeconfig holds it.
fn base64(data: Vec<u8>) -> String {
    let encoded = serde_json::to_value(ByteString(data)).ok();
    encoded.as_ref().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

/// Returns an address without a user's name and password, which no message may have.
fn without_user(address: &str) -> &str {
    address.rsplit_once('@').map_or(address, |(_, rest)| rest)
}

/// Returns the address of a server. One without a scheme is reached by TLS if `has_tls`.
fn server_address(server: &str, has_tls: bool) -> Result<Uri, ClientError> {
    let scheme = match (server.contains("://"), has_tls) {
        (true, _) => "",
        (false, true) => "https://",
        (false, false) => "http://",
    };
    let address = format!("{scheme}{server}").parse::<Uri>().ok();
    address
        .filter(|address| address.host().is_some())
        .ok_or_else(|| ClientError::Server(without_user(server).to_owned()))
}

/// Returns the configuration of the kubeconfig's current context. As in client-go, `master` takes
/// the place of the kubeconfig's server and of the name in the server's certificate.
fn from_kubeconfig(
    path: &Path,
    master: Option<String>,
) -> Result<Config, Box<dyn Error + Send + Sync>> {
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::Parse(error) => decoding_error(&error).into(),
        error => Box::<dyn Error + Send + Sync>::from(error),
    })?;
    let name = kubeconfig.current_context.filter(|name| !name.is_empty());
    let (context, mut cluster) = match name {
        // Without a context, the server is all that there is.
        None if master.is_some() => (Context::default(), Cluster::default()),
        None => return Err(KubeconfigError::CurrentContextNotSet.into()),
        Some(name) => {
            let context = kubeconfig.contexts.into_iter().find(|named| named.name == name);
            let context = context
                .and_then(|named| named.context)
                .ok_or(KubeconfigError::LoadContext(name))?;
            let name = context.cluster.clone();
            let cluster = kubeconfig.clusters.into_iter().find(|named| named.name == name);
            let cluster = cluster.and_then(|named| named.cluster);
            let cluster = cluster.or_else(|| master.is_some().then(Cluster::default));
            (context, cluster.ok_or(KubeconfigError::LoadClusterOfContext(name))?)
        }
    };
    if master.is_some() {
        cluster.server = master;
        cluster.tls_server_name = None;
    }
    // As in client-go, a user that is missing means no credentials.
    let user = context.user.and_then(|name| {
        kubeconfig.auth_infos.into_iter().find(|named| named.name == name)?.auth_info
    });
    let mut user = user.unwrap_or_default();
    unset_empty(&mut cluster, &mut user, path);
    let plugin = user.exec.as_ref();
    if plugin.is_some_and(|plugin| plugin.command.as_deref().unwrap_or_default().is_empty()) {
        return Err("the exec plugin has no command".into());
    }

    let mut config = Config::new(Uri::default());
    if let Some(namespace) = context.namespace {
        config.default_namespace = namespace;
    }
    config.root_cert = authorities(&cluster)?;
    if cluster.certificate_authority_data.is_none() {
        // The client reads the file again when the authority changes.
        config.root_cert_file = cluster.certificate_authority.as_ref().map(Into::into);
    }
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or(false);
    config.disable_compression = cluster.disable_compression.unwrap_or(false);
    if let Some(proxy) = &cluster.proxy_url {
        config.proxy_url = Some(proxy.parse().map_err(KubeconfigError::ParseProxyUrl)?);
    }
    config.auth_info = with_cluster(user, &cluster)?;
    config.tls_server_name = cluster.tls_server_name;
    let server = cluster.server.ok_or(KubeconfigError::MissingClusterUrl)?;
    let user = &config.auth_info;
    // client-go's rule for clients. By its rule for kubeconfigs, no server that has TLS could be
    // reached: without a scheme, it sends plain text and no credentials.
    let has_tls = config.root_cert.is_some()
        || config.accept_invalid_certs
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some();
    config.cluster_url = server_address(&server, has_tls)?;
    Ok(config)
}

/// Takes out the empty fields, which are as absent ones to client-go.
fn unset_empty(cluster: &mut Cluster, user: &mut AuthInfo, kubeconfig: &Path) {
    let texts = [
        &mut cluster.certificate_authority_data,
        &mut cluster.proxy_url,
        &mut cluster.tls_server_name,
        &mut user.username,
        &mut user.client_certificate_data,
    ];
    let secrets = [&mut user.password, &mut user.token, &mut user.client_key_data];
    let files = [
        &mut cluster.certificate_authority,
        &mut user.client_certificate,
        &mut user.client_key,
        &mut user.token_file,
    ];
    for text in texts {
        text.take_if(|text| text.is_empty());
    }
    for secret in secrets {
        secret.take_if(|secret| secret.expose_secret().is_empty());
    }
    // Relative ones have been taken from there.
    let directory = kubeconfig.parent().unwrap_or(kubeconfig);
    for file in files {
        file.take_if(|file| Path::new(file) == directory);
    }
}

/// Gives the exec plugin the cluster if the kubeconfig asks for that.
fn with_cluster(mut user: AuthInfo, cluster: &Cluster) -> Result<AuthInfo, KubeconfigError> {
    if let Some(exec) = user.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(cluster.try_into()?);
    }
    Ok(user)
}

/// Returns the certificates of the authorities that the kubeconfig names, if it names any.
fn authorities(cluster: &Cluster) -> Result<Option<Vec<Vec<u8>>>, KubeconfigError> {
    // The form for plugins holds the text of the data or of the file.
    let text = ExecAuthCluster::try_from(cluster)?.certificate_authority_data;
    let Some(text) = text else { return Ok(None) };
    let blocks = pem::parse_many(text).map_err(KubeconfigError::ParseCertificates)?;
    let certificates = blocks.into_iter().filter(|block| block.tag() == "CERTIFICATE");
    Ok(Some(certificates.map(pem::Pem::into_contents).collect()))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Writes a kubeconfig, and returns the configuration with its path and a `master`.
    pub(in super::super) fn write_kubeconfig(
        path: &Path,
        cluster: &Value,
        user: &Value,
        master: Option<&str>,
    ) -> KubeConfig {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c", "user": user}],
        });
        fs::write(path, kubeconfig.to_string()).unwrap();
        let master = master.map(str::to_owned);
        KubeConfig { kubeconfig: Some(path.into()), master, ..KubeConfig::new("test") }
    }

    #[test]
    fn the_server_is_the_masters_and_needs_no_scheme() {
        const CA: &str =
            "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=";
        let at = "10.0.0.1:6443";
        let (by_tls, plain) = (format!("https://{at}/"), format!("http://{at}/"));
        let plain_user = format!("http://u:p@{at}/");
        for (cluster, user, master, expected) in [
            (json!({"server": at, "certificate-authority-data": CA}), json!({}), None, &by_tls),
            (json!({"server": at, "insecure-skip-tls-verify": true}), json!({}), None, &by_tls),
            (json!({"server": at}), json!({"client-certificate": "c"}), None, &by_tls),
            (json!({"server": at}), json!({"token": "t"}), None, &plain),
            (json!({"server": format!("u:p@{at}")}), json!({}), None, &plain_user),
            // The kubeconfig of a control plane that is yet to be found.
            (json!({"certificate-authority-data": CA}), json!({}), Some(at), &by_tls),
            (json!({}), json!({"client-certificate-data": "Yw=="}), Some(at), &by_tls),
            (json!({"server": "a b", "tls-server-name": "other"}), json!({}), Some(at), &plain),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let config = write_kubeconfig(&dir.path().join("k"), &cluster, &user, master);
            let access = Access::load(&config).unwrap();
            assert_eq!(access.host(), at, "no password");
            let Access { config, .. } = access;
            assert_eq!(config.cluster_url.to_string(), *expected, "{cluster} {user}");
            assert_eq!(config.tls_server_name, None);
            let AuthInfo { token, .. } = config.auth_info;
            assert!(token.is_none(), "credentials in plain text");
        }
        // Without a context, as well.
        let dir = tempfile::tempdir().unwrap();
        let config = write_kubeconfig(&dir.path().join("k"), &json!({}), &json!({}), Some(at));
        for context in [json!(""), json!("c"), json!(null)] {
            let contexts = json!([{"name": "c", "context": {"cluster": "missing", "user": ""}}]);
            let kubeconfig = json!({
                "apiVersion": "v1", "kind": "Config", "current-context": context, "clusters": null,
                "contexts": contexts, "users": null,
            });
            fs::write(dir.path().join("k"), kubeconfig.to_string()).unwrap();
            assert_eq!(Access::load(&config).unwrap().config.cluster_url.to_string(), plain);
        }
        assert!(Access::load(&KubeConfig { master: None, ..config }).is_err());
    }

    #[test]
    fn an_empty_field_is_an_absent_one() {
        let cluster = json!({
            "server": "https://a", "certificate-authority": "", "certificate-authority-data": "",
            "tls-server-name": "", "proxy-url": "",
        });
        let user = json!({
            "username": "", "password": "", "token": "", "tokenFile": "",
            "client-certificate": "", "client-certificate-data": "",
            "client-key": "", "client-key-data": "",
            "exec": {"apiVersion": "v", "command": "c"},
        });
        let dir = tempfile::tempdir().unwrap();
        let load = |cluster| {
            let config = write_kubeconfig(&dir.path().join("k"), cluster, &user, None);
            Access::load(&config).unwrap()
        };
        let Access { config, credential_files, token_file, plugin } = load(&cluster);
        assert_eq!(config.root_cert, None);
        assert_eq!((config.root_cert_file, config.tls_server_name), (None, None));
        assert_eq!(serde_json::to_value(config.auth_info).unwrap(), json!({}));
        assert!(credential_files.is_empty() && token_file.is_none() && plugin.is_some());
        let file = dir.path().join("ca.pem");
        fs::write(&file, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let cluster = json!({
            "server": "https://a", "certificate-authority": "ca.pem",
            "certificate-authority-data": "",
        });
        let Access { config, .. } = load(&cluster);
        assert_eq!(config.root_cert, Some(vec![vec![0; 3]]));
        assert_eq!(config.root_cert_file, Some(file));
    }
}
