//! The fields that a genuine API server adds to objects of which they are missing, as far as a
//! Service proxy reads them.
//!
//! Clients such as kube-proxy rely on these fields: a client that reads the timeout of a Service
//! with affinity, for example, does not expect that there is none. Source: the defaults in the API
//! reference of Service and EndpointSlice, and the conversions of Node.

use std::net::IpAddr;

use serde_json::{Value, json};

/// Adds the fields that are missing in a Service, an EndpointSlice or a Node; other objects stay as
/// they are. Parts that have another type than the field's are left alone.
pub fn add_defaults(object: &mut Value) {
    match object["kind"].as_str() {
        Some("Service") => service(object),
        Some("EndpointSlice") => endpoint_slice(object),
        Some("Node") => node(object),
        _ => (),
    }
}

fn service(object: &mut Value) {
    let status = object.get_mut("status").and_then(|status| status.get_mut("loadBalancer"));
    for entry in status.and_then(|status| list_in(status, "ingress")).into_iter().flatten() {
        if entry.get("ip").is_some() {
            add(entry, "ipMode", "VIP".into());
        }
    }
    let Some(spec) = object.get_mut("spec") else { return };
    add(spec, "type", "ClusterIP".into());
    add(spec, "sessionAffinity", "None".into());
    if spec["sessionAffinity"] == "ClientIP" {
        let timeout = json!({"clientIP": {"timeoutSeconds": 10800}});
        add(spec, "sessionAffinityConfig", timeout);
    }
    let kind = spec["type"].as_str().unwrap_or_default().to_owned();
    let is_served = kind != "ExternalName";
    let is_on_nodes = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    if is_served {
        add(spec, "internalTrafficPolicy", "Cluster".into());
        cluster_ips(spec);
    }
    if is_on_nodes || spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty()) {
        add(spec, "externalTrafficPolicy", "Cluster".into());
    }
    if kind == "LoadBalancer" {
        add(spec, "allocateLoadBalancerNodePorts", true.into());
    }
    for port in list_in(spec, "ports").into_iter().flatten() {
        add(port, "protocol", "TCP".into());
        let number = port["port"].clone();
        add(port, "targetPort", number);
    }
}

/// Completes the cluster IPs and their families from one another.
fn cluster_ips(spec: &mut Value) {
    if let first @ Value::String(_) = spec["clusterIP"].clone() {
        add(spec, "clusterIPs", json!([first]));
    }
    let first = spec["clusterIPs"][0].clone();
    if first.is_string() {
        add(spec, "clusterIP", first);
    }
    let addresses = spec["clusterIPs"].as_array().cloned().unwrap_or_default();
    let family = |ip: &Value| match ip.as_str()? {
        "" | "None" => None,
        // An address that is mapped into IPv6 is IPv4.
        ip if ip.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_ipv6()) => {
            Some(Value::from("IPv6"))
        }
        _ => Some("IPv4".into()),
    };
    let families: Vec<Value> = addresses.iter().filter_map(family).collect();
    if !families.is_empty() {
        let policy = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        add(spec, "ipFamilyPolicy", policy.into());
        add(spec, "ipFamilies", families.into());
    }
}

fn endpoint_slice(object: &mut Value) {
    for port in list_in(object, "ports").into_iter().flatten() {
        add(port, "name", "".into());
        add(port, "protocol", "TCP".into());
    }
}

/// Completes the pod networks of a Node and the first of them from one another: releases of
/// kube-proxy wait for `podCIDR` before they read `podCIDRs`.
fn node(object: &mut Value) {
    let Some(spec) = object.get_mut("spec") else { return };
    if let only @ Value::String(_) = spec["podCIDR"].clone() {
        add(spec, "podCIDRs", json!([only]));
    }
    if let first @ Value::String(_) = spec["podCIDRs"][0].clone() {
        add(spec, "podCIDR", first);
    }
}

/// Adds a field to a mapping that has no value for it.
fn add(mapping: &mut Value, field: &str, value: Value) {
    if let Some(fields) = mapping.as_object_mut() {
        let present = fields.entry(field).or_insert(Value::Null);
        if present.is_null() {
            *present = value;
        }
    }
}

fn list_in<'v>(mapping: &'v mut Value, field: &str) -> Option<&'v mut Vec<Value>> {
    mapping.get_mut(field)?.as_array_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(mut object: Value) -> Value {
        add_defaults(&mut object);
        object
    }

    #[test]
    fn services_get_what_they_lack_and_keep_what_they_have() {
        let spec = json!({
            "clusterIPs": ["10.96.0.1", "fd00::1"], "sessionAffinity": "ClientIP", "type": "LoadBalancer",
            "internalTrafficPolicy": "Local",
            "ports": [{"port": 80}, {"port": 53, "protocol": "UDP", "targetPort": "dns"}],
        });
        let ingress = json!([{"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "Proxy"}, {"hostname": "a"}]);
        let status = json!({"loadBalancer": {"ingress": ingress}});
        let service = completed(json!({"kind": "Service", "spec": spec, "status": status}));
        assert_eq!(
            service["spec"],
            json!({
                "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack",
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
                "type": "LoadBalancer", "allocateLoadBalancerNodePorts": true,
                "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Cluster",
                "ports": [
                    {"port": 80, "protocol": "TCP", "targetPort": 80},
                    {"port": 53, "protocol": "UDP", "targetPort": "dns"},
                ],
            })
        );
        assert_eq!(
            service["status"]["loadBalancer"]["ingress"],
            json!([
                {"ip": "203.0.113.1", "ipMode": "VIP"},
                {"ip": "203.0.113.2", "ipMode": "Proxy"},
                {"hostname": "a"},
            ])
        );
        assert_eq!(completed(service.clone()), service, "nothing is missing any more");
        let mapped = json!({"kind": "Service", "spec": {"clusterIP": "::ffff:10.96.0.1"}});
        assert_eq!(completed(mapped)["spec"]["ipFamilies"], json!(["IPv4"]));
    }

    #[test]
    fn headless_and_external_services_get_no_addresses() {
        let spec = |spec| completed(json!({"kind": "Service", "spec": spec}))["spec"].clone();
        let headless = spec(json!({"clusterIP": "None"}));
        assert_eq!(headless["clusterIPs"], json!(["None"]));
        assert!(headless["ipFamilies"].is_null() && headless["externalTrafficPolicy"].is_null());
        let external = spec(json!({"type": "ExternalName", "externalName": "example.org"}));
        assert!(external["internalTrafficPolicy"].is_null() && external["clusterIPs"].is_null());
    }

    #[test]
    fn ports_of_slices_have_a_name_and_a_protocol() {
        let slice = completed(json!({"kind": "EndpointSlice", "ports": [{"port": 80}]}));
        assert_eq!(slice["ports"], json!([{"name": "", "port": 80, "protocol": "TCP"}]));
    }

    #[test]
    fn nodes_have_their_first_pod_network_twice() {
        let both = json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]});
        for given in [json!({"podCIDR": "10.0.0.0/24"}), json!({"podCIDRs": ["10.0.0.0/24"]})] {
            assert_eq!(completed(json!({"kind": "Node", "spec": given}))["spec"], both);
        }
        assert_eq!(completed(json!({"kind": "Node", "spec": {}}))["spec"], json!({}));
    }
}
