//! `discovery.k8s.io/v1` EndpointSlice.

use prost::Message;
use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// An EndpointSlice, as far as a proxy reads it.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// `metadata`; the label `kubernetes.io/service-name` says whose endpoints these are.
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// `addressType`: `IPv4`, `IPv6` or `FQDN`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "4")]
    pub address_type: String,
    /// `endpoints`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "2")]
    pub endpoints: Vec<SliceEndpoint>,
    /// `ports`, which every endpoint of the slice has.
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "3")]
    pub ports: Vec<EndpointPort>,
}

/// One of `endpoints`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceEndpoint {
    /// `addresses`, of which only the first counts.
    #[serde(deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "1")]
    pub addresses: Vec<String>,
    /// `conditions`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "2")]
    pub conditions: ConditionSet,
    /// `nodeName`
    #[prost(string, optional, tag = "6")]
    pub node_name: Option<String>,
    /// `hints`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "8")]
    pub hints: EndpointHints,
}

/// `conditions` of an endpoint; each may be absent.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct ConditionSet {
    /// `ready`; absent means true.
    #[prost(bool, optional, tag = "1")]
    pub ready: Option<bool>,
    /// `serving`; absent means true.
    #[prost(bool, optional, tag = "2")]
    pub serving: Option<bool>,
    /// `terminating`; absent means false.
    #[prost(bool, optional, tag = "3")]
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint (KEP-2433, KEP-3015).
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// `forZones`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "1")]
    pub for_zones: Vec<NamedHint>,
    /// `forNodes`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "2")]
    pub for_nodes: Vec<NamedHint>,
}

/// A zone or node that should use the endpoint.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct NamedHint {
    /// `name` of the zone or the node.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub name: String,
}

/// One of `ports`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct EndpointPort {
    /// `name`; absent means that the port is ignored, the empty string is a name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// `protocol`; empty means `TCP`.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "2")]
    pub protocol: String,
    /// `port`; absent or 0 means that the port is ignored.
    #[prost(int64, optional, tag = "3")]
    pub port: Option<i64>,
}
