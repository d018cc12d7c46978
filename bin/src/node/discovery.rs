//! Finds out about this node's Node before anything is programmed, as kube-proxy does: waits for
//! it, holds the configuration against it, and says what is found.
//!
//! [`Discovery::forward`] sits between the source and the engine. The engine programs nothing
//! before it has seen the Nodes, if its configuration takes anything from them; so the first list of
//! Nodes is kept back until it has all that is needed, or for so long. Everything else passes, and
//! what an earlier run has programmed goes on serving.

use std::{future::pending, time::Duration};

use proxy_core::{
    config::{LocalPodsConfig, NodeConfig},
    objects::{Event, Kind, Node, Object},
    runner::Input,
};
use tokio::{
    sync::{
        mpsc::{Receiver, Sender},
        watch,
    },
    time::{Instant, sleep_until},
};

use super::{
    NodeFacts, NodeIps,
    sanity::{Misfit, Sanity},
};
use crate::{
    backend,
    config::{
        settings::{Settings, SourceSettings},
        v1alpha1::KubeProxyConfiguration,
    },
};

/// What is said of a configuration that may not be meant so.
const DOUBTFUL: &str = "Kube-proxy configuration may be incomplete or incorrect";

/// How long to wait for a Node, and what it must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For its addresses.
    pub ips: Duration,
    /// After that, for its `spec.podCIDRs`, if they are what tells local traffic.
    pub pod_cidrs: Duration,
}

impl Patience {
    /// kube-proxy's.
    pub const USUAL: Self =
        Self { ips: Duration::from_secs(30), pod_cidrs: Duration::from_secs(300) };
}

/// Why there is no starting on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The configuration says that the Node tells local traffic, and there is no Node.
    #[error("timeout waiting for node {0:?} to exist")]
    NoNode(String),
    /// The same, and the Node does not.
    #[error("timeout waiting for PodCIDR allocation on node {0:?}")]
    NoPodCidrs(String),
    /// The configuration does not fit.
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Discovery {
    node: NodeConfig,
    sanity: Sanity,
    /// `None`: whatever there is has to do.
    patience: Option<Patience>,
    known: watch::Sender<Known>,
}

/// What the Node said last, if it is there; nothing before the first list has been passed on.
pub type Known = Option<Option<NodeFacts>>;

/// The first list of Nodes, while it is kept back.
struct Held {
    ours: Option<Node>,
    /// Until when there should be addresses.
    deadline: Instant,
    /// Whether addresses have been waited for long enough.
    is_late: bool,
}

impl Discovery {
    /// What this configuration needs. Without a cluster there need not be a Node.
    pub fn of(config: &KubeProxyConfiguration, settings: &Settings) -> Self {
        let sanity = Sanity::new(config, settings, backend::supported(&settings.backend));
        let patience = match settings.source {
            SourceSettings::Manifests(_) => None,
            SourceSettings::Cluster(_) => Some(Patience::USUAL),
        };
        Self::new(settings.node.clone(), sanity, patience)
    }

    /// Of a node with this configuration. Without `patience` nothing is waited for.
    pub fn new(node: NodeConfig, sanity: Sanity, patience: Option<Patience>) -> Self {
        Self { node, sanity, patience, known: watch::Sender::new(None) }
    }

    /// What is known of the Node, as it changes.
    pub fn known(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Passes events on. Ends well when nobody listens, or nothing comes any more.
    pub async fn forward(
        mut self,
        mut events: Receiver<Event>,
        inputs: Sender<Input>,
    ) -> Result<(), DiscoveryError> {
        let mut held: Option<Held> = None;
        loop {
            let deadline = held.as_ref().map(|held| held.deadline);
            let passed = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.hear(event, &mut held)?,
                    None => return Ok(()),
                },
                () = until(deadline) => self.is_over(&mut held)?,
            };
            if let Some(event) = passed
                && inputs.send(Input::Event(event)).await.is_err()
            {
                return Ok(());
            }
        }
    }

    /// Takes an event in. Returns what is to be passed on.
    fn hear(
        &mut self,
        event: Event,
        held: &mut Option<Held>,
    ) -> Result<Option<Event>, DiscoveryError> {
        let Some(ours) = self.ours(&event) else { return Ok(Some(event)) };
        if self.known.borrow().is_some() {
            self.follow(ours);
            return Ok(Some(event));
        }
        match (&mut *held, &event) {
            (Some(held), _) => held.ours = ours.cloned(),
            (None, Event::Replace { .. }) => {
                let patience = self.patience.map_or(Duration::ZERO, |patience| patience.ips);
                let deadline = Instant::now() + patience;
                *held = Some(Held { ours: ours.cloned(), deadline, is_late: false });
            }
            // Before the list there is nothing to be told of.
            (None, _) => return Ok(Some(event)),
        }
        self.decide(held)
    }

    /// What the event says of our Node, if it says anything.
    fn ours<'e>(&self, event: &'e Event) -> Option<Option<&'e Node>> {
        let is_ours = |node: &&Node| node.metadata.name == self.node.node_name;
        let as_node = |object: &'e Object| match object {
            Object::Node(node) => Some(node),
            _ => None,
        };
        match event {
            Event::Apply(object) => as_node(object).filter(is_ours).map(Some),
            Event::Delete(key) if key.kind == Kind::Node && key.name == self.node.node_name => {
                Some(None)
            }
            Event::Replace { kind: Kind::Node, objects, .. } => {
                Some(objects.iter().filter_map(as_node).find(is_ours))
            }
            _ => None,
        }
    }

    /// The deadline has passed.
    fn is_over(&mut self, held: &mut Option<Held>) -> Result<Option<Event>, DiscoveryError> {
        let (Some(waiting), Some(patience)) = (&mut *held, self.patience) else { return Ok(None) };
        if waiting.is_late {
            return Err(self.lacks_pods(waiting.ours.is_some()));
        }
        let node = self.node.node_name.as_str();
        match &waiting.ours {
            None => tracing::error!(node, "The Node does not exist; going on without it"),
            Some(found) if NodeFacts::of(found).ips.is_empty() => {
                tracing::error!(node, "The Node has no usable address; going on without one");
            }
            Some(_) => {}
        }
        waiting.is_late = true;
        waiting.deadline += patience.pod_cidrs;
        self.decide(held)
    }

    /// Lets the list go if it says all that is needed.
    fn decide(&mut self, held: &mut Option<Held>) -> Result<Option<Event>, DiscoveryError> {
        let Some(waiting) = &*held else { return Ok(None) };
        let facts = waiting.ours.as_ref().map(NodeFacts::of);
        let has_ips = facts.as_ref().is_some_and(|facts| !facts.ips.is_empty());
        let has_pods = self.node.local_pods != LocalPodsConfig::NodeCidr
            || facts.as_ref().is_some_and(|facts| !facts.pod_cidrs.is_empty());
        let is_enough = (has_ips || waiting.is_late) && has_pods;
        if self.patience.is_some() && !is_enough {
            return Ok(None);
        }
        let objects = held.take().and_then(|held| held.ours).map(Object::Node);
        self.settle(facts)?;
        Ok(Some(Event::Replace {
            kind: Kind::Node,
            objects: objects.into_iter().collect(),
            malformed: Vec::new(),
        }))
    }

    /// Whether this configuration, too, could be started with, now that the Node is known: nothing
    /// is waited for. Doubts are said.
    pub fn check(&self, facts: Option<&NodeFacts>) -> Result<(), DiscoveryError> {
        let has_pods = facts.is_some_and(|facts| !facts.pod_cidrs.is_empty());
        if self.patience.is_some() && self.node.local_pods == LocalPodsConfig::NodeCidr && !has_pods
        {
            return Err(self.lacks_pods(facts.is_some()));
        }
        self.judge(&facts.cloned().unwrap_or_default())
    }

    fn lacks_pods(&self, there_is_a_node: bool) -> DiscoveryError {
        let name = self.node.node_name.clone();
        match there_is_a_node {
            true => DiscoveryError::NoPodCidrs(name),
            false => DiscoveryError::NoNode(name),
        }
    }

    fn judge(&self, facts: &NodeFacts) -> Result<(), DiscoveryError> {
        let verdict = self.sanity.judge(facts);
        for doubt in &verdict.doubts {
            let err = doubt.as_str();
            match self.patience {
                Some(_) => tracing::error!(err, "{DOUBTFUL}"),
                // Whoever tries things out is allowed to.
                None => tracing::warn!(err, "{DOUBTFUL}"),
            }
        }
        verdict.fatal.map_or(Ok(()), |misfit| Err(misfit.into()))
    }

    /// Holds the configuration against what is known now.
    fn settle(&mut self, facts: Option<NodeFacts>) -> Result<(), DiscoveryError> {
        let found = facts.clone().unwrap_or_default();
        if !found.ips.is_empty() {
            tracing::info!(node_ips = ?found.ips, "The Node tells the node's addresses");
        }
        let node = NodeIps::detect(&found, self.node.bind_address);
        if node.primary_ip().is_loopback() && self.patience.is_some() {
            tracing::info!(
                assumed = %node.primary_ip(),
                "The node's address is not known; if that is wrong, set --bind-address"
            );
        }
        self.judge(&found)?;
        tracing::info!(primary = %node.primary, "The node's primary IP family");
        self.known.send_replace(Some(facts));
        Ok(())
    }

    /// Says what changes at the Node later. The engine follows it.
    fn follow(&mut self, ours: Option<&Node>) {
        let now = ours.map(NodeFacts::of);
        let Some(before) = self.known.send_replace(Some(now.clone())) else { return };
        let node = self.node.node_name.as_str();
        match (before, now) {
            (Some(_), None) => tracing::info!(node, "The Node is deleted"),
            (None, Some(_)) => tracing::info!(node, "There is a Node now"),
            (Some(before), Some(now)) => {
                if before.ips != now.ips {
                    let (old, new) = (before.ips, now.ips);
                    tracing::info!(node, ?old, ?new, "The Node's addresses have changed");
                }
                let counts = self.node.local_pods == LocalPodsConfig::NodeCidr;
                if counts && before.pod_cidrs != now.pod_cidrs {
                    let (old, new) = (before.pod_cidrs, now.pod_cidrs);
                    tracing::info!(node, ?old, ?new, "The Node's podCIDRs have changed");
                }
            }
            (None, None) => {}
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use proxy_core::{model::PerFamily, objects::ObjectKey};
    use tokio::{sync::mpsc, task::JoinHandle, time};

    use super::{super::tests::node, *};
    use crate::{cli, config};

    struct Start {
        events: Sender<Event>,
        passed: Receiver<Input>,
        ended: JoinHandle<Result<(), DiscoveryError>>,
    }

    impl Start {
        fn new(arguments: &[&str], patience: Option<Patience>) -> Self {
            let program = ["switchyard", "--proxy-mode=nftables", "--hostname-override=node-1"];
            let all = program.iter().chain(arguments).map(Into::into).collect::<Vec<_>>();
            let loaded = config::load(&cli::parse(all).unwrap().flags).unwrap();
            let supported = PerFamily { v4: true, v6: false };
            let sanity = Sanity::new(&loaded.config, &loaded.settings, supported);
            let discovery = Discovery::new(loaded.settings.node, sanity, patience);
            let (events, received) = mpsc::channel(16);
            let (inputs, passed) = mpsc::channel(16);
            let ended = tokio::spawn(discovery.forward(received, inputs));
            Self { events, passed, ended }
        }

        async fn send(&self, event: Event) {
            self.events.send(event).await.unwrap();
        }

        /// Lists the Nodes: ours, if there is one, and another.
        async fn list(&self, ours: Option<Node>) {
            let mut other = node(&[("InternalIP", "10.0.0.9")], &["10.9.0.0/24"]);
            other.metadata.name = "node-9".into();
            let objects = ours.into_iter().chain([other]).map(Object::Node).collect();
            self.send(Event::Replace { kind: Kind::Node, objects, malformed: vec![] }).await;
        }

        /// What has been passed on by now: how many of our Node's, or `None` for another event.
        async fn passed(&mut self) -> Vec<Option<usize>> {
            // Nothing else runs: what can be passed on has been.
            time::sleep(Duration::from_millis(1)).await;
            let mut passed = Vec::new();
            while let Ok(input) = self.passed.try_recv() {
                passed.push(match input {
                    Input::Event(Event::Replace { kind: Kind::Node, objects, .. }) => {
                        Some(objects.len())
                    }
                    _ => None,
                });
            }
            passed
        }

        async fn failure(self) -> String {
            self.ended.await.unwrap().unwrap_err().to_string()
        }
    }

    const ADDRESSES: &[(&str, &str)] = &[("InternalIP", "10.0.0.1")];
    const USUAL: Option<Patience> = Some(Patience::USUAL);

    fn services() -> Event {
        Event::Replace { kind: Kind::Service, objects: vec![], malformed: vec![] }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_says_enough_is_passed_on() {
        let mut start = Start::new(&[], USUAL);
        start.send(services()).await;
        assert_eq!(start.passed().await, [None], "other events never wait");
        start.list(Some(node(ADDRESSES, &[]))).await;
        assert_eq!(start.passed().await, [Some(1)]);
        start.send(Event::Apply(Object::Node(node(ADDRESSES, &["10.1.0.0/24"])))).await;
        assert_eq!(start.passed().await, [None], "later events never wait");
        drop(start.events);
        start.ended.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_are_waited_for() {
        let mut start = Start::new(&[], USUAL);
        start.list(None).await;
        time::sleep(Duration::from_secs(20)).await;
        assert_eq!(start.passed().await, []);
        start.send(Event::Apply(Object::Node(node(&[], &[])))).await;
        start.send(services()).await;
        assert_eq!(start.passed().await, [None]);
        start.send(Event::Apply(Object::Node(node(ADDRESSES, &[])))).await;
        assert_eq!(start.passed().await, [Some(1)]);

        for (ours, passed) in [(None, 0), (Some(node(&[], &[])), 1)] {
            let mut start = Start::new(&[], USUAL);
            start.list(ours).await;
            time::sleep(Duration::from_secs(29)).await;
            assert_eq!(start.passed().await, []);
            time::sleep(Duration::from_secs(2)).await;
            assert_eq!(start.passed().await, [Some(passed)], "it goes on without");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pod_cidrs_are_waited_for_only_if_they_count() {
        let arguments = ["--detect-local-mode=NodeCIDR"];
        let mut start = Start::new(&arguments, USUAL);
        start.list(Some(node(ADDRESSES, &[]))).await;
        time::sleep(Duration::from_secs(300)).await;
        assert_eq!(start.passed().await, []);
        start.send(Event::Apply(Object::Node(node(ADDRESSES, &["10.1.0.0/24"])))).await;
        assert_eq!(start.passed().await, [Some(1)]);

        // An address is not worth as much.
        let mut start = Start::new(&arguments, USUAL);
        start.list(Some(node(&[], &["10.1.0.0/24"]))).await;
        time::sleep(Duration::from_secs(31)).await;
        assert_eq!(start.passed().await, [Some(1)]);

        let start = Start::new(&arguments, USUAL);
        start.list(Some(node(ADDRESSES, &[]))).await;
        assert_eq!(
            start.failure().await,
            "timeout waiting for PodCIDR allocation on node \"node-1\""
        );
        let start = Start::new(&arguments, USUAL);
        start.list(Some(node(ADDRESSES, &[]))).await;
        let key = ObjectKey { kind: Kind::Node, namespace: String::new(), name: "node-1".into() };
        start.send(Event::Delete(key)).await;
        assert_eq!(start.failure().await, "timeout waiting for node \"node-1\" to exist");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_work_ends_it() {
        let start = Start::new(&[], USUAL);
        start.list(Some(node(&[("InternalIP", "fd00::1")], &[]))).await;
        assert_eq!(start.failure().await, "no support for primary IP family \"IPv6\"");
        let start = Start::new(&["--detect-local-mode=NodeCIDR"], USUAL);
        start.list(Some(node(ADDRESSES, &["fd01::/64"]))).await;
        assert!(start.failure().await.contains("spec.podCIDRs of the Node is IPv6"));
    }

    #[tokio::test(start_paused = true)]
    async fn without_patience_nothing_is_waited_for() {
        let mut start = Start::new(&["--detect-local-mode=NodeCIDR"], None);
        start.list(None).await;
        assert_eq!(start.passed().await, [Some(0)]);
    }
}
