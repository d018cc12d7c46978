//! The conversions from `k8s-openapi`'s types yield what decoding of the same JSON yields.

use std::fmt::Debug;

use k8s_openapi::api::{
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use switchyard_core::objects::{EndpointSlice, Node, Object, Service, ServiceCidr};

/// Decodes the JSON as both types and compares them. Returns the object.
fn converted<Theirs, Ours>(json: Value) -> Ours
where
    Theirs: DeserializeOwned + Clone + Into<Ours> + Into<Object>,
    Ours: DeserializeOwned + Clone + PartialEq + Debug + Into<Object>,
{
    let theirs: Theirs = serde_json::from_value(json.clone()).unwrap();
    let ours: Ours = serde_json::from_value(json).unwrap();
    assert_eq!(Into::<Ours>::into(theirs.clone()), ours);
    assert_eq!(Into::<Object>::into(theirs), ours.clone().into());
    ours
}

/// Every field that a proxy reads, each with its own value.
fn metadata() -> Value {
    json!({
        "name": "web",
        "namespace": "ns",
        "uid": "0a0a",
        "labels": {"kubernetes.io/service-name": "web", "a": ""},
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-02-02T03:04:05Z",
    })
}

#[test]
fn services() {
    let full = converted::<core::Service, Service>(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(),
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": ["192.0.2.1"],
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "w"},
                {"port": 53, "protocol": "UDP"},
                {"port": 70000, "targetPort": 1},
            ],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster",
            "loadBalancerSourceRanges": ["198.51.100.0/24"],
            "healthCheckNodePort": 31000,
            "selector": {"app": "web"},
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "192.0.2.9", "ipMode": "Proxy"},
            {"hostname": "lb.example"},
        ]}},
    }));
    // Absence would make the comparison trivial.
    let spec = &full.spec;
    assert_eq!((spec.ports.len(), spec.health_check_node_port), (3, 31000));
    assert_eq!(spec.session_affinity_config.client_ip.timeout_seconds, Some(7));
    assert_eq!(full.status.load_balancer.ingress[0].ip_mode, "Proxy");
    assert_eq!(full.metadata.creation_timestamp, "2026-01-02T03:04:05Z");

    converted::<core::Service, Service>(json!({"metadata": {"name": "bare"}}));
    converted::<core::Service, Service>(json!({
        "metadata": {"name": "nulls", "labels": null},
        "spec": {"clusterIP": "None", "ports": null, "sessionAffinityConfig": {"clientIP": null}},
        "status": null,
    }));
}

#[test]
fn endpoint_slices() {
    let full = converted::<discovery::EndpointSlice, EndpointSlice>(json!({
        "metadata": metadata(),
        "addressType": "IPv6",
        "endpoints": [
            {
                "addresses": ["fd00::9", "fd00::a"],
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "nodeName": "node-1",
                "zone": "east",
                "hints": {"forZones": [{"name": "east"}], "forNodes": [{"name": "node-1"}]},
            },
            {"addresses": ["fd00::b"], "conditions": {}},
            {"addresses": []},
        ],
        "ports": [
            {"name": "http", "protocol": "TCP", "port": 8080},
            {"name": "", "port": 0},
            {"appProtocol": "http"},
        ],
    }));
    assert_eq!((full.endpoints.len(), full.ports.len()), (3, 3));
    assert_eq!(full.endpoints[0].hints.for_nodes[0].name, "node-1");
    assert_eq!(full.endpoints[0].conditions.terminating, Some(true));

    converted::<discovery::EndpointSlice, EndpointSlice>(json!({
        "metadata": {"name": "empty"}, "addressType": "IPv4", "endpoints": [], "ports": null,
    }));
}

#[test]
fn nodes() {
    let full = converted::<core::Node, Node>(json!({
        "metadata": metadata(),
        "spec": {
            "podCIDR": "10.244.1.0/24",
            "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"],
            "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
        },
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.5"}]},
    }));
    assert_eq!((full.spec.pod_cidrs.len(), full.spec.taints.len()), (2, 1));
    assert_eq!(full.status.addresses[0].kind, "InternalIP");
    converted::<core::Node, Node>(json!({"metadata": {}}));
}

#[test]
fn service_cidrs() {
    let full = converted::<networking::ServiceCIDR, ServiceCidr>(json!({
        "metadata": metadata(), "spec": {"cidrs": ["10.96.0.0/12", "fd00::/112"]},
    }));
    assert_eq!(full.spec.cidrs.len(), 2);
    converted::<networking::ServiceCIDR, ServiceCidr>(json!({"metadata": {"name": "x"}}));
}
