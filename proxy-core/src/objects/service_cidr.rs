//! `networking.k8s.io/v1` ServiceCIDR.

use prost::Message;
use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// A range that cluster IPs are allocated from.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct ServiceCidr {
    /// `metadata`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "1")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "2")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// `cidrs`
    #[serde(deserialize_with = "null_list")]
    #[prost(string, repeated, tag = "1")]
    pub cidrs: Vec<String>,
}
