//! Detection of packets from the pods of this node.

use ipnet::IpNet;

/// The way to detect that a packet comes from a pod of this node (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum LocalPods {
    /// The packet's source address is in this network.
    Source(IpNet),
    /// The packet came in through this interface.
    Interface(String),
    /// The packet came in through an interface whose name starts with this prefix.
    InterfacePrefix(String),
}
