//! What the engine does, told to logs, metrics and health.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use conntrack::Reconciler;
use jiff::Timestamp;
use proxy_core::{
    model::{IpFamily, ServicePortId},
    objects::{Event, Kind},
    proxier::ProxierError,
    runner::{Observer, SyncOutcome},
    state::{Delta, PoolKind, State},
    track::Problem,
};
use tokio::sync::watch;

use crate::{health::ProxyHealth, http::service_health::Wanted, metrics::Metrics};

/// The engine's [`Observer`].
pub struct EngineObserver {
    health: Arc<ProxyHealth>,
    metrics: Arc<Metrics>,
    flows: Option<Reconciler>,
    health_checks: watch::Sender<Arc<Wanted>>,
}

impl EngineObserver {
    /// The engine starts now, and serves these families.
    pub fn new(health: Arc<ProxyHealth>, metrics: Arc<Metrics>, families: &[IpFamily]) -> Self {
        health.started(families, Timestamp::now());
        metrics.started();
        let health_checks = watch::Sender::new(Arc::default());
        Self { health, metrics, flows: None, health_checks }
    }

    /// Has stale flows removed after each sync.
    pub fn with_flows(mut self, flows: Option<Reconciler>) -> Self {
        self.flows = flows;
        self
    }

    /// The Services whose health is to be served: told after each sync, changed or not.
    pub fn health_checks(&self) -> watch::Receiver<Arc<Wanted>> {
        self.health_checks.subscribe()
    }

    fn tell_health_checks(&self, state: &State, delta: &Delta) {
        self.health_checks.send_modify(|wanted| {
            if delta.health_checks || delta.node || delta.full {
                *wanted = Arc::new(Wanted {
                    checks: state.health_checks.clone(),
                    node_ports: state.node.node_ports.clone(),
                });
            }
        });
    }
}

/// The endpoints of the Service ports that a sync changes, for those who asked for so much.
fn log_endpoints(state: &State, delta: &Delta) {
    let log = |id: &ServicePortId| {
        let port = state.service_ports.get(id);
        let endpoints = |kind| {
            let pool = port.map(|port| &port.pool(kind)[..]).unwrap_or_default();
            let texts: Vec<String> = pool.iter().map(|e| e.address.to_string()).collect();
            format!("[{}]", texts.join(" "))
        };
        tracing::debug!(
            target: "switchyard::v3",
            ipFamily = id.family.as_str(),
            servicePortName = %id.name,
            endpoints = endpoints(PoolKind::Cluster),
            localEndpoints = endpoints(PoolKind::Local),
            "Setting endpoints for service port name"
        );
    };
    match delta.full {
        true => state.service_ports.keys().for_each(log),
        false => delta.service_ports.iter().for_each(log),
    }
}

/// What a sync did, and what it found.
fn log_outcome(outcome: &SyncOutcome<'_>) {
    let drift = &outcome.report.drift;
    if !drift.is_none() {
        tracing::warn!(
            objects = drift.objects,
            among_them = drift.examples.join("; "),
            "Somebody else had changed what was programmed; it is repaired"
        );
    }
    for (service_port, reason) in &outcome.report.skipped {
        tracing::warn!(
            service_port = service_port.as_str(),
            reason = reason.as_str(),
            "A Service port is not served as it asks"
        );
    }
    tracing::debug!(
        full = outcome.delta.full,
        changed = outcome.delta.service_ports.len(),
        service_ports = outcome.state.service_ports.len(),
        added = outcome.report.added,
        removed = outcome.report.removed,
        bytes = outcome.report.bytes,
        elapsed = ?outcome.duration,
        commit = ?outcome.report.commit,
        "Synced"
    );
}

impl Observer for EngineObserver {
    fn received(&self, event: &Event) {
        match event {
            Event::Apply(object) => {
                tracing::trace!(object = %object.key(), "Object added or changed");
            }
            Event::Delete(object) => tracing::trace!(%object, "Object deleted"),
            Event::Replace { kind, objects, malformed } => tracing::debug!(
                target: "switchyard::v3",
                kind = kind.as_str(),
                objects = objects.len(),
                malformed = malformed.len(),
                "Listed"
            ),
            // That is told as something rejected.
            Event::Malformed { .. } => {}
        }
    }

    fn rejected(&self, problem: &Problem) {
        self.metrics.rejected(problem);
        tracing::warn!(
            object = %problem.object,
            field = problem.field.as_str(),
            reason = problem.message.as_str(),
            "Part of an object cannot be used"
        );
    }

    fn changed(&self, kind: Kind) {
        self.metrics.changed(kind);
    }

    fn sync_requested(&self) {
        self.health.sync_requested(Instant::now());
        self.metrics.sync_requested();
    }

    fn sync_started(&self, state: &State, delta: &Delta) {
        tracing::debug!(
            full = delta.full,
            changed = delta.service_ports.len(),
            service_ports = state.service_ports.len(),
            "Syncing"
        );
        if tracing::enabled!(target: "switchyard::v3", tracing::Level::DEBUG) {
            log_endpoints(state, delta);
        }
    }

    fn disturbed(&self) {
        self.health.disturbed();
    }

    fn synced(&self, outcome: &SyncOutcome<'_>) {
        // First, so that whoever sees the metrics finds it in the log.
        log_outcome(outcome);
        self.health.synced(Timestamp::now());
        self.metrics.synced(outcome);
        self.tell_health_checks(outcome.state, outcome.delta);
        if let Some(flows) = &self.flows {
            flows.synced(outcome.state, outcome.delta);
        }
    }

    fn sync_failed(&self, error: &ProxierError, delta: &Delta, duration: Duration) {
        self.metrics.sync_failed(delta, duration.as_secs_f64());
        let why = crate::error_chain(error);
        self.health.sync_failed(why.clone());
        tracing::error!(
            err = why,
            full = delta.full,
            elapsed = ?duration,
            "Failed to sync; it will be repeated"
        );
    }

    fn node_eligible(&self, is_eligible: bool) {
        self.health.set_node_eligible(is_eligible);
        tracing::debug!(is_eligible, "Whether the Node may have traffic");
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use proxy_core::{
        config::NodeConfig,
        objects::{Event, Metadata, Node, Object, Service},
        proxier::{Proxier, SyncReport},
        runner::{Input, Runner, RunnerConfig},
        track::Tracker,
    };
    use tokio::{sync::mpsc, time::sleep};

    use super::*;

    /// Fails the first time.
    struct Flaky(bool);

    #[async_trait]
    impl Proxier for Flaky {
        fn mode(&self) -> &'static str {
            "nftables"
        }

        async fn sync(&mut self, _: &State, _: &Delta) -> Result<SyncReport, ProxierError> {
            if std::mem::replace(&mut self.0, false) {
                let reason = "it is asleep".into();
                return Err(ProxierError::Unsupported { mode: "nftables", reason });
            }
            Ok(SyncReport { bytes: 100, messages: 3, ..SyncReport::default() })
        }

        async fn cleanup(&mut self) -> Result<(), ProxierError> {
            Ok(())
        }
    }

    fn replace(kind: Kind, objects: Vec<Object>) -> Input {
        Input::Event(Event::Replace { kind, objects, malformed: Vec::new() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_runner_is_observed() {
        let health = Arc::new(ProxyHealth::new(Duration::from_secs(60)));
        let metrics = Arc::new(Metrics::for_tests());
        let observer =
            EngineObserver::new(Arc::clone(&health), Arc::clone(&metrics), &IpFamily::ALL);
        let mut health_checks = observer.health_checks();
        let tracker = Tracker::new(NodeConfig::new("node-1"));
        let runner = Runner::new(
            tracker,
            Box::new(Flaky(true)),
            RunnerConfig::default(),
            Arc::new(observer),
        );
        let (sender, receiver) = mpsc::channel(16);
        let running = tokio::spawn(runner.run(receiver));
        assert_eq!(health.report(Instant::now()).families.len(), 2, "both have started");

        let named = |name: &str| Metadata { name: name.into(), ..Metadata::default() };
        let mut service = Service { metadata: named("web"), ..Service::default() };
        service.spec.cluster_ips = vec!["nonsense".into()];
        service.spec.cluster_ip = "nonsense".into();
        let node = Node { metadata: named("node-1"), ..Node::default() };
        for (kind, objects) in [
            (Kind::Node, vec![Object::Node(node)]),
            (Kind::Service, vec![Object::Service(service)]),
            (Kind::EndpointSlice, vec![]),
        ] {
            sender.send(replace(kind, objects)).await.unwrap();
        }
        sleep(Duration::from_secs(30)).await;

        let report = health.report(Instant::now());
        assert!(report.node_eligible && report.healthy());
        let text = metrics.text();
        for line in [
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1\n",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 2\n",
            "kubeproxy_sync_proxy_rules_service_changes_total 2\n",
            "kubeproxy_sync_proxy_rules_service_changes_pending 0\n",
            "switchyard_objects_rejected_total{kind=\"Service\",reason=\"invalid\"} 1\n",
            "switchyard_transaction_bytes_sum 100\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }

        assert!(health_checks.has_changed().unwrap(), "every sync is told");
        assert!(health_checks.borrow_and_update().checks.is_empty());
        let mut balanced = Service { metadata: named("web"), ..Service::default() };
        balanced.spec.kind = "LoadBalancer".into();
        balanced.spec.external_traffic_policy = "Local".into();
        balanced.spec.cluster_ip = "10.0.0.1".into();
        balanced.spec.health_check_node_port = 31000;
        let event = Event::Apply(Object::Service(balanced));
        sender.send(Input::Event(event)).await.unwrap();
        health_checks.changed().await.unwrap();
        let port = health_checks.borrow().checks.values().map(|check| check.port).next();
        assert_eq!(port, Some(31000), "though nothing had to be programmed");

        drop(sender);
        running.await.unwrap();
    }
}
