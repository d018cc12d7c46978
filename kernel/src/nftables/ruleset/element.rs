//! Elements of sets and maps, as the bytes that the kernel compares.

use std::net::IpAddr;

use switchyard_model::Protocol;

use super::Verdict;

/// A concatenation of fields, each padded with zeros at its end to a multiple of four bytes. It is
/// stored inline, and at most `N` bytes long.
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
    /// Returns a concatenation without any field.
    pub const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Takes over bytes that were read from the kernel; `None` if they are more than `N`. A single
    /// field has no padding there, which is added.
    pub fn from_bytes(read: &[u8]) -> Option<Self> {
        let mut bytes = [0; N];
        bytes.get_mut(..read.len())?.copy_from_slice(read);
        Some(Self { bytes, len: u8::try_from(read.len().next_multiple_of(4)).ok()? })
    }

    /// Appends an address.
    pub fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.field(address.octets()),
            IpAddr::V6(address) => self.field(address.octets()),
        }
    }

    /// Appends a protocol.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.field([protocol.number(), 0, 0, 0])
    }

    /// Appends a port.
    pub fn port(self, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.field([high, low, 0, 0])
    }

    /// Appends a slot number, in host byte order as `numgen` writes it.
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

/// The data that an element carries beside its key.
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
    /// The data that the key is mapped to.
    pub data: ElementData,
    /// A comment for people, cut to 128 bytes when written. The kernel takes elements that differ
    /// in the comment alone for the same.
    pub comment: Option<Box<str>>,
}

impl Element {
    /// Returns an element of a set.
    pub fn new(key: Key) -> Self {
        Self { key, data: ElementData::None, comment: None }
    }

    /// Returns an element of a verdict map.
    pub fn verdict(key: Key, verdict: Verdict) -> Self {
        Self { key, data: ElementData::Verdict(verdict), comment: None }
    }

    /// Returns an element of a map to values.
    pub fn value(key: Key, value: Value) -> Self {
        Self { key, data: ElementData::Value(value), comment: None }
    }

    /// Adds a comment.
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
