//! Protocols, and the names of Services and their ports.

use std::{cmp::Ordering, fmt, str::FromStr, sync::Arc};

use crate::{IpFamily, words};

/// A transport protocol a Service port may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "UPPERCASE"))]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

// The names that the API uses.
words! { Protocol { Tcp = "TCP", Udp = "UDP", Sctp = "SCTP" } }

impl Protocol {
    /// The number in the IP header (IANA protocol numbers).
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The name netfilter's tools use: `tcp`, `udp`, `sctp`.
    pub fn as_lower(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl FromStr for Protocol {
    type Err = ();

    /// Reads the API's name; the empty string is TCP, the API's default.
    fn from_str(text: &str) -> Result<Self, ()> {
        let text = if text.is_empty() { "TCP" } else { text };
        Self::ALL.into_iter().find(|protocol| protocol.as_str() == text).ok_or(())
    }
}

/// Namespace and name of a Service. Cheap to clone. Ordered by the namespace first.
#[derive(Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "Parts", from = "Parts"))]
pub struct ServiceName {
    /// Both, with a slash between them: one text, as a dozen tables have the name of each Service.
    text: Arc<str>,
}

impl ServiceName {
    /// The Service `name` in `namespace`, which has no slash.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { text: [namespace, "/", name].concat().into() }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// The namespace and the name.
    pub fn parts(&self) -> (&str, &str) {
        self.text.split_once('/').unwrap_or(("", &self.text))
    }
}

impl PartialOrd for ServiceName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServiceName {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, another) = (self.text.as_bytes(), other.text.as_bytes());
        let same = one.iter().zip(another).take_while(|(a, b)| a == b).count();
        // The slash ends a namespace, which comes before those that begin with it.
        let rank = |text: &[u8]| text.get(same).map(|byte| (*byte != b'/', *byte));
        rank(one).cmp(&rank(another))
    }
}

/// A [`ServiceName`] as it is serialized.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct Parts {
    namespace: String,
    name: String,
}

#[cfg(feature = "serde")]
impl From<ServiceName> for Parts {
    fn from(service: ServiceName) -> Self {
        let (namespace, name) = service.parts();
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[cfg(feature = "serde")]
impl From<Parts> for ServiceName {
    fn from(Parts { namespace, name }: Parts) -> Self {
        Self::new(&namespace, &name)
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One port of a Service: the name of the port is its `name` in the Service, which endpoints must
/// share; it is empty if the port has none. Shown as kube-proxy does: `namespace/name[:port]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServicePortName {
    /// The Service.
    pub service: ServiceName,
    /// `spec.ports[].name`
    pub port: Arc<str>,
    /// The protocol; ports that differ only in it are different ports.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.service, f)?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

impl fmt::Debug for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} ({})", self.protocol)
    }
}

/// A Service port in one address family: the unit that backends program.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServicePortId {
    /// The Service port.
    pub name: ServicePortName,
    /// The family.
    pub family: IpFamily,
}

impl fmt::Display for ServicePortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.name, self.name.protocol, self.family)
    }
}

impl fmt::Debug for ServicePortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_ordered_by_namespace_first() {
        let names = [("a", "x"), ("a", "x-y"), ("a", "y"), ("a-b", "a"), ("a.b", "a"), ("ab", "a")];
        for (one, another) in names.iter().flat_map(|one| names.map(|another| (*one, another))) {
            let [first, second] = [one, another].map(|(n, name)| ServiceName::new(n, name));
            assert_eq!(first.cmp(&second), one.cmp(&another), "{first} {second}");
        }
    }
}
