//! Conversions from the types of the crate `k8s-openapi` (feature `k8s-openapi`), for programs
//! whose informers hold those already.
//!
//! A conversion yields what decoding of the same object's JSON yields. The version of the
//! Kubernetes API is the choice of the program that is built: this crate enables none of
//! `k8s-openapi`'s features.

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};

use super::{
    ClientIpConfig, ConditionSet, EndpointHints, EndpointPort, EndpointSlice, LoadBalancerIngress,
    LoadBalancerStatus, Metadata, NamedHint, Node, NodeAddress, NodeSpec, NodeStatus, Object,
    Service, ServiceCidr, ServiceCidrSpec, ServiceSpec, ServiceSpecPort, ServiceStatus,
    SessionAffinityConfig, SliceEndpoint, Taint,
};

/// Converts an optional value, for which absence means the default.
fn or_default<T, U: From<T> + Default>(value: Option<T>) -> U {
    value.map(U::from).unwrap_or_default()
}

/// Converts each value of an optional list.
fn list<T, U: From<T>>(values: Option<Vec<T>>) -> Vec<U> {
    values.into_iter().flatten().map(U::from).collect()
}

impl From<ObjectMeta> for Metadata {
    fn from(meta: ObjectMeta) -> Self {
        let time = |time: Option<Time>| time.map(|Time(at)| at.to_string()).unwrap_or_default();
        Self {
            name: meta.name.unwrap_or_default(),
            namespace: meta.namespace.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            creation_timestamp: time(meta.creation_timestamp),
            deletion_timestamp: time(meta.deletion_timestamp),
            resource_version: String::new(),
        }
    }
}

impl From<core::Service> for Service {
    fn from(service: core::Service) -> Self {
        Self {
            metadata: service.metadata.into(),
            spec: or_default(service.spec),
            status: or_default(service.status),
        }
    }
}

impl From<core::ServiceSpec> for ServiceSpec {
    fn from(spec: core::ServiceSpec) -> Self {
        Self {
            kind: spec.type_.unwrap_or_default(),
            cluster_ip: spec.cluster_ip.unwrap_or_default(),
            cluster_ips: spec.cluster_ips.unwrap_or_default(),
            ip_families: spec.ip_families.unwrap_or_default(),
            external_ips: spec.external_ips.unwrap_or_default(),
            ports: list(spec.ports),
            session_affinity: spec.session_affinity.unwrap_or_default(),
            session_affinity_config: or_default(spec.session_affinity_config),
            external_traffic_policy: spec.external_traffic_policy.unwrap_or_default(),
            internal_traffic_policy: spec.internal_traffic_policy.unwrap_or_default(),
            load_balancer_source_ranges: spec.load_balancer_source_ranges.unwrap_or_default(),
            health_check_node_port: or_default(spec.health_check_node_port),
        }
    }
}

impl From<core::ServicePort> for ServiceSpecPort {
    fn from(port: core::ServicePort) -> Self {
        Self {
            name: port.name.unwrap_or_default(),
            protocol: port.protocol.unwrap_or_default(),
            port: port.port.into(),
            node_port: or_default(port.node_port),
        }
    }
}

impl From<core::SessionAffinityConfig> for SessionAffinityConfig {
    fn from(config: core::SessionAffinityConfig) -> Self {
        Self { client_ip: or_default(config.client_ip) }
    }
}

impl From<core::ClientIPConfig> for ClientIpConfig {
    fn from(config: core::ClientIPConfig) -> Self {
        Self { timeout_seconds: config.timeout_seconds.map(i64::from) }
    }
}

impl From<core::ServiceStatus> for ServiceStatus {
    fn from(status: core::ServiceStatus) -> Self {
        Self { load_balancer: or_default(status.load_balancer) }
    }
}

impl From<core::LoadBalancerStatus> for LoadBalancerStatus {
    fn from(status: core::LoadBalancerStatus) -> Self {
        Self { ingress: list(status.ingress) }
    }
}

impl From<core::LoadBalancerIngress> for LoadBalancerIngress {
    fn from(ingress: core::LoadBalancerIngress) -> Self {
        Self { ip: ingress.ip.unwrap_or_default(), ip_mode: ingress.ip_mode.unwrap_or_default() }
    }
}

impl From<discovery::EndpointSlice> for EndpointSlice {
    #[allow(clippy::useless_conversion, reason = "`endpoints` is no option before v1_36")]
    fn from(slice: discovery::EndpointSlice) -> Self {
        Self {
            metadata: slice.metadata.into(),
            address_type: slice.address_type,
            endpoints: list(slice.endpoints.into()),
            ports: list(slice.ports),
        }
    }
}

impl From<discovery::Endpoint> for SliceEndpoint {
    fn from(endpoint: discovery::Endpoint) -> Self {
        Self {
            addresses: endpoint.addresses,
            conditions: or_default(endpoint.conditions),
            node_name: endpoint.node_name,
            hints: or_default(endpoint.hints),
        }
    }
}

impl From<discovery::EndpointConditions> for ConditionSet {
    fn from(conditions: discovery::EndpointConditions) -> Self {
        let discovery::EndpointConditions { ready, serving, terminating } = conditions;
        Self { ready, serving, terminating }
    }
}

impl From<discovery::EndpointHints> for EndpointHints {
    fn from(hints: discovery::EndpointHints) -> Self {
        Self { for_zones: list(hints.for_zones), for_nodes: list(hints.for_nodes) }
    }
}

impl From<discovery::ForZone> for NamedHint {
    fn from(zone: discovery::ForZone) -> Self {
        Self { name: zone.name }
    }
}

impl From<discovery::ForNode> for NamedHint {
    fn from(node: discovery::ForNode) -> Self {
        Self { name: node.name }
    }
}

impl From<discovery::EndpointPort> for EndpointPort {
    fn from(port: discovery::EndpointPort) -> Self {
        Self {
            name: port.name,
            protocol: port.protocol.unwrap_or_default(),
            port: port.port.map(i64::from),
        }
    }
}

impl From<core::Node> for Node {
    fn from(node: core::Node) -> Self {
        Self {
            metadata: node.metadata.into(),
            spec: or_default(node.spec),
            status: or_default(node.status),
        }
    }
}

impl From<core::NodeSpec> for NodeSpec {
    fn from(spec: core::NodeSpec) -> Self {
        Self { pod_cidrs: spec.pod_cidrs.unwrap_or_default(), taints: list(spec.taints) }
    }
}

impl From<core::Taint> for Taint {
    fn from(taint: core::Taint) -> Self {
        Self { key: taint.key }
    }
}

impl From<core::NodeStatus> for NodeStatus {
    fn from(status: core::NodeStatus) -> Self {
        Self { addresses: list(status.addresses) }
    }
}

impl From<core::NodeAddress> for NodeAddress {
    fn from(address: core::NodeAddress) -> Self {
        Self { kind: address.type_, address: address.address }
    }
}

impl From<networking::ServiceCIDR> for ServiceCidr {
    fn from(range: networking::ServiceCIDR) -> Self {
        Self { metadata: range.metadata.into(), spec: or_default(range.spec) }
    }
}

impl From<networking::ServiceCIDRSpec> for ServiceCidrSpec {
    fn from(spec: networking::ServiceCIDRSpec) -> Self {
        Self { cidrs: spec.cidrs.unwrap_or_default() }
    }
}

macro_rules! into_object {
    ($($theirs:ty => $kind:ident),*) => {
        $(impl From<$theirs> for Object {
            fn from(object: $theirs) -> Self {
                Self::$kind(object.into())
            }
        })*
    };
}
into_object!(
    core::Service => Service,
    discovery::EndpointSlice => EndpointSlice,
    core::Node => Node,
    networking::ServiceCIDR => ServiceCidr
);
