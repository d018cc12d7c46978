//! Writing messages.

/// `struct nlmsghdr`: length, type, flags, sequence number, port.
const HEADER: usize = 16;

/// The flag of an attribute that contains attributes.
const NESTED: u16 = 0x8000;

/// Flags of messages (`NLM_F_*`).
pub mod flags {
    /// The message is a request; set on all messages to the kernel.
    pub const REQUEST: u16 = 0x1;
    /// Answer with an acknowledgement even if all is well.
    pub const ACK: u16 = 0x4;
    /// The dumped objects changed during the dump, so the dump may be inconsistent.
    pub const DUMP_INTERRUPTED: u16 = 0x10;
    /// Change the object if it exists.
    pub const REPLACE: u16 = 0x100;
    /// Fail if the object exists.
    pub const EXCLUSIVE: u16 = 0x200;
    /// Return all objects, not one.
    pub const DUMP: u16 = 0x300;
    /// Create the object if it does not exist.
    pub const CREATE: u16 = 0x400;
    /// Append the object at the end.
    pub const APPEND: u16 = 0x800;
}

/// A buffer to which messages are appended.
///
/// Messages and nests are closed when the function that fills them returns, so they cannot be left
/// open. A nest that grows beyond the 65,535 bytes which an attribute can be long is noted, and
/// [`Self::overflowed`] says so: such a buffer must not be sent.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
    overflowed: bool,
}

impl Writer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { buffer: Vec::with_capacity(capacity), overflowed: false }
    }

    /// The bytes written.
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Makes room for `additional` bytes.
    pub fn reserve(&mut self, additional: usize) {
        self.buffer.reserve(additional);
    }

    /// Whether some attribute was too long, so that the buffer is not what was meant.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Empties the buffer and keeps its memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.overflowed = false;
    }

    /// Appends a message, which `fill` fills. [`flags::REQUEST`] is always set.
    pub fn message(&mut self, kind: u16, flags: u16, sequence: u32, fill: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&(flags | flags::REQUEST).to_ne_bytes());
        self.buffer.extend_from_slice(&sequence.to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 4]);
        debug_assert_eq!(self.buffer.len() - start, HEADER);
        fill(self);
        match u32::try_from(self.buffer.len() - start) {
            Ok(length) => self.buffer[start..start + 4].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
        self.pad();
    }

    /// Sets flags of the message that starts at `start`.
    pub fn add_flags(&mut self, start: usize, flags: u16) {
        if let Some([low, high]) = self.buffer.get_mut(start + 6..start + 8) {
            let all = u16::from_ne_bytes([*low, *high]) | flags;
            [*low, *high] = all.to_ne_bytes();
        }
    }

    /// Overwrites bytes that were written from `start` on; does nothing if they were not.
    pub fn overwrite(&mut self, start: usize, bytes: &[u8]) {
        if let Some(written) = self.buffer.get_mut(start..start + bytes.len()) {
            written.copy_from_slice(bytes);
        }
    }

    /// Appends plain bytes: the header that a protocol puts before its attributes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    #[inline]
    pub fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.attribute_header(kind, payload.len());
        self.buffer.extend_from_slice(payload);
        self.pad();
    }

    /// Appends an attribute of one byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attribute(kind, &[value]);
    }

    /// Appends an attribute: 16 bits, most significant byte first.
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends an attribute: 32 bits, most significant byte first.
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends an attribute: 64 bits, most significant byte first.
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends an attribute: 16 bits in the machine's byte order.
    pub fn ne16(&mut self, kind: u16, value: u16) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute: 32 bits in the machine's byte order.
    pub fn ne32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends an attribute: text with a NUL at its end.
    pub fn string(&mut self, kind: u16, text: &str) {
        self.attribute_header(kind, text.len() + 1);
        self.buffer.extend_from_slice(text.as_bytes());
        self.buffer.push(0);
        self.pad();
    }

    /// Appends an attribute that contains the attributes which `fill` appends.
    #[inline]
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.attribute_header(kind | NESTED, 0);
        fill(self);
        match u16::try_from(self.buffer.len() - start) {
            Ok(length) => self.buffer[start..start + 2].copy_from_slice(&length.to_ne_bytes()),
            Err(_) => self.overflowed = true,
        }
    }

    #[inline]
    fn attribute_header(&mut self, kind: u16, payload: usize) {
        let length = u16::try_from(4 + payload).unwrap_or_else(|_| {
            self.overflowed = true;
            u16::MAX
        });
        let [l0, l1] = length.to_ne_bytes();
        let [k0, k1] = kind.to_ne_bytes();
        self.buffer.extend_from_slice(&[l0, l1, k0, k1]);
    }

    #[inline]
    fn pad(&mut self) {
        let missing = self.buffer.len().wrapping_neg() % 4;
        self.buffer.extend_from_slice(&[0; 3][..missing]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_noted_and_not_wrapped() {
        let mut writer = Writer::new();
        writer.nest(1, |w| (0..70).for_each(|_| w.attribute(1, &[0; 1000])));
        assert!(writer.overflowed());
        writer.clear();
        assert!(!writer.overflowed());
        writer.attribute(1, &[0; 65_532]);
        assert!(writer.overflowed());
    }
}
