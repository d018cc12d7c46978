//! Clusters of any size, the same at every run.
//!
//! Service `n` has the cluster IP `10.96.0.1 + n`, its endpoints follow each other from
//! `100.64.0.1` on. There is room for a million Services and four million endpoints.

use std::{net::Ipv4Addr, ops::Range, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{control_plane::ControlPlane, resource::Resource, store::Store};

/// The most endpoints of one slice, as the cluster's own controller has it.
const SLICE_SIZE: usize = 100;
/// The first number of endpoints that move.
const MOST_ENDPOINTS: usize = 2_000_000;
/// The number of nodes the endpoints that are spread over: `node-0`, `node-1`, ...
const NODES: usize = 100;

/// The namespace of all objects.
pub const NAMESPACE: &str = "load";

pub fn cluster_ip(index: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + index as u32)
}

/// The address of the endpoint with this number, counted through all Services.
pub fn endpoint_ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 1)) + number as u32)
}

/// Service `index`: TCP port 80, named `http`.
pub fn service(index: usize) -> Value {
    let ip = cluster_ip(index).to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": format!("svc-{index}"),
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": format!("app-{index}")},
            "managedFields": [{
                "manager": "kubectl", "operation": "Update", "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:ports": {}, "f:type": {}}},
            }],
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": {"app": format!("app-{index}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// The EndpointSlices of Service `index` if each Service has `endpoints` of them.
pub fn slices(index: usize, endpoints: usize) -> Vec<Value> {
    slices_of(index, index * endpoints..(index + 1) * endpoints)
}

/// The EndpointSlices of Service `index` with the endpoints of these numbers.
fn slices_of(index: usize, numbers: Range<usize>) -> Vec<Value> {
    let numbers: Vec<_> = numbers.collect();
    let chunks = numbers.chunks(SLICE_SIZE).enumerate();
    chunks.map(|(part, numbers)| slice(index, part, numbers)).collect()
}

/// One EndpointSlice with the endpoints of these numbers.
pub fn slice(index: usize, part: usize, numbers: &[usize]) -> Value {
    let endpoint = |number: &usize| {
        json!({
            "addresses": [endpoint_ip(*number).to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": format!("node-{}", number % NODES),
            "targetRef": {
                "kind": "Pod", "namespace": NAMESPACE, "name": format!("pod-{number}"),
                "uid": format!("00000000-0000-0000-0000-{number:012}"),
            },
            "zone": format!("zone-{}", number % 3),
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("svc-{index}-{part}"),
            "namespace": NAMESPACE,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "kubernetes.io/service-name": format!("svc-{index}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "endpoints": numbers.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

pub fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "zone-0"},
        },
        "spec": {"podCIDR": "100.64.0.0/10", "podCIDRs": ["100.64.0.0/10"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": name},
        ]},
    })
}

/// Puts `services` Services with `endpoints` endpoints each into the store, and the default
/// ServiceCIDR.
pub fn fill(store: &Store, services: usize, endpoints: usize) {
    fill_with(store, &[(services, endpoints)]);
}

/// Does the same with groups of Services, each of which has its own number of endpoints.
pub fn fill_with(store: &Store, groups: &[(usize, usize)]) {
    store.apply(json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/12"]},
    }));
    let (mut index, mut number) = (0, 0);
    for &(services, endpoints) in groups {
        for _ in 0..services {
            store.apply(service(index));
            for slice in slices_of(index, number..number + endpoints) {
                store.apply(slice);
            }
            (index, number) = (index + 1, number + endpoints);
        }
    }
}

/// Moves an endpoint of one Service after another of `services`, for ever, at this interval; also
/// on a genuine server, if there is one.
pub async fn change(
    store: &Store,
    services: usize,
    interval: Duration,
    genuine: Option<&ControlPlane>,
) {
    let mut ticks = tokio::time::interval(interval);
    for round in 0usize.. {
        ticks.tick().await;
        // Far from each other, as a prime is no divisor.
        let index = round.wrapping_mul(7919) % services.max(1);
        let Some(mut slice) =
            store.get(Resource::EndpointSlices, NAMESPACE, &format!("svc-{index}-0"))
        else {
            continue;
        };
        // The others of the slice stay.
        let moved = MOST_ENDPOINTS + round % MOST_ENDPOINTS;
        slice["endpoints"][0]["addresses"][0] = endpoint_ip(moved).to_string().into();
        // As the cluster's own controller has it, which knows whole seconds only.
        slice["metadata"]["annotations"] = json!({"endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string()});
        if let Some(server) = genuine {
            // Whatever the server's version is.
            slice["metadata"]["resourceVersion"].take();
            server.apply(slice.clone()).await;
        }
        store.apply(slice);
    }
}
