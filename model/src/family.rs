//! IPv4 and IPv6.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::words;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IpFamily {
    /// IPv4
    #[cfg_attr(feature = "serde", serde(rename = "IPv4"))]
    V4,
    /// IPv6
    #[cfg_attr(feature = "serde", serde(rename = "IPv6"))]
    V6,
}

// The names that the API and kube-proxy's metrics use.
words! { IpFamily { V4 = "IPv4", V6 = "IPv6" } }

impl IpFamily {
    /// The family of an address.
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a network.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(&net.addr())
    }
}

/// One value for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// Makes both values.
    pub fn from_fn(mut make: impl FnMut(IpFamily) -> T) -> Self {
        Self { v4: make(IpFamily::V4), v6: make(IpFamily::V6) }
    }

    /// The value for `family`.
    pub fn get(&self, family: IpFamily) -> &T {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }

    /// The value for `family`, mutable.
    pub fn get_mut(&mut self, family: IpFamily) -> &mut T {
        match family {
            IpFamily::V4 => &mut self.v4,
            IpFamily::V6 => &mut self.v6,
        }
    }
}

impl<T> PerFamily<Option<T>> {
    /// Applies `change` to the values that are present.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerFamily<Option<U>> {
        PerFamily { v4: self.v4.map(&mut change), v6: self.v6.map(&mut change) }
    }
}
