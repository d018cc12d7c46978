//! `v1` Node.

use prost::Message;
use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// A Node, as far as a proxy reads it. Only the node that the proxy runs on concerns it.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// `metadata`; the label `topology.kubernetes.io/zone` names the zone.
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "2")]
    pub spec: NodeSpec,
    /// `status`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "3")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// `podCIDRs`
    #[serde(rename = "podCIDRs", deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "7")]
    pub pod_cidrs: Vec<String>,
    /// `taints`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "5")]
    pub taints: Vec<Taint>,
}

/// One of `spec.taints`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct Taint {
    /// `key`
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub key: String,
}

/// `status` of a Node.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct NodeStatus {
    /// `addresses`
    #[serde(deserialize_with = "null_list")]
    #[prost(message, repeated, tag = "5")]
    pub addresses: Vec<NodeAddress>,
}

/// One of `status.addresses`.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct NodeAddress {
    /// `type`: `InternalIP`, `ExternalIP`, `Hostname`, ...
    #[serde(rename = "type", deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub kind: String,
    /// `address`
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "2")]
    pub address: String,
}
