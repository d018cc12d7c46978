//! `v1` Node.

use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// A Node, as far as a proxy reads it. Only the node that the proxy runs on concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// `metadata`; the label `topology.kubernetes.io/zone` names the zone.
    #[serde(deserialize_with = "null_default")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_default")]
    pub spec: NodeSpec,
    /// `status`
    #[serde(deserialize_with = "null_default")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// `podCIDRs`
    #[serde(rename = "podCIDRs", deserialize_with = "null_list")]
    pub pod_cidrs: Vec<String>,
    /// `taints`
    #[serde(deserialize_with = "null_list")]
    pub taints: Vec<Taint>,
}

/// One of `spec.taints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// `key`
    #[serde(deserialize_with = "null_default")]
    pub key: String,
}

/// `status` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// `addresses`
    #[serde(deserialize_with = "null_list")]
    pub addresses: Vec<NodeAddress>,
}

/// One of `status.addresses`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `type`: `InternalIP`, `ExternalIP`, `Hostname`, ...
    #[serde(rename = "type", deserialize_with = "null_default")]
    pub kind: String,
    /// `address`
    #[serde(deserialize_with = "null_default")]
    pub address: String,
}
