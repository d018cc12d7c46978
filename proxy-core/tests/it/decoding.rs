//! Objects as JSON: what is skipped, what null means, what is refused.

use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};
use switchyard_core::objects::{EndpointSlice, Kind, Metadata, Node, ObjectKey, Service};

fn decode<T: DeserializeOwned>(json: Value) -> Result<T, String> {
    from_value(json).map_err(|error| error.to_string())
}

#[test]
fn null_and_absent_are_the_zero_value_everywhere() {
    let empty = Service::default();
    for json in [
        json!({}),
        json!({"metadata": null, "spec": null, "status": null}),
        json!({"metadata": {"name": null, "namespace": null, "labels": null}}),
        json!({"metadata": {"annotations": null, "creationTimestamp": null}}),
        json!({"spec": {"type": null, "clusterIP": null, "clusterIPs": null, "ports": null}}),
        json!({"spec": {"sessionAffinityConfig": null, "healthCheckNodePort": null}}),
        json!({"spec": {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": null}}}}),
        json!({"status": {"loadBalancer": null}}),
        json!({"status": {"loadBalancer": {"ingress": null}}}),
    ] {
        assert_eq!(decode::<Service>(json.clone()).as_ref(), Ok(&empty), "{json}");
    }
    let slice: EndpointSlice = decode(json!({
        "endpoints": [null, {"addresses": null, "conditions": null, "hints": null}],
        "ports": [null, {"name": null, "protocol": null, "port": null}],
    }))
    .unwrap();
    assert_eq!(slice.endpoints, vec![Default::default(); 2]);
    assert_eq!(slice.ports, vec![Default::default(); 2]);
    let labels = json!({"metadata": {"labels": {"a": null, "b": "c"}}});
    let node: Node = decode(labels).unwrap();
    assert_eq!(node.metadata.labels["a"], "");
    assert_eq!(node.metadata.labels["b"], "c");
}

#[test]
fn wrong_types_are_refused_by_the_decoder() {
    for (json, complaint) in [
        (json!({"spec": {"ports": [{"port": "80"}]}}), "string \"80\""),
        (json!({"spec": {"ports": [{"port": 80.5}]}}), "80.5"),
        (json!({"spec": {"externalIPs": "192.0.2.1"}}), "expected a sequence"),
        (json!({"metadata": {"labels": ["a"]}}), "expected a map"),
    ] {
        let error = decode::<Service>(json.clone()).unwrap_err();
        assert!(error.contains(complaint), "{json}: {error}");
    }
    // Numbers are any integer here: the tracker says what is wrong with them, by field.
    let odd = json!({"spec": {"ports": [{"port": -1, "nodePort": 4_000_000_000i64}]}});
    assert_eq!(decode::<Service>(odd).unwrap().spec.ports[0].node_port, 4_000_000_000);
}

#[test]
fn keys_name_kind_namespace_and_name() {
    let metadata = |namespace: &str| Metadata {
        name: "a".to_owned(),
        namespace: namespace.to_owned(),
        ..Metadata::default()
    };
    let shown = |kind, namespace| ObjectKey::new(kind, &metadata(namespace)).to_string();
    assert_eq!(shown(Kind::Service, "ns"), "Service ns/a");
    assert_eq!(shown(Kind::EndpointSlice, ""), "EndpointSlice default/a");
    assert_eq!(shown(Kind::Node, "ignored"), "Node a");
    assert_eq!(shown(Kind::ServiceCidr, ""), "ServiceCIDR a");
    let hostile = Metadata { name: "a\nb\u{1b}[0m".to_owned(), ..Metadata::default() };
    let shown = ObjectKey::new(Kind::Service, &hostile).to_string();
    assert_eq!(shown, "Service default/a\\nb\\u{1b}[0m");
}
