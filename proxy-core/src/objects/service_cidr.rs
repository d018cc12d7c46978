//! `networking.k8s.io/v1` ServiceCIDR.

use serde::Deserialize;

use super::{Metadata, null_default, null_list};

/// A range that cluster IPs are allocated from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// `metadata`
    #[serde(deserialize_with = "null_default")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_default")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// `cidrs`
    #[serde(deserialize_with = "null_list")]
    pub cidrs: Vec<String>,
}
