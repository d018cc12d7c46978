//! Elements of sets and maps, as the kernel sees them: plain bytes.

use std::net::IpAddr;

use proxy_core::model::Protocol;

use super::Verdict;

/// A concatenation of fields, each padded with zeros to a multiple of four bytes at its end: at
/// most `N` bytes, inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

/// The key of an element. The longest is two IPv6 addresses, a protocol and a port.
pub type Key = Bytes<40>;

/// The value of an element of a map. The longest is an IPv6 address and a port.
pub type Value = Bytes<20>;

impl<const N: usize> Bytes<N> {
    /// No field yet.
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// What was read from the kernel; `None` if it is longer than any of ours. The padding that a
    /// single field does not have there is added.
    pub fn from_bytes(read: &[u8]) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..read.len())?.copy_from_slice(read);
        Some(Self { bytes, len: u8::try_from(read.len().next_multiple_of(4)).ok()? })
    }

    /// With an address appended.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.field(address.octets()),
            IpAddr::V6(address) => self.field(address.octets()),
        }
    }

    /// With a protocol appended.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.field([protocol.number(), 0, 0, 0])
    }

    /// With a port appended.
    pub fn port(self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.field([high, low, 0, 0])
    }

    /// With a slot number appended, in host byte order as `numgen` writes it.
    pub fn slot(self, slot: u32) -> Self {
        self.field(slot.to_ne_bytes())
    }

    /// The bytes of the whole concatenation.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn field<const L: usize>(mut self, field: [u8; L]) -> Self {
        let start = usize::from(self.len);
        self.bytes[start..start + L].copy_from_slice(&field);
        self.len += L as u8;
        self
    }
}

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> std::fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What an element carries beside its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ElementData {
    /// Nothing: an element of a set.
    None,
    /// The verdict of an element of a verdict map.
    Verdict(Verdict),
    /// The value of an element of another map.
    Value(Value),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The key.
    pub key: Key,
    /// What the key leads to.
    pub data: ElementData,
    /// A comment for people, cut to 128 bytes when written. Elements with only another comment
    /// are the same to the kernel.
    pub comment: Option<Box<str>>,
}

impl Element {
    /// An element of a set.
    pub fn new(key: Key) -> Self {
        Self { key, data: ElementData::None, comment: None }
    }

    /// An element of a verdict map.
    pub fn verdict(key: Key, verdict: Verdict) -> Self {
        Self { key, data: ElementData::Verdict(verdict), comment: None }
    }

    /// An element of another map.
    pub fn value(key: Key, value: Value) -> Self {
        Self { key, data: ElementData::Value(value), comment: None }
    }

    /// The same with a comment.
    pub fn with_comment(self, comment: impl Into<Box<str>>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_padded_at_their_end() {
        let key = Key::new().address([10, 0, 0, 1].into()).protocol(Protocol::Tcp).port(8080);
        assert_eq!(key.as_slice(), [10, 0, 0, 1, 6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(Key::from_bytes(key.as_slice()), Some(key));
        assert_eq!(Value::from_bytes(&[0; 21]), None);
    }

    #[test]
    fn elements_are_compact() {
        assert!(size_of::<Element>() <= 96, "{}", size_of::<Element>());
    }
}
