//! A Service port whose connections are forwarded: the pools, as they are now, and what is known of
//! endpoints and clients, which outlives changes of the pools.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicUsize},
    time::Instant,
};

use switchyard_core::{
    model::{LbAlgorithm, ProxyProtocol, ServicePortId},
    state::{PoolKind, ResolvedServicePort},
};
use tokio::sync::watch;

use crate::forwarder::{
    balance::{Affinity, Connection, Member, Pool},
    ends::Ends,
    local_ports::LocalPort,
    rate_limit::RateLimit,
};

/// A Service port, shared by its listeners, connections and flows.
pub(crate) struct Port {
    id: ServicePortId,
    /// Replaced as a whole by each change.
    snapshot: RwLock<Arc<Snapshot>>,
    affinity: Mutex<Affinity>,
    changes: watch::Sender<()>,
    warned: Mutex<[RateLimit; Warning::COUNT]>,
}

/// A warning about connections or flows of a Service port, each of which is logged once a minute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Warning {
    /// No endpoint took it.
    Unserved,
    /// An endpoint was passed over for want of a local port.
    NoLocalPort,
    /// An endpoint sees the node instead of the client.
    NotShown,
    /// There are too many.
    Refused,
}

impl Warning {
    const COUNT: usize = Self::Refused as usize + 1;
}

/// The pools and endpoints of a Service port at a time.
struct Snapshot {
    resolved: Arc<ResolvedServicePort>,
    /// The endpoints of both pools, and those that left with connections, whose number counts again
    /// if they come back.
    members: HashMap<SocketAddr, Arc<Member>>,
    cluster: Arc<Pool>,
    local: Arc<Pool>,
}

/// An endpoint that was chosen for a connection. The connection counts as one of the endpoint's
/// until the value is dropped.
pub(crate) struct Chosen {
    /// The endpoint's address and port.
    pub(crate) address: SocketAddr,
    _connection: Connection,
    /// The connection's local port, with TCP.
    local_port: Option<LocalPort>,
}

impl Chosen {
    /// Has the value keep the local port of the connection.
    pub(crate) fn keep(&mut self, port: Option<LocalPort>) {
        self.local_port = port;
    }

    /// Notes that the connection was closed from here first.
    pub(crate) fn closed_first(&mut self) {
        if let Some(port) = &mut self.local_port {
            port.rest();
        }
    }
}

impl Snapshot {
    fn new(resolved: &Arc<ResolvedServicePort>, before: Option<&Self>) -> Self {
        let known = before.map(|before| &before.members);
        let mut members: HashMap<SocketAddr, Arc<Member>> = resolved
            .reachable()
            .map(|endpoint| {
                let known = known.and_then(|known| known.get(&endpoint.address));
                (endpoint.address, known.map_or_else(Member::new, Arc::clone))
            })
            .collect();
        for (address, member) in known.into_iter().flatten() {
            if !members.contains_key(address) && member.connections() > 0 {
                // A new endpoint may get the address.
                member.succeeded();
                members.insert(*address, Arc::clone(member));
            }
        }
        let pool = |kind| {
            let endpoints = resolved.pool(kind);
            let before = before.map(|before| before.pool(kind));
            match before {
                Some(before) if before.is(endpoints, resolved.lb_algorithm) => Arc::clone(before),
                _ => {
                    let before = before.map(|before| &**before);
                    Arc::new(Pool::new(endpoints, resolved.lb_algorithm, &members, before))
                }
            }
        };
        let (cluster, local) = (pool(PoolKind::Cluster), pool(PoolKind::Local));
        Self { resolved: Arc::clone(resolved), members, cluster, local }
    }

    fn pool(&self, kind: PoolKind) -> &Arc<Pool> {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }
}

impl Port {
    /// Makes a Service port, whose clients with affinity count in `remembered` with those of all.
    pub(crate) fn new(resolved: &Arc<ResolvedServicePort>, remembered: &Arc<AtomicUsize>) -> Self {
        Self {
            id: resolved.id.clone(),
            snapshot: RwLock::new(Arc::new(Snapshot::new(resolved, None))),
            affinity: Mutex::new(Affinity::new(remembered)),
            changes: watch::Sender::new(()),
            warned: Mutex::default(),
        }
    }

    pub(crate) fn id(&self) -> &ServicePortId {
        &self.id
    }

    /// Replaces the pools, for connections from now on. Endpoints that stay keep what is known of
    /// them.
    pub(crate) fn update(&self, resolved: &Arc<ResolvedServicePort>) {
        let before = self.snapshot();
        let now = Arc::new(Snapshot::new(resolved, Some(&before)));
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = now;
        self.forget_what_left(&before.resolved, resolved);
        self.changes.send_replace(());
    }

    fn forget_what_left(&self, before: &ResolvedServicePort, now: &ResolvedServicePort) {
        let Some(timeout) = now.affinity else {
            self.affinity().retain(|_| false);
            return;
        };
        let stays: HashSet<SocketAddr> = now.reachable().map(|endpoint| endpoint.address).collect();
        if before.reachable().any(|endpoint| !stays.contains(&endpoint.address)) {
            self.affinity().retain(|endpoint| stays.contains(&endpoint));
        }
        self.affinity().purge(usize::MAX, timeout, Instant::now());
    }

    /// Returns a receiver that learns of each change.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Whether the last such warning about this Service port is a minute ago.
    pub(crate) fn is_due(&self, warning: Warning) -> bool {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner)[warning as usize].is_due()
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn affinity(&self) -> MutexGuard<'_, Affinity> {
        self.affinity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it matters which address a client has connected to: endpoints are sent it, or chosen
    /// by it.
    pub(crate) fn needs_destination(&self) -> bool {
        let resolved = &self.snapshot().resolved;
        resolved.proxy_protocol.is_some() || resolved.lb_algorithm == LbAlgorithm::DestinationHash
    }

    /// The protocol by which endpoints are sent the client's address.
    pub(crate) fn proxy_protocol(&self) -> Option<ProxyProtocol> {
        self.snapshot().resolved.proxy_protocol
    }

    /// Chooses an endpoint of a pool for a new connection or flow, other than those that were
    /// `tried` for the connection already. Returns `None` if no endpoint is left.
    pub(crate) fn choose(
        &self,
        pool: PoolKind,
        ends: Ends,
        tried: &[SocketAddr],
    ) -> Option<Chosen> {
        self.choose_at(Instant::now(), pool, ends, tried)
    }

    fn choose_at(
        &self,
        at: Instant,
        pool: PoolKind,
        ends: Ends,
        tried: &[SocketAddr],
    ) -> Option<Chosen> {
        let snapshot = self.snapshot();
        let pool = snapshot.pool(pool);
        let chosen = match snapshot.resolved.affinity {
            None => pool.choose(ends, tried, at),
            Some(timeout) => {
                let client = ends.client.ip();
                // Held in the meantime, so that connections of a client at the same time agree.
                let mut affinity = self.affinity();
                let remembered = affinity.endpoint(client, timeout, at);
                let again = remembered.and_then(|address| pool.choose_again(address, tried, at));
                let chosen = again.or_else(|| pool.choose(ends, tried, at));
                if let Some((address, _)) = &chosen {
                    affinity.remember(client, *address, timeout, at);
                }
                chosen
            }
        };
        chosen.map(|(address, connection)| Chosen {
            address,
            _connection: connection,
            local_port: None,
        })
    }

    /// Notes that an endpoint did not take the connection of a client, which is remembered no
    /// longer. Returns whether a pool leaves the endpoint out, and has not before.
    pub(crate) fn failed(&self, endpoint: SocketAddr, client: IpAddr) -> bool {
        self.failed_at(Instant::now(), endpoint, client)
    }

    pub(crate) fn failed_at(&self, at: Instant, endpoint: SocketAddr, client: IpAddr) -> bool {
        let snapshot = self.snapshot();
        if snapshot.resolved.affinity.is_some() {
            self.affinity().forget(client, endpoint);
        }
        let is_bad = snapshot.members.get(&endpoint).is_some_and(|member| member.failed(at));
        // `|`, as both pools leave the endpoint out.
        is_bad && (snapshot.cluster.leave_out(endpoint) | snapshot.local.leave_out(endpoint))
    }

    /// Notes that an endpoint took a connection, or answered.
    pub(crate) fn succeeded(&self, endpoint: SocketAddr) {
        let snapshot = self.snapshot();
        if snapshot.members.get(&endpoint).is_some_and(|member| member.succeeded()) {
            snapshot.cluster.readmit(endpoint);
            snapshot.local.readmit(endpoint);
        }
    }

    /// Notes that an endpoint was chosen for a connection, but not tried.
    pub(crate) fn spared(&self, endpoint: SocketAddr) {
        if let Some(member) = self.snapshot().members.get(&endpoint) {
            member.spared(Instant::now());
        }
    }

    /// Whether an endpoint still serves the flows that it has. Meaningless for TCP.
    pub(crate) fn serves(&self, endpoint: SocketAddr) -> bool {
        self.snapshot().resolved.serves(endpoint)
    }
}

#[cfg(test)]
mod tests;
