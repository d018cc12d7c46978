//! `v1` Service.

use prost::Message;
use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// A Service, as far as a proxy reads it.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    /// `metadata`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "2")]
    pub spec: ServiceSpec,
    /// `status`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "3")]
    pub status: ServiceStatus,
}

impl Service {
    /// Whether no proxy serves it: it is headless, an alias of a name, or has no address yet.
    pub fn is_unproxied(&self) -> bool {
        let ServiceSpec { kind, cluster_ip, cluster_ips, .. } = &self.spec;
        kind == "ExternalName"
            || cluster_ip == "None"
            || cluster_ips.first().is_some_and(|ip| ip == "None")
            || (cluster_ip.is_empty() && cluster_ips.is_empty())
    }
}

/// `spec` of a Service. Strings hold what the object says, unchecked.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `type`; empty means `ClusterIP`.
    #[serde(rename = "type", deserialize_with = "null_default")]
    #[prost(string, tag = "4")]
    pub kind: String,
    /// `clusterIP`
    #[serde(rename = "clusterIP", deserialize_with = "null_default")]
    #[prost(string, tag = "3")]
    pub cluster_ip: String,
    /// `clusterIPs`, in the order of `ipFamilies`.
    #[serde(rename = "clusterIPs", deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "18")]
    pub cluster_ips: Vec<String>,
    /// `ipFamilies`
    #[serde(deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "19")]
    pub ip_families: Vec<String>,
    /// `externalIPs`
    #[serde(rename = "externalIPs", deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "5")]
    pub external_ips: Vec<String>,
    /// `ports`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "1")]
    pub ports: Vec<ServiceSpecPort>,
    /// `sessionAffinity`: empty, `None` or `ClientIP`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "7")]
    pub session_affinity: String,
    /// `sessionAffinityConfig`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "14")]
    pub session_affinity_config: SessionAffinityConfig,
    /// `externalTrafficPolicy`: empty, `Cluster` or `Local`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "11")]
    pub external_traffic_policy: String,
    /// `internalTrafficPolicy`: empty, `Cluster` or `Local`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "22")]
    pub internal_traffic_policy: String,
    /// `loadBalancerSourceRanges`
    #[serde(deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "9")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `healthCheckNodePort`, 0 for none.
    #[serde(deserialize_with = "null_default")]
    #[prost(int64, tag = "12")]
    pub health_check_node_port: i64,
}

/// One of `spec.ports`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpecPort {
    /// `name`; may be empty if it is the only port.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub name: String,
    /// `protocol`; empty means `TCP`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// `port`
    #[serde(deserialize_with = "null_default")]
    #[prost(int64, tag = "3")]
    pub port: i64,
    /// `nodePort`, 0 for none.
    #[serde(deserialize_with = "null_default")]
    #[prost(int64, tag = "5")]
    pub node_port: i64,
}

/// `spec.sessionAffinityConfig`
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// `clientIP`
    #[serde(rename = "clientIP", deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub client_ip: ClientIpConfig,
}

/// `spec.sessionAffinityConfig.clientIP`
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// `timeoutSeconds`, in seconds.
    #[prost(int64, optional, tag = "1")]
    pub timeout_seconds: Option<i64>,
}

/// `status` of a Service.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// `loadBalancer`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerStatus {
    /// `ingress`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "1")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct LoadBalancerIngress {
    /// `ip`; empty for entries that have only a host name.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub ip: String,
    /// `ipMode`: empty, `VIP` or `Proxy`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "3")]
    pub ip_mode: String,
}
