//! The serialized form of a state (feature `serde`).

use serde_json::json;
use switchyard_core::{
    config::NodeConfig,
    testing::{self, NODE},
};

#[test]
fn a_state_is_serialized_with_sorted_lists_and_names_in_camel_case() {
    let web = testing::service("web", "10.0.0.1,fd00::1")
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31000)
        .set("spec.sessionAffinity", "ClientIP")
        .set("spec.sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 90}}))
        .port("http", "TCP", 80)
        .node_port(30080);
    let slice = testing::slice("web", "a")
        .port("http", "TCP", 8080)
        .endpoint(testing::endpoint("10.244.0.1", NODE));
    let api = testing::service("api", "10.0.0.2").port("", "UDP", 53);
    let objects = [web, slice, api].map(|made| made.object()).to_vec();
    let state = testing::resolve_afresh(NodeConfig::new(NODE), objects);

    let mut json = serde_json::to_value(&state).unwrap();
    let web_v4 = json["servicePorts"][1].take();
    let id = |name: &str, port: &str, protocol: &str, family: &str| {
        json!({
            "name": {
                "service": {"namespace": "ns", "name": name}, "port": port, "protocol": protocol,
            },
            "family": family,
        })
    };
    assert_eq!(json["servicePorts"][0]["id"], id("api", "", "UDP", "IPv4"));
    assert_eq!(json["servicePorts"][2]["id"], id("web", "http", "TCP", "IPv6"));
    let endpoints = json!([
        {"address": "10.244.0.1:8080", "isLocal": true, "mayBeLocal": true, "weight": 1}
    ]);
    let to_pool = json!({"pool": {"pool": "cluster", "masquerade": "never"}});
    let frontend = |at, port: u16, route: &serde_json::Value| json!({"at": at, "port": port, "action": route, "allowedSources": null});
    assert_eq!(
        web_v4,
        json!({
            "id": id("web", "http", "TCP", "IPv4"),
            "frontends": [
                frontend(json!({"clusterIp": "10.0.0.1"}), 80, &to_pool),
                frontend(json!("nodePort"), 30080, &json!("externalLocal")),
            ],
            "cluster": endpoints,
            "local": endpoints,
            "draining": [],
            "affinitySeconds": 90,
            "lbAlgorithm": "random",
            "proxyProtocol": null,
        })
    );
    assert_eq!(
        json["healthChecks"],
        json!({"ns/web": {"port": 31000, "localEndpoints": {"v4": 1, "v6": 0}}})
    );
    assert_eq!(json["node"]["nodePorts"], json!({"v4": "allLocal", "v6": "allLocal"}));
}
