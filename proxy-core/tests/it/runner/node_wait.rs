//! The objects that the first sync waits for: lists, the Node, its addresses, its podCIDRs.

use std::{
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    objects::Kind,
    runner::{Input, NodeCheck, NodePatience, RunnerConfig},
    testing::{Builder, NODE, list, node},
    track::Tracker,
};
use tokio::time::sleep;

use super::{Running, facts, pass, start_runner};

/// The parts of the Node that the configuration uses.
enum Takes {
    Nothing,
    Address,
    PodCidrs,
}

impl Running {
    fn waiting(takes: Takes, patience: Option<NodePatience>, refuses: bool) -> Self {
        let mut config = NodeConfig::new(NODE);
        match takes {
            Takes::Nothing => {}
            Takes::Address => config.node_port_addresses = vec![NodePortAddressConfig::Primary],
            Takes::PodCidrs => config.local_pods = LocalPodsConfig::NodeCidr,
        }
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let checks = Arc::clone(&lines);
        let check: NodeCheck = Box::new(move |node| {
            checks.lock().unwrap().push(format!("known: {}", facts(node)));
            !refuses
        });
        start_runner(
            RunnerConfig::default(),
            |log, tracker| (log.lines, *tracker) = (lines, Tracker::new(config)),
            |runner| runner.waiting_for_node(patience, Some(check)),
        )
    }

    /// Lists the Nodes: this one, if there is one, and another.
    async fn list_nodes(&self, this: Option<Builder>) {
        let other = node("node-9", "10.0.0.9").set("spec.podCIDRs", json!(["10.9.0.0/24"]));
        self.send(list(Kind::Node, this.into_iter().chain([other]).collect::<Vec<_>>())).await;
    }

    /// The events since the last call.
    async fn lines(&self) -> Vec<String> {
        // Nothing else runs: what can happen has happened.
        pass(1).await;
        mem::take(&mut *self.log.lock().unwrap().lines.lock().unwrap())
    }
}

const NOTHING: [Builder; 0] = [];
const PATIENCE: Option<NodePatience> = Some(NodePatience::KUBE_PROXY);

fn this(ips: &[&str], pod_cidrs: &[&str]) -> Builder {
    let addresses: Vec<_> =
        ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
    node(NODE, "").set("status.addresses", addresses).set("spec.podCIDRs", json!(pod_cidrs))
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_states_enough_is_not_waited_for() {
    let running = Running::waiting(Takes::Address, PATIENCE, false);
    assert_eq!(running.lines().await, ["waiting for the list of Services"]);
    running.send(list(Kind::Service, &NOTHING)).await;
    assert_eq!(running.lines().await, ["waiting for the list of EndpointSlices"]);
    running.send(list(Kind::EndpointSlice, &NOTHING)).await;
    assert_eq!(running.lines().await, ["waiting for the list of Nodes"]);
    // The list counts, not a single Node, and there is no patience to lose before the list.
    running.send(node("node-9", "10.0.0.9").apply()).await;
    seconds(1_000).await;
    assert_eq!(running.lines().await, [""; 0]);
    running.list_nodes(Some(this(&["10.0.0.1"], &[]))).await;
    let known = "known: [10.0.0.1] []";
    assert_eq!(running.lines().await, ["changed: [10.0.0.1] []", known, "sync"]);
    // Later changes are reported, and waited for no more.
    running.send(this(&["10.0.0.2"], &["10.1.0.0/24"]).apply()).await;
    seconds(2).await;
    let changed = "changed: [10.0.0.2] [10.1.0.0/24]";
    assert_eq!(running.lines().await, [changed, "sync"]);
    running.send(this(&["10.0.0.2"], &["10.1.0.0/24"]).apply()).await;
    assert_eq!(running.lines().await, [""; 0], "the same");
    // Changes in a row are reported one by one.
    for ip in ["10.0.0.3", "10.0.0.2"] {
        let event = this(&[ip], &["10.1.0.0/24"]).apply();
        running.inputs.try_send(Input::Event(event)).unwrap();
    }
    let other = "changed: [10.0.0.3] [10.1.0.0/24]";
    assert_eq!(running.lines().await, [other, changed]);
    running.send(this(&[], &[]).delete()).await;
    seconds(1_000).await;
    assert_eq!(running.lines().await, ["changed: no Node"]);
}

#[tokio::test(start_paused = true)]
async fn addresses_are_waited_for_and_then_given_up() {
    let running = Running::waiting(Takes::Address, PATIENCE, false);
    running.list(&[]).await;
    running.list_nodes(None).await;
    assert_eq!(
        running.lines().await,
        ["waiting for the list of Services", "changed: no Node", "waiting for the Node",]
    );
    seconds(20).await;
    running.send(this(&[], &[]).apply()).await;
    let waits = "waiting for the Node's addresses";
    assert_eq!(running.lines().await, ["changed: [] []", waits]);
    running.send(this(&["10.0.0.1"], &[]).apply()).await;
    let changed = "changed: [10.0.0.1] []";
    assert_eq!(running.lines().await, [changed, "known: [10.0.0.1] []", "sync"]);

    for (node, gave_up, known) in [
        (None, "gave up the Node: no Node", "known: no Node"),
        (Some(this(&[], &[])), "gave up the Node's addresses: [] []", "known: [] []"),
    ] {
        let running = Running::waiting(Takes::Address, PATIENCE, false);
        running.list(&[]).await;
        running.list_nodes(node).await;
        running.lines().await;
        seconds(29).await;
        assert_eq!(running.lines().await, [""; 0]);
        seconds(2).await;
        assert_eq!(running.lines().await, [gave_up, known, "sync"]);
    }
}

#[tokio::test(start_paused = true)]
async fn pod_cidrs_are_waited_for_longer_and_never_done_without() {
    let running = Running::waiting(Takes::PodCidrs, PATIENCE, false);
    running.list(&[]).await;
    running.list_nodes(Some(this(&["10.0.0.1"], &[]))).await;
    running.lines().await;
    seconds(300).await;
    assert_eq!(running.lines().await, [""; 0]);
    running.send(this(&["10.0.0.1"], &["10.1.0.0/24"]).apply()).await;
    let changed = "changed: [10.0.0.1] [10.1.0.0/24]";
    assert_eq!(running.lines().await, [changed, "known: [10.0.0.1] [10.1.0.0/24]", "sync"]);

    // An address is not worth as much.
    let running = Running::waiting(Takes::PodCidrs, PATIENCE, false);
    running.list(&[]).await;
    running.list_nodes(Some(this(&[], &["10.1.0.0/24"]))).await;
    running.lines().await;
    seconds(31).await;
    let gave_up = "gave up the Node's addresses: [] [10.1.0.0/24]";
    assert_eq!(running.lines().await, [gave_up, "known: [] [10.1.0.0/24]", "sync"]);

    let running = Running::waiting(Takes::PodCidrs, PATIENCE, false);
    running.list(&[]).await;
    running.list_nodes(Some(this(&["10.0.0.1"], &[]))).await;
    running.lines().await;
    seconds(328).await;
    assert_eq!(running.lines().await, [""; 0]);
    seconds(3).await;
    assert_eq!(running.lines().await, ["gave up the Node's podCIDRs: [10.0.0.1] []"]);
    seconds(1_000).await;
    assert_eq!(running.lines().await, [""; 0], "nothing is programmed without");
    running.send(this(&["10.0.0.1"], &["10.1.0.0/24"]).apply()).await;
    assert_eq!(running.lines().await.last().map(String::as_str), Some("sync"));

    // A Node that is deleted in the meantime states nothing.
    let running = Running::waiting(Takes::PodCidrs, PATIENCE, false);
    running.list(&[]).await;
    running.list_nodes(Some(this(&["10.0.0.1"], &[]))).await;
    running.send(this(&[], &[]).delete()).await;
    running.lines().await;
    seconds(331).await;
    assert_eq!(
        running.lines().await,
        [
            "gave up the Node: no Node",
            "waiting for the Node's podCIDRs",
            "gave up the Node's podCIDRs: no Node",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn without_patience_a_listed_node_may_lack_anything() {
    for takes in [Takes::Address, Takes::PodCidrs] {
        let running = Running::waiting(takes, None, false);
        running.list(&[]).await;
        seconds(1_000).await;
        running.lines().await;
        running.list_nodes(None).await;
        assert_eq!(running.lines().await, ["changed: no Node", "known: no Node", "sync"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_takes_nothing_from_the_node_waits_for_nothing_of_it() {
    let running = Running::waiting(Takes::Nothing, PATIENCE, false);
    running.list(&[]).await;
    assert_eq!(running.lines().await, ["waiting for the list of Services", "sync"]);
    // The Node is still followed.
    running.list_nodes(None).await;
    seconds(31).await;
    assert_eq!(
        running.lines().await,
        ["changed: no Node", "gave up the Node: no Node", "known: no Node",]
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_refused_is_not_synced_any_more() {
    for (takes, syncs) in [(Takes::Address, 0), (Takes::Nothing, 1)] {
        let running = Running::waiting(takes, PATIENCE, true);
        running.list(&[]).await;
        let lines = running.lines().await;
        assert_eq!(lines.iter().filter(|line| *line == "sync").count(), syncs, "{lines:?}");
        running.list_nodes(Some(this(&["10.0.0.1"], &[]))).await;
        let facts = "[10.0.0.1] []";
        let expected = ["changed", "known", "refused"].map(|what| format!("{what}: {facts}"));
        assert_eq!(running.lines().await, expected);
        running.inputs.send(Input::Compare).await.unwrap();
        seconds(10_000).await;
        assert_eq!(running.lines().await, [""; 0]);
    }
}
