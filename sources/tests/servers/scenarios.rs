//! Scenarios that hold with any server.

use std::{collections::BTreeSet, time::Duration};

use api_standin::load;
use serde_json::{Value, json};
use switchyard_core::objects::{Kind, Object};
use switchyard_sources::kube::Timing;

use crate::{
    rig::{self, NODE},
    server::Server,
};

type Rig = rig::Rig<Server>;

/// The number of objects that one page holds.
const PAGE: usize = 500;

/// Starts a source, and waits until it has all kinds.
async fn follow(server: Server) -> Rig {
    let kubeconfig = server.kubeconfig();
    let mut rig = Rig::with_kubeconfig(server, &kubeconfig, Timing::default()).await;
    rig.synced().await;
    rig
}

async fn fill(server: &Server, services: usize) {
    for name in ["node-0", NODE] {
        server.apply(load::node(name)).await;
    }
    // A genuine server takes the first cluster IP for the Service of its own.
    for index in 1..=services {
        server.apply(load::service(index)).await;
        for slice in load::slices(index, 3) {
            server.apply(slice).await;
        }
    }
}

/// The names of the scenario's objects of a kind, without those that a genuine server makes by
/// itself.
fn names(rig: &Rig, kind: Kind) -> BTreeSet<String> {
    let keys =
        rig.objects.keys().filter(|key| key.kind == kind && key.namespace == load::NAMESPACE);
    keys.map(|key| key.name.clone()).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn with_label(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"][label] = "".into();
    object
}

/// Whether the source has the slice with an endpoint of this number as its first.
fn has_endpoint(rig: &Rig, number: usize) -> bool {
    let address = load::endpoint_ip(number).to_string();
    rig.objects.values().any(|object| match object {
        Object::EndpointSlice(slice) => slice.endpoints[0].addresses[0] == address,
        _ => false,
    })
}

pub async fn all_kinds_arrive(server: Server) {
    fill(&server, 3).await;
    let rig = follow(server).await;
    assert_eq!(names(&rig, Kind::Service), set(["svc-1", "svc-2", "svc-3"]));
    assert_eq!(names(&rig, Kind::EndpointSlice), set(["svc-1-0", "svc-2-0", "svc-3-0"]));
    assert_eq!(rig.names(Kind::Node), [NODE].into(), "no other node");
    assert_eq!(rig.names(Kind::ServiceCidr), ["kubernetes"].into());
    assert!(rig.malformed.is_empty(), "{:?}", rig.malformed);
    assert!(has_endpoint(&rig, 6), "{:?}", rig.objects);
}

pub async fn changes_and_selections_are_followed(server: Server) {
    fill(&server, 3).await;
    let mut rig = follow(server).await;
    let leaving = with_label(load::service(3), "service.kubernetes.io/service-proxy-name");
    rig.server.apply(leaving).await;
    rig.until("a Service that leaves", |rig| !rig.has(Kind::Service, "svc-3")).await;
    rig.server.apply(load::service(3)).await;
    rig.until("a Service that comes back", |rig| rig.has(Kind::Service, "svc-3")).await;
    let headless = with_label(load::slice(1, 0, &[5]), "service.kubernetes.io/headless");
    rig.server.apply(headless).await;
    rig.until("a slice that leaves", |rig| !rig.has(Kind::EndpointSlice, "svc-1-0")).await;
    rig.server.delete(&load::service(2)).await;
    rig.until("a deletion", |rig| !rig.has(Kind::Service, "svc-2")).await;
    rig.server.apply(load::slice(2, 0, &[77])).await;
    rig.until("an endpoint", |rig| has_endpoint(rig, 77)).await;
    let mut node = load::node(NODE);
    node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "elsewhere".into();
    rig.server.apply(node).await;
    rig.until("the node's zone", |rig| {
        rig.objects.values().any(|object| match object {
            Object::Node(n) => n.metadata.labels["topology.kubernetes.io/zone"] == "elsewhere",
            _ => false,
        })
    })
    .await;
    rig.server.apply(service_cidr()).await;
    rig.until("a range of cluster IPs", |rig| rig.has(Kind::ServiceCidr, "more")).await;
    assert!(rig.listed.values().all(|count| *count == 1), "{:?}", rig.listed);
}

fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.128.0.0/24"]},
    })
}

pub async fn more_objects_than_a_page_arrive(server: Server) {
    server.apply(load::node(NODE)).await;
    let count = 2 * PAGE + 7;
    for index in 0..count {
        server.apply(load::slice(index, 0, &[index])).await;
    }
    let rig = follow(server).await;
    assert_eq!(names(&rig, Kind::EndpointSlice).len(), count);
    assert_eq!(rig.listed[&Kind::EndpointSlice], 1);
}

pub async fn changes_follow_a_restart(server: Server) {
    fill(&server, 2).await;
    let mut rig = follow(server).await;
    rig.server.stop();
    rig.wait(Duration::from_millis(500)).await;
    rig.server.start().await;
    rig.server.apply(load::service(7)).await;
    rig.until("a Service that is new", |rig| rig.has(Kind::Service, "svc-7")).await;
    rig.server.delete(&load::service(1)).await;
    rig.until("a deletion", |rig| !rig.has(Kind::Service, "svc-1")).await;
    assert_eq!(names(&rig, Kind::EndpointSlice), set(["svc-1-0", "svc-2-0"]));
    assert!(!rig.task.is_finished() && rig.health.heard(Kind::Service).is_some());
}

pub async fn a_busy_cluster_is_followed(server: Server) {
    fill(&server, 5).await;
    let mut rig = follow(server).await;
    for number in 100..200 {
        rig.server.apply(load::slice(number % 5 + 1, 0, &[number])).await;
    }
    rig.until("the last endpoints", |rig| (195..200).all(|number| has_endpoint(rig, number))).await;
    assert_eq!(rig.listed[&Kind::EndpointSlice], 1, "no list but the first");
}
