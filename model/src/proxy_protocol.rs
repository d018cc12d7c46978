//! Versions of the PROXY protocol.

use std::{fmt, str::FromStr};

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

impl ProxyProtocol {
    /// Every version.
    pub const ALL: [Self; 2] = [Self::V1, Self::V2];

    /// The name of the version in annotations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }
}

impl fmt::Display for ProxyProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ProxyProtocol {
    type Err = ();

    /// Reads a name of [`ProxyProtocol::as_str`].
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|version| version.as_str() == text).ok_or(())
    }
}
