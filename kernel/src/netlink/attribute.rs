//! Reading attributes.

/// The flags in an attribute's type: the payload is nested, its numbers are big endian.
const TYPE_MASK: u16 = 0x3fff;

/// An attribute that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its type, without flags.
    pub kind: u16,
    /// Its payload, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The payload as one byte.
    pub fn u8(&self) -> Option<u8> {
        match self.payload {
            [value] => Some(*value),
            _ => None,
        }
    }

    /// The payload as 16 bits, most significant byte first.
    pub fn be16(&self) -> Option<u16> {
        self.payload.try_into().ok().map(u16::from_be_bytes)
    }

    /// The payload as 32 bits, most significant byte first.
    pub fn be32(&self) -> Option<u32> {
        self.payload.try_into().ok().map(u32::from_be_bytes)
    }

    /// The payload as 64 bits, most significant byte first.
    pub fn be64(&self) -> Option<u64> {
        self.payload.try_into().ok().map(u64::from_be_bytes)
    }

    /// The payload as 16 bits in the machine's byte order.
    pub fn ne16(&self) -> Option<u16> {
        self.payload.try_into().ok().map(u16::from_ne_bytes)
    }

    /// The payload as 32 bits in the machine's byte order.
    pub fn ne32(&self) -> Option<u32> {
        self.payload.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Returns the payload as text up to the first NUL, if that is UTF-8.
    pub fn str(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }

    /// Returns the nested attributes.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }
}

/// An iterator over attributes, which ends early at an attribute whose length cannot be right.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    bytes: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The first attribute of type `kind`.
    pub fn find_kind(mut self, kind: u16) -> Option<Attribute<'a>> {
        self.find(|attribute| attribute.kind == kind)
    }

    /// The payload of the first attribute of type `kind` as text, like [`Attribute::str`].
    pub fn text(self, kind: u16) -> Option<&'a str> {
        self.find_kind(kind)?.str()
    }

    /// The payload of the first attribute of type `kind` as 32 bits, like [`Attribute::be32`].
    pub fn be32(self, kind: u16) -> Option<u32> {
        self.find_kind(kind)?.be32()
    }

    /// The payload of the first attribute of type `kind` as 32 bits, like [`Attribute::ne32`].
    pub fn ne32(self, kind: u16) -> Option<u32> {
        self.find_kind(kind)?.ne32()
    }

    /// The payload of the first attribute of type `kind` as 64 bits, like [`Attribute::be64`].
    pub fn be64(self, kind: u16) -> Option<u64> {
        self.find_kind(kind)?.be64()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let [l0, l1, k0, k1, ..] = *self.bytes else { return None };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let payload = self.bytes.get(4..length)?;
        self.bytes = self.bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind: u16::from_ne_bytes([k0, k1]) & TYPE_MASK, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_lengths_end_the_iteration() {
        for bytes in [&[3, 0, 1, 0][..], &[9, 0, 1, 0, 1, 2, 3, 4], &[0, 0, 0, 0], &[4, 0, 1]] {
            let mut attributes = Attributes::new(bytes);
            assert_eq!(attributes.next(), None, "{bytes:?}");
        }
        // The padding of the last one may be missing.
        let mut attributes = Attributes::new(&[5, 0, 1, 0, 9]);
        assert_eq!(attributes.next().unwrap().payload, [9]);
        assert_eq!(attributes.next(), None);
    }
}
