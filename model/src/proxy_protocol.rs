//! Versions of the PROXY protocol.

use crate::words;

/// A version of the PROXY protocol, by which a proxy that ends connections sends the client's
/// address to the endpoint ahead of the client's bytes (HAProxy's `proxy-protocol.txt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum ProxyProtocol {
    /// `v1`: a line of text.
    V1,
    /// `v2`: a binary header.
    V2,
}

words! { ProxyProtocol: FromStr { V1 = "v1", V2 = "v2" } }
