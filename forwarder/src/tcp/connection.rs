//! One connection, from its client's arrival to its end.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError},
};

use socket2::SockRef;
use switchyard_core::{
    model::Protocol,
    state::{PoolKind, Route},
};
use tokio::{io::Interest, net::TcpStream, select};

use super::{connect::connect, copy::copy, header::header, reset, tune};
use crate::{
    forwarder::{Open, Serving, Shared},
    port::{Chosen, Ends},
    slots::Slot,
};

/// Starts a task for the connection of a client, if the client may have it.
pub(super) fn admit(open: &Arc<Open>, client: TcpStream, address: SocketAddr) {
    let serving = open.now();
    let shared = &open.shared;
    let admitted = pool(shared, &serving, address.ip())
        .and_then(|pool| Some((pool, shared.slots.take(serving.port.id(), address.ip())?)));
    match admitted {
        Some((pool, slot)) => {
            tokio::spawn(run(Arc::clone(shared), serving, pool, client, address, slot));
        }
        None => reset(client),
    }
}

/// Returns the pool that serves a client, or `None` if the client is not served.
fn pool(shared: &Shared, serving: &Serving, client: IpAddr) -> Option<PoolKind> {
    let listener = &serving.listener;
    let client = client.to_canonical();
    let sources = listener.allowed_sources.as_deref();
    if sources.is_some_and(|sources| !sources.iter().any(|net| net.contains(&client))) {
        return None;
    }
    match listener.route {
        Route::Pool { pool, .. } => Some(pool),
        Route::ExternalLocal => {
            let local = shared.clients.read().unwrap_or_else(PoisonError::into_inner);
            Some(if local.contains(client) { PoolKind::Cluster } else { PoolKind::Local })
        }
        Route::Reject | Route::Drop => None,
    }
}

async fn run(
    shared: Arc<Shared>,
    serving: Arc<Serving>,
    pool: PoolKind,
    client: TcpStream,
    address: SocketAddr,
    _slot: Slot,
) {
    let protocol = serving.port.id().name.protocol;
    // Most of a connection's life is that of `copy`, whose task should not be as big as that.
    let starting = Box::pin(start(&shared, &serving, pool, &client, address));
    let Some(Started { endpoint, header, _chosen }) = starting.await else { return reset(client) };
    drop(serving);
    if !copy(&shared, protocol, &client, &endpoint, header).await {
        reset(client);
        reset(endpoint);
    }
}

/// A connection that an endpoint has taken.
struct Started {
    endpoint: TcpStream,
    /// What is sent to the endpoint first.
    header: Vec<u8>,
    _chosen: Chosen,
}

/// Connects a client to an endpoint. Returns `None` if no endpoint takes the connection, or if the client
/// does not wait.
async fn start(
    shared: &Shared,
    serving: &Serving,
    pool: PoolKind,
    client: &TcpStream,
    address: SocketAddr,
) -> Option<Started> {
    let protocol = serving.port.id().name.protocol;
    tune(&*shared.platform, protocol, &SockRef::from(client));
    let original = shared.platform.original_destination(SockRef::from(client));
    let destination = original.or_else(|| client.local_addr().ok())?;
    let ends = Ends { client: address, destination };
    let (endpoint, _chosen) = select! {
        endpoint = connect(shared, &serving.port, pool, ends) => endpoint?,
        // The client has reset the connection. One that only sends no more may still read.
        _ = client.ready(Interest::ERROR) => return None,
    };
    let version = serving.port.proxy_protocol().filter(|_| protocol == Protocol::Tcp);
    let header = version.map_or(Vec::new(), |version| header(version, ends));
    Some(Started { endpoint, header, _chosen })
}

#[cfg(test)]
mod tests {
    use switchyard_core::{
        model::{IpFamily, ServiceName, ServicePortId, ServicePortName, Spread},
        state::ResolvedServicePort,
    };

    use super::*;
    use crate::{forwarder::ForwarderConfig, listener::Listener, port::Port};

    #[test]
    fn local_policy_sends_only_clients_of_this_node_to_all_endpoints() {
        let shared = Shared::new(ForwarderConfig::default());
        let service = ServiceName::new("default", "web");
        let name = ServicePortName { service, port: "http".into(), protocol: Protocol::Tcp };
        let id = ServicePortId { name, family: IpFamily::V4 };
        let resolved = ResolvedServicePort {
            id: id.clone(),
            frontends: Vec::new(),
            cluster: Vec::new().into(),
            local: Vec::new().into(),
            draining: Vec::new().into(),
            affinity: None,
            spread: Spread::RoundRobin,
            proxy_protocol: None,
        };
        let listener = Listener {
            port: id,
            address: ([127, 0, 0, 1], 80).into(),
            route: Route::ExternalLocal,
            allowed_sources: None,
        };
        let port = Arc::new(Port::new(&Arc::new(resolved)));
        let serving = Serving { port, listener };
        let pool = |client: &str| pool(&shared, &serving, client.parse().unwrap());
        assert_eq!(pool("127.0.0.1"), Some(PoolKind::Cluster));
        assert_eq!(pool("198.51.100.7"), Some(PoolKind::Local));
    }
}
