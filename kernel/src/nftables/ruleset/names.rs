//! Families, and names of tables, chains and sets.

use std::{fmt, sync::Arc};

use switchyard_model::{IpFamily, words};

use super::Field;

/// A family of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// `ip`: IPv4.
    Ip,
    /// `ip6`: IPv6.
    Ip6,
}

// The words of nft's syntax, for tables and for header fields.
words! { Family { Ip = "ip", Ip6 = "ip6" } }

impl Family {
    /// The type of this family's addresses, in the key or data of a set.
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

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// A name is cheap to clone. It must be an nft identifier of at most 255 bytes: letters,
        /// digits and `/\_.-`, with a letter or `_` first. This is not checked here: the kernel
        /// takes other names too, but nft cannot load what it then prints.
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
    /// The name of a table.
    TableName
}

name! {
    /// The name of a chain.
    ChainName
}

name! {
    /// The name of a set or map.
    SetName
}

/// A table: the place that an operation changes or a dump shows. Families have their own names,
/// so `ip nat` and `ip6 nat` are two tables.
///
/// A table is cheap to clone, and nothing is cloned per element.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table {
    /// The family.
    pub family: Family,
    /// The name.
    pub name: TableName,
}

impl Table {
    /// The table of this family with this name.
    pub fn new(family: Family, name: impl Into<TableName>) -> Self {
        Self { family, name: name.into() }
    }
}

impl fmt::Display for Table {
    /// Prints family and name as nft's commands take them: `ip kube-proxy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}
