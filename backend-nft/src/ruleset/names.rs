//! Names of tables, chains and sets.

use std::{fmt, sync::Arc};

use proxy_core::model::IpFamily;

use super::Field;

/// The name of the tables, shared with the genuine kube-proxy so that either can take over.
pub const TABLE: &str = "kube-proxy";

/// The comment of the tables, the same as the genuine kube-proxy's.
pub const TABLE_COMMENT: &str = "rules for kube-proxy";

/// An nftables family; each has one table of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `ip`
    Ip,
    /// `ip6`
    Ip6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::Ip, Self::Ip6];

    /// The word in nft's syntax, for tables and for header fields alike.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }

    /// The type of an address of this family in a set's key or data.
    pub fn address_field(self) -> Field {
        match self {
            Self::Ip => Field::Ipv4Addr,
            Self::Ip6 => Field::Ipv6Addr,
        }
    }
}

impl From<IpFamily> for Family {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Ip,
            IpFamily::V6 => Self::Ip6,
        }
    }
}

impl From<Family> for IpFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::Ip => Self::V4,
            Family::Ip6 => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Cheap to clone. It must be an nft identifier (letters, digits and `/\_.-`, a letter or
        /// `_` first) of at most 255 bytes: callers make names from such parts only.
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name `name`.
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                Self(name.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The name of a chain.
    ChainName
}

name! {
    /// The name of a set or map.
    SetName
}
