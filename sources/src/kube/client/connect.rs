//! Connections to the API server, directly or by a proxy, and the client that opens them.
//!
//! The client is put together from the parts of `kube`'s, whose own constructor sets no options on
//! its sockets: a host that disappears without a word would be noticed by the silence of its
//! watches alone.

use std::time::Duration;

use hyper::{
    Uri,
    rt::{Read, Write},
};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::{
        legacy::{
            self,
            connect::{
                Connection, HttpConnector,
                proxy::{SocksV5, Tunnel},
            },
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioExecutor,
};
use kube::{Client, Config, Error, client::ConfigExt};
use tower::{BoxError, Service, ServiceBuilder};

/// The most time that it may take to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that a connection reads ahead: each watch keeps the buffer that its list has
/// filled.
const READ_BUFFER: usize = 64 << 10;
/// The time that a connection is idle before the other end is probed, as Go's.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The time to wait for the answer to a probe.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// The number of probes that may stay without an answer.
const KEEPALIVE_RETRIES: u32 = 3;
/// The time that data may stay unacknowledged. It is the time after which an idle connection counts
/// as broken, because the kernel takes it in place of the number of probes.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn client(config: &Config) -> Result<Client, Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let Some(url) = &config.proxy_url else { return with(connector, config) };
    let matcher = Matcher::builder().all(url.to_string()).build();
    let proxy = matcher.intercept(&config.cluster_url);
    match proxy.as_ref().map(|proxy| (proxy, proxy.uri().scheme_str())) {
        Some((proxy, Some("http"))) => with(tunnel(proxy, connector), config),
        Some((proxy, Some("https"))) => {
            let connector = config.rustls_https_connector_with_connector(connector)?;
            with(tunnel(proxy, connector), config)
        }
        Some((proxy, Some("socks5" | "socks5h"))) => {
            let connector = SocksV5::new(proxy.uri().clone(), connector);
            match proxy.raw_auth() {
                Some((user, password)) => {
                    with(connector.with_auth(user.to_owned(), password.to_owned()), config)
                }
                None => with(connector, config),
            }
        }
        _ => Err(Error::ProxyProtocolUnsupported { proxy_url: Box::new(url.clone()) }),
    }
}

fn tunnel<C>(proxy: &Intercept, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.uri().clone(), connector);
    match proxy.basic_auth() {
        Some(header) => tunnel.with_auth(header.clone()),
        None => tunnel,
    }
}

/// Makes a client whose connections are opened by `connector`.
fn with<C>(connector: C, config: &Config) -> Result<Client, Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(
            legacy::Client::builder(TokioExecutor::new())
                .http1_max_buf_size(READ_BUFFER)
                .build(connector),
        );
    Ok(Client::new(service, config.default_namespace.clone()))
}
