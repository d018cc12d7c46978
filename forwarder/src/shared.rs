//! State shared by listeners, connections and flows: the settings, the limits, and what each
//! listener serves.

use std::{
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use crate::{
    clients::LocalClients,
    listener::Listener,
    pipes::Pipes,
    platform::{self, Platform},
    port::Port,
    slots::Slots,
};

/// The settings of a [`Forwarder`](crate::Forwarder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwarderConfig {
    /// The number of threads; by default one for each processor.
    pub threads: Option<usize>,
    /// The most connections and flows at a time; by default, and at most, as many as the limit of
    /// file descriptors allows; a listener needs one, and a connection two.
    pub connections: Option<usize>,
    /// The most file descriptors that the forwarder takes; by default, all those of the process
    /// except [`spare_descriptors`].
    pub descriptors: Option<usize>,
    /// The time that a UDP flow lasts without a datagram in either direction; a minute by default.
    /// A sixth of that, if the flow is one datagram of the client that was answered.
    pub udp_idle: Duration,
    /// The time to wait for an endpoint to take a connection, try after try; the last value counts
    /// for all further tries. By default 250 ms, 500 ms, 1 s and 2 s, as in kube-proxy's userspace
    /// mode.
    pub connect_timeouts: Vec<Duration>,
    /// The time after which an end of a TCP connection is taken for gone that takes nothing of what
    /// was sent, or does not answer; three minutes by default.
    pub dead_after: Duration,
}

impl Default for ForwarderConfig {
    fn default() -> Self {
        Self {
            threads: None,
            connections: None,
            descriptors: None,
            udp_idle: Duration::from_secs(60),
            connect_timeouts: [250, 500, 1000, 2000].map(Duration::from_millis).into(),
            dead_after: Duration::from_secs(180),
        }
    }
}

/// The file descriptors that a [`Forwarder`](crate::Forwarder) leaves to everything else in a
/// process that may have `all`: a tenth, and at least 256.
pub fn spare_descriptors(all: usize) -> usize {
    (all / 10).max(256).min(all)
}

/// State shared by listeners, connections and flows.
pub(crate) struct Shared {
    pub(crate) config: ForwarderConfig,
    pub(crate) slots: Arc<Slots>,
    pub(crate) platform: Box<dyn Platform>,
    pub(crate) pipes: Pipes,
    pub(crate) clients: RwLock<LocalClients>,
}

impl Shared {
    pub(crate) fn new(config: ForwarderConfig) -> Self {
        let platform = platform::current();
        let descriptors = config.descriptors.unwrap_or_else(|| {
            let all = platform.descriptors();
            all - spare_descriptors(all)
        });
        let slots = Slots::within(descriptors, config.connections);
        Self { config, slots, platform, pipes: Pipes::default(), clients: RwLock::default() }
    }
}

/// A listener that is open, shared by its task and its connections or flows.
pub(crate) struct OpenListener {
    pub(crate) shared: Arc<Shared>,
    /// The address that was bound.
    pub(crate) address: SocketAddr,
    serving: RwLock<Arc<Serving>>,
}

/// The target of a listener.
pub(crate) struct Serving {
    pub(crate) port: Arc<Port>,
    /// Action and sources.
    pub(crate) listener: Listener,
}

impl OpenListener {
    pub(crate) fn new(shared: &Arc<Shared>, address: SocketAddr, serving: Serving) -> Self {
        Self { shared: Arc::clone(shared), address, serving: RwLock::new(Arc::new(serving)) }
    }

    /// Returns what the listener serves: read again for each connection and datagram.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn change(&self, serving: Serving) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
    }
}
