//! The conversions from `k8s-openapi`'s types yield what decoding of the same JSON yields.

use std::fmt::Debug;

use k8s_openapi::api::{
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use switchyard_core::objects::{EndpointSlice, Node, Object, Service, ServiceCidr};

/// Decodes the JSON as both types and compares them. Nothing but a name would make that trivial.
#[track_caller]
fn converted<Theirs, Ours>(mut json: Value)
where
    Theirs: DeserializeOwned + Clone + Into<Ours> + Into<Object>,
    Ours: DeserializeOwned + Clone + Default + PartialEq + Debug + Into<Object>,
{
    for metadata in [metadata(), json!({"name": "bare", "labels": null})] {
        json["metadata"] = metadata;
        let theirs: Theirs = serde_json::from_value(json.clone()).unwrap();
        let ours: Ours = serde_json::from_value(json.clone()).unwrap();
        assert_ne!(ours, Ours::default());
        assert_eq!(Into::<Ours>::into(theirs.clone()), ours);
        assert_eq!(Into::<Object>::into(theirs), ours.into());
    }
}

fn metadata() -> Value {
    json!({
        "name": "web",
        "namespace": "ns",
        "labels": {"kubernetes.io/service-name": "web", "a": ""},
        "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "deletionTimestamp": "2026-02-02T03:04:05Z",
    })
}

#[test]
fn objects_are_converted_as_they_are_decoded() {
    converted::<core::Service, Service>(json!({
        "spec": {
            "type": "LoadBalancer",
            "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080, "targetPort": "w"},
                {"port": 70000, "targetPort": 1},
            ],
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            "healthCheckNodePort": 31000,
            "selector": {"app": "web"},
        },
        "status": {"loadBalancer": {"ingress": [
            {"ip": "192.0.2.9", "ipMode": "Proxy"}, {"hostname": "lb.example"},
        ]}},
    }));
    converted::<discovery::EndpointSlice, EndpointSlice>(json!({
        "addressType": "IPv6",
        "endpoints": [
            {
                "addresses": ["fd00::9"],
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "nodeName": "node-1",
                "hints": {"forZones": [{"name": "east"}], "forNodes": [{"name": "node-1"}]},
            },
            {"addresses": []},
        ],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}, {"appProtocol": "http"}],
    }));
    converted::<core::Node, Node>(json!({
        "spec": {
            "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"],
            "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
        },
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.5"}]},
    }));
    let cidrs = json!({"spec": {"cidrs": ["10.96.0.0/12", "fd00::/112"]}});
    converted::<networking::ServiceCIDR, ServiceCidr>(cidrs);
}
