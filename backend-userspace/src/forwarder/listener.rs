//! Where traffic arrives, and what happens to it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
};

use ipnet::IpNet;
use switchyard_core::{
    model::ServicePortId,
    state::{Action, Masquerade, PoolKind},
};

use crate::forwarder::clients::LocalClients;

/// An address at which the traffic of a Service port arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The Service port, whose protocol and family are the socket's.
    pub port: ServicePortId,
    /// The address; with port 0, the system chooses a port.
    pub address: SocketAddr,
    /// The handling of connections: [`Action::Pool`] or [`Action::ExternalLocal`]. With any other
    /// route, they are closed at once, and datagrams are dropped. Clients that are never
    /// masqueraded may be [shown](crate::forwarder::Forwarder::show_clients) to endpoints.
    pub action: Action,
    /// If present, connections from any other source are closed at once. Sorted, without overlaps.
    pub allowed_sources: Option<Arc<[IpNet]>>,
}

impl Listener {
    /// Whether a client is among the allowed sources.
    pub(crate) fn allows(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let Some(sources) = self.allowed_sources.as_deref() else { return true };
        let after = sources.partition_point(|net| net.network() <= client);
        after.checked_sub(1).is_some_and(|last| sources[last].contains(&client))
    }

    /// Whether endpoints may see the addresses of clients from elsewhere.
    pub(crate) fn shows_clients(&self) -> bool {
        match self.action {
            Action::Pool { masquerade, .. } => masquerade == Masquerade::Never,
            action => action == Action::ExternalLocal,
        }
    }

    /// Returns the pool that serves a client, or `None` if the client is not among the allowed
    /// sources, or the route serves no client.
    pub(crate) fn pool(&self, client: IpAddr, local: &RwLock<LocalClients>) -> Option<PoolKind> {
        if !self.allows(client) {
            return None;
        }
        match self.action {
            Action::Pool { pool, .. } => Some(pool),
            Action::ExternalLocal => {
                // A client on this node may have any of its addresses, also that of the Service.
                let is_local = self.address.ip() == client.to_canonical()
                    || local.read().unwrap_or_else(PoisonError::into_inner).contains(client);
                Some(if is_local { PoolKind::Cluster } else { PoolKind::Local })
            }
            Action::Reject | Action::Drop | Action::Delivered { .. } | Action::DeliveredLocal => {
                None
            }
        }
    }
}

/// Why a [`Listener`] could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({protocol}) for {port}", protocol = .port.name.protocol, port = .port.name)]
pub struct ListenError {
    /// The Service port.
    pub port: ServicePortId,
    /// The address.
    pub address: SocketAddr,
    /// The answer of the system. `AddrInUse`: another program listens there. `Unsupported`: the
    /// system has no such protocol. `Other`: listeners have half of the file descriptors that may
    /// be open.
    #[source]
    pub source: io::Error,
}

/// Listeners leave no file descriptors for connections.
#[derive(Debug, thiserror::Error)]
#[error("listeners have half of the file descriptors already: raise the limit (RLIMIT_NOFILE)")]
pub(crate) struct TooManyListeners;

#[cfg(test)]
mod tests {
    use switchyard_core::{model::Protocol, testing::port_id};

    use super::*;

    fn listener(action: Action, sources: &[&str]) -> Listener {
        Listener {
            port: port_id("web", Protocol::Tcp),
            address: ([127, 0, 0, 1], 80).into(),
            action,
            allowed_sources: (!sources.is_empty())
                .then(|| sources.iter().map(|net| net.parse().unwrap()).collect()),
        }
    }

    #[test]
    fn allowed_sources_are_enforced_in_either_form_of_an_address() {
        let open = listener(Action::ExternalLocal, &[]);
        let restricted = listener(
            Action::ExternalLocal,
            &["10.0.0.0/8", "192.0.2.0/24", "203.0.113.1/32", "2001:db8::/32"],
        );
        for (client, allowed) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("10.255.255.255", true),
            ("2001:db8::1", true),
            ("198.51.100.7", false),
            ("9.255.255.255", false),
            ("203.0.113.2", false),
            ("2001:db9::", false),
        ] {
            let client: IpAddr = client.parse().unwrap();
            assert!(open.allows(client));
            assert_eq!(restricted.allows(client), allowed, "{client}");
        }
    }
}
