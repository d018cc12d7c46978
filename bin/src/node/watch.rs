//! The program's reaction when the engine reports facts of the Node: judges the configuration, logs
//! as kube-proxy does, and keeps the facts for changes of the configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    model::{IpFamily, PerFamily},
    runner::{EngineEvent, NodePatience, Observer},
    track::{Missing, NodeFacts},
};
use tokio::sync::watch;

use super::config_check::{NodeConfigCheck, NodeConfigError};
use crate::config::{
    settings::{Settings, SourceSettings},
    v1alpha1::KubeProxyConfiguration,
};

/// The prefix of warnings about a suspicious configuration.
const DOUBTFUL: &str = "Kube-proxy configuration may be incomplete or incorrect";

/// Why the program cannot work on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The Node's podCIDRs are configured to detect local traffic, and there is no Node.
    #[error("timeout waiting for node {0:?} to exist")]
    NoNode(String),
    /// The Node's podCIDRs are configured to detect local traffic, and the Node has none.
    #[error("timeout waiting for PodCIDR allocation on node {0:?}")]
    NoPodCidrs(String),
    #[error(transparent)]
    NodeConfigError(#[from] NodeConfigError),
}

/// The facts of the Node, `Some(None)` if there is no Node; `None` until the engine has them.
pub type KnownNode = Option<Option<NodeFacts>>;

/// The time that the first sync waits for facts of the Node. Manifests and a client of the socket
/// need not have a Node.
pub fn patience(source: &SourceSettings) -> Option<NodePatience> {
    match source {
        SourceSettings::Manifests(_) | SourceSettings::Socket(_) => None,
        SourceSettings::Cluster(_) => Some(NodePatience::KUBE_PROXY),
    }
}

/// The checks of a configuration against the facts of the Node.
#[derive(Debug)]
pub struct NodeChecks {
    node: NodeConfig,
    check: NodeConfigCheck,
    /// Whether the objects come from a cluster, where every node has a Node.
    has_cluster: bool,
}

impl NodeChecks {
    /// Creates the checks of a configuration, on a node that can program the families in
    /// `supported`.
    pub fn new(
        config: &KubeProxyConfiguration,
        settings: &Settings,
        supported: PerFamily<bool>,
    ) -> Self {
        Self {
            node: settings.node.clone(),
            check: NodeConfigCheck::new(config, settings, supported),
            has_cluster: patience(&settings.source).is_some(),
        }
    }

    /// Checks whether the program could start with this configuration, now that the Node is known.
    /// Logs the doubts that are not in `logged`, which then has the doubts of this check.
    ///
    /// # Errors
    /// If the configuration cannot work on this node.
    pub fn check(
        &self,
        node: Option<&NodeFacts>,
        logged: &mut Vec<String>,
    ) -> Result<(), NodeError> {
        let has_pod_cidrs = node.is_some_and(|node| !node.pod_cidrs.is_empty());
        let needs_pod_cidrs = self.node.local_pods == LocalPodsConfig::NodeCidr;
        if self.has_cluster && needs_pod_cidrs && !has_pod_cidrs {
            return Err(self.lacks_pod_cidrs(node.is_some()));
        }
        self.judge(node.unwrap_or(&NodeFacts::default()), logged)
    }

    fn lacks_pod_cidrs(&self, node_exists: bool) -> NodeError {
        let name = self.node.node_name.clone();
        if node_exists { NodeError::NoPodCidrs(name) } else { NodeError::NoNode(name) }
    }

    fn judge(&self, facts: &NodeFacts, logged: &mut Vec<String>) -> Result<(), NodeError> {
        let verdict = self.check.judge(facts);
        for doubt in verdict.doubts.iter().filter(|doubt| !logged.contains(doubt)) {
            let err = doubt.as_str();
            if self.has_cluster {
                tracing::error!(err, "{DOUBTFUL}");
            } else {
                // Manifests are mostly for trying things out.
                tracing::warn!(err, "{DOUBTFUL}");
            }
        }
        *logged = verdict.doubts;
        verdict.fatal.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Judges the configuration, and logs the node's addresses.
    fn start(&self, node: Option<&NodeFacts>) -> Result<(), NodeError> {
        let none = NodeFacts::default();
        let facts = node.unwrap_or(&none);
        if !facts.addresses.is_empty() {
            tracing::info!(node_ips = ?facts.addresses, "Node addresses updated from the API");
        }
        let primary = facts.primary_family(self.node.bind_address);
        let ip = facts.ip(self.node.bind_address, primary).unwrap_or_else(|| loopback(primary));
        if ip.is_loopback() && self.has_cluster {
            tracing::info!(
                assumed = %ip,
                "Node IP unknown; set --bind-address if the node has one"
            );
        }
        self.judge(facts, &mut Vec::new())?;
        tracing::info!(%primary, "Detected the primary IP family");
        Ok(())
    }

    fn log_changes(&self, before: Option<&NodeFacts>, now: Option<&NodeFacts>) {
        let node = self.node.node_name.as_str();
        match (before, now) {
            (Some(_), None) => tracing::info!(node, "Node deleted"),
            (None, Some(_)) => tracing::info!(node, "Node created"),
            (Some(before), Some(now)) => {
                if before.addresses != now.addresses {
                    let (old, new) = (&before.addresses, &now.addresses);
                    tracing::info!(node, ?old, ?new, "Node addresses changed");
                }
                let uses_pod_cidrs = self.node.local_pods == LocalPodsConfig::NodeCidr;
                if uses_pod_cidrs && before.pod_cidrs != now.pod_cidrs {
                    let (old, new) = (&before.pod_cidrs, &now.pod_cidrs);
                    tracing::info!(node, ?old, ?new, "Node podCIDRs changed");
                }
            }
            (None, None) => {}
        }
    }
}

/// An engine's observer and check of the node, by [`NodeChecks`].
#[derive(Debug)]
pub struct NodeWatch {
    checks: NodeChecks,
    known: watch::Sender<KnownNode>,
    failure: watch::Sender<Option<NodeError>>,
}

impl NodeWatch {
    /// Creates an observer that has seen nothing yet.
    pub fn new(checks: NodeChecks) -> Self {
        Self { checks, known: watch::Sender::new(None), failure: watch::Sender::new(None) }
    }

    /// Returns a receiver of the facts, as they change.
    pub fn known(&self) -> watch::Receiver<KnownNode> {
        self.known.subscribe()
    }

    /// Returns a receiver of the reason why the program has to end, for [`failed`].
    pub fn failure(&self) -> watch::Receiver<Option<NodeError>> {
        self.failure.subscribe()
    }

    fn fail(&self, error: NodeError) {
        self.failure.send_replace(Some(error));
    }
}

/// Returns the reason why the program has to end, once there is one.
pub async fn failed(mut failure: watch::Receiver<Option<NodeError>>) -> NodeError {
    loop {
        if let Some(error) = &*failure.borrow_and_update() {
            return error.clone();
        }
        if failure.changed().await.is_err() {
            // The engine has ended, which is noticed elsewhere.
            std::future::pending().await
        }
    }
}

impl Observer for NodeWatch {
    fn on_event(&self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::GaveUp { missing: Missing::PodCidrs, node } => {
                self.fail(self.checks.lacks_pod_cidrs(node.is_some()));
            }
            EngineEvent::NodeChanged(node) => self.node_changed(*node),
            _ => {}
        }
    }
}

impl NodeWatch {
    /// Checks whether the configuration can work on the node. If not, the program has to end.
    pub fn check(&self, node: Option<&NodeFacts>) -> bool {
        if let Err(error) = self.checks.start(node) {
            self.fail(error);
            return false;
        }
        self.known.send_replace(Some(node.cloned()));
        true
    }

    fn node_changed(&self, node: Option<&NodeFacts>) {
        // Before the start, `check` takes the facts.
        if self.known.borrow().is_none() {
            return;
        }
        if let Some(before) = self.known.send_replace(Some(node.cloned())) {
            self.checks.log_changes(before.as_ref(), node);
        }
    }
}

/// The address that a node without a known one is assumed to have.
fn loopback(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::testing::loaded,
        klog::{LogFormat, tests::logged},
    };

    fn watch(arguments: &[&str]) -> NodeWatch {
        let loaded = loaded(&[&["--proxy-mode=nftables"], arguments].concat());
        let supported = PerFamily { v4: true, v6: false };
        NodeWatch::new(NodeChecks::new(&loaded.config, &loaded.settings, supported))
    }

    fn facts(ips: &[&str], pod_cidrs: &[&str]) -> NodeFacts {
        let mut facts = NodeFacts::default();
        facts.addresses = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        facts.pod_cidrs = pod_cidrs.iter().map(|net| net.parse().unwrap()).collect();
        facts
    }

    /// Why the program has to end, if it has to.
    fn failure(watch: &NodeWatch) -> Option<String> {
        watch.failure().borrow().as_ref().map(ToString::to_string)
    }

    #[test]
    fn facts_are_kept_from_the_start_on() {
        let watch = watch(&[]);
        let node = facts(&["10.0.0.1"], &[]);
        watch.node_changed(Some(&node));
        assert_eq!(*watch.known().borrow(), None, "not judged yet");
        assert!(watch.check(Some(&node)));
        assert_eq!(*watch.known().borrow(), Some(Some(node)));
        let later = facts(&["10.0.0.2"], &[]);
        watch.node_changed(Some(&later));
        assert_eq!(*watch.known().borrow(), Some(Some(later)));
        watch.node_changed(None);
        assert_eq!(*watch.known().borrow(), Some(None));
        assert_eq!(failure(&watch), None);
    }

    /// A file that is rejected is checked again and again.
    #[test]
    fn a_doubt_is_logged_once() {
        let NodeWatch { checks, .. } = watch(&["--nodeport-addresses=fd00::/64"]);
        let (node, mut known) = (facts(&["10.0.0.1"], &[]), Vec::new());
        let mut doubts = || {
            let mut check = || checks.check(Some(&node), &mut known).unwrap();
            logged(LogFormat::Text, 0, &mut check).matches(DOUBTFUL).count()
        };
        assert_eq!([doubts(), doubts()], [1, 0]);
    }

    #[test]
    fn only_pod_cidrs_cannot_be_done_without() {
        let node = facts(&["10.0.0.1"], &[]);
        for (missing, facts, expected) in [
            (Missing::Node, None, None),
            (Missing::NodeAddresses, Some(&node), None),
            (
                Missing::PodCidrs,
                Some(&node),
                Some("timeout waiting for PodCIDR allocation on node \"node-1\""),
            ),
            (Missing::PodCidrs, None, Some("timeout waiting for node \"node-1\" to exist")),
        ] {
            let watch = watch(&["--detect-local-mode=NodeCIDR"]);
            watch.on_event(&EngineEvent::GaveUp { missing, node: facts });
            assert_eq!(failure(&watch).as_deref(), expected, "{missing:?}");
        }
    }
}
