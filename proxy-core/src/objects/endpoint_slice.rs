//! `discovery.k8s.io/v1` EndpointSlice.

use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// An EndpointSlice, as far as a proxy reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// `metadata`; the label `kubernetes.io/service-name` says whose endpoints these are.
    #[serde(deserialize_with = "null_default")]
    pub metadata: Metadata,
    /// `addressType`: `IPv4`, `IPv6` or `FQDN`.
    #[serde(deserialize_with = "null_default")]
    pub address_type: String,
    /// `endpoints`
    #[serde(deserialize_with = "null_list")]
    pub endpoints: Vec<SliceEndpoint>,
    /// `ports`, which every endpoint of the slice has.
    #[serde(deserialize_with = "null_list")]
    pub ports: Vec<EndpointPort>,
}

/// One of `endpoints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// `addresses`, of which only the first counts.
    #[serde(deserialize_with = "null_list")]
    pub addresses: Vec<String>,
    /// `conditions`
    #[serde(deserialize_with = "null_default")]
    pub conditions: ConditionSet,
    /// `nodeName`
    pub node_name: Option<String>,
    /// `hints`
    #[serde(deserialize_with = "null_default")]
    pub hints: EndpointHints,
}

/// `conditions` of an endpoint; each may be absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConditionSet {
    /// `ready`; absent means true.
    pub ready: Option<bool>,
    /// `serving`; absent means true.
    pub serving: Option<bool>,
    /// `terminating`; absent means false.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint (KEP-2433, KEP-3015).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// `forZones`
    #[serde(deserialize_with = "null_list")]
    pub for_zones: Vec<NamedHint>,
    /// `forNodes`
    #[serde(deserialize_with = "null_list")]
    pub for_nodes: Vec<NamedHint>,
}

/// A zone or node that should use the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamedHint {
    /// `name` of the zone or the node.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
}

/// One of `ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// `name`; absent means that the port is ignored, the empty string is a name.
    pub name: Option<String>,
    /// `protocol`; empty means `TCP`.
    #[serde(deserialize_with = "null_default")]
    pub protocol: String,
    /// `port`; absent or 0 means that the port is ignored.
    pub port: Option<i64>,
}
