//! Values in registers: loaded from the packet, masked and compared.

use crate::nftables::{abi::expression as e, ruleset::Family};

use super::{
    Domain, PacketField,
    decode::Compare,
    domain::low_bits,
    walk::{Evaluation, Stop, Walk, Word},
};

impl<'p> Evaluation<'p> {
    /// The field that a part of a header belongs to, and the offset in the field.
    pub(super) fn payload(
        &self,
        base: u32,
        offset: u32,
        length: u32,
    ) -> Result<(PacketField, u32), Stop> {
        use PacketField::{Destination, DestinationPort, Protocol, Source, SourcePort};
        let fields = match (base, self.program.family) {
            (e::BASE_NETWORK, Family::Ip) => {
                [(Protocol, 9, 1), (Source, 12, 4), (Destination, 16, 4)]
            }
            (e::BASE_NETWORK, Family::Ip6) => {
                [(Protocol, 6, 1), (Source, 8, 16), (Destination, 24, 16)]
            }
            _ => [(Protocol, u32::MAX, 0), (SourcePort, 0, 2), (DestinationPort, 2, 2)],
        };
        let is_known = matches!(base, e::BASE_NETWORK | e::BASE_TRANSPORT);
        fields
            .into_iter()
            .find(|(_, start, all)| {
                is_known
                    && length > 0
                    && *start <= offset
                    && offset.saturating_add(length) <= start.saturating_add(*all)
            })
            .map(|(field, start, _)| (field, offset - start))
            .ok_or_else(|| Stop::Unknown(format!("payload {base} {offset} {length}")))
    }

    /// Loads bytes of a field as the packet has it now.
    pub(super) fn load(
        &self,
        walk: &mut Walk<'p>,
        field: PacketField,
        offset: u32,
        length: usize,
        to: usize,
    ) -> Result<(), Stop> {
        let whole = field.length(self.program.family);
        let translated = match (field, walk.to) {
            (PacketField::Destination, Some((ip, _))) => Some(ip),
            (PacketField::DestinationPort, Some((_, Some(port)))) => Some(port.into()),
            _ => None,
        };
        let start = offset as usize;
        if let Some(value) = translated {
            let bytes = value.to_be_bytes();
            return walk.write(to, &bytes[16 - whole + start..][..length]);
        }
        let shift = 8 * (whole - start - length) as u32;
        let mask = low_bits(8 * length as u32) << shift;
        walk.put(to, Word::Field { field, mask, shift, length }, length)
    }

    /// Loads a field as the sender has written it.
    pub(super) fn load_original(
        &self,
        walk: &mut Walk<'p>,
        field: PacketField,
        length: usize,
        to: usize,
    ) -> Result<(), Stop> {
        let mask = low_bits(8 * length as u32);
        walk.put(to, Word::Field { field, mask, shift: 0, length }, length)
    }

    pub(super) fn mask(
        &self,
        walk: &mut Walk<'p>,
        from: usize,
        to: usize,
        by: &[u8],
        xor: &[u8],
    ) -> Result<(), Stop> {
        match walk.words[from] {
            Word::Field { field, mask, shift, length }
                if by.len() == length && xor.iter().all(|b| *b == 0) =>
            {
                let mask = mask & (big_endian(by) << shift);
                walk.put(to, Word::Field { field, mask, shift, length }, length)
            }
            Word::Status if *by == e::CT_STATUS_DNAT.to_ne_bytes() => {
                let bits = if walk.to.is_some() { e::CT_STATUS_DNAT } else { 0 };
                let bytes: Vec<u8> =
                    bits.to_ne_bytes().iter().zip(xor).map(|(a, b)| a ^ b).collect();
                walk.write(to, &bytes)
            }
            _ => {
                let value = walk.read(from, by.len())?;
                let masked =
                    value.iter().zip(by).zip(xor).map(|((value, by), xor)| value & by ^ xor);
                let masked: Vec<u8> = masked.collect();
                walk.write(to, &masked)
            }
        }
    }

    pub(super) fn compare(
        &self,
        walk: &Walk<'p>,
        from: usize,
        how: Compare,
        with: &[u8],
    ) -> Result<bool, Stop> {
        match walk.words[from] {
            Word::Field { field, mask, shift, length } => {
                let Some(less) = length.checked_sub(with.len()).filter(|less| *less < length)
                else {
                    return Err(Stop::Unknown("a comparison".to_owned()));
                };
                let shift = shift + 8 * less as u32;
                let mask = mask >> shift << shift;
                let value = big_endian(with) << shift;
                let width = low_bits(8 * field.length(self.program.family) as u32);
                if let Some(known) = self.packets.get(field).single() {
                    return Ok(holds(how, &(known & mask), &value));
                }
                let low = width & !mask;
                if low & low.wrapping_add(1) != 0 {
                    return Err(Stop::Unknown("a comparison of some bits".to_owned()));
                }
                let is_possible = value & low == 0;
                let last = if is_possible { value.checked_sub(1) } else { Some(value | low) };
                let below = last.map(|last| (0, last));
                let domain = match how {
                    Compare::Equal | Compare::NotEqual => {
                        Domain::new(is_possible.then_some((value, value | low)))
                    }
                    Compare::Less | Compare::GreaterOrEqual => Domain::new(below),
                    Compare::LessOrEqual | Compare::Greater => Domain::new([(0, value | low)]),
                };
                let is_negated =
                    matches!(how, Compare::NotEqual | Compare::GreaterOrEqual | Compare::Greater);
                Ok(self.is_in(field, &domain)? != is_negated)
            }
            Word::Type(field) if *with == e::ADDRTYPE_LOCAL.to_ne_bytes() => match how {
                Compare::Equal => self.is_in(field, self.local),
                Compare::NotEqual => Ok(!self.is_in(field, self.local)?),
                _ => Err(Stop::Unknown("a comparison of types".to_owned())),
            },
            _ => Ok(holds(how, &*walk.read(from, with.len())?, with)),
        }
    }
}

impl Walk<'_> {
    pub(super) fn put(&mut self, to: usize, word: Word, length: usize) -> Result<(), Stop> {
        let words = length.div_ceil(4).max(1);
        // A field that begins before, and loses a part.
        let earlier = self.words.get_mut(..to).unwrap_or_default().iter_mut().enumerate();
        let begun = earlier.rev().find(|(_, word)| !matches!(word, Word::Continued));
        if let Some((start, word)) = begun
            && matches!(word, Word::Field { length, .. } if start + length.div_ceil(4) > to)
        {
            *word = Word::Unset;
        }
        let Some(written) = self.words.get_mut(to..to + words) else {
            return Err(Stop::Unknown("a register".to_owned()));
        };
        written.fill(Word::Continued);
        written[0] = word;
        Ok(())
    }

    pub(super) fn write(&mut self, to: usize, bytes: &[u8]) -> Result<(), Stop> {
        for (word, bytes) in bytes.chunks(4).enumerate() {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            self.put(to + word, Word::Bytes(padded), 4)?;
        }
        Ok(())
    }

    /// The bytes of a value that is known.
    pub(super) fn read(&self, from: usize, length: usize) -> Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        for word in from..from + length.div_ceil(4) {
            match self.words.get(word) {
                Some(Word::Bytes(known)) => bytes.extend_from_slice(known),
                _ => return Err(Stop::Unknown("a value that depends on the packet".to_owned())),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The fields in these bytes, which must have all of each.
    pub(super) fn fields(
        &self,
        family: Family,
        from: usize,
        length: usize,
    ) -> Result<Vec<PacketField>, Stop> {
        let (mut fields, mut at) = (Vec::new(), 0);
        while at < length {
            match self.words.get(from + at / 4) {
                Some(Word::Field { field, mask, shift: 0, length: loaded })
                    if *loaded == field.length(family)
                        && *mask == low_bits(8 * *loaded as u32)
                        && at + loaded <= length =>
                {
                    fields.push(*field);
                    at += loaded.next_multiple_of(4);
                }
                _ => return Err(Stop::Unknown("what is hashed".to_owned())),
            }
        }
        Ok(fields)
    }
}

fn holds<T: Ord + ?Sized>(how: Compare, value: &T, with: &T) -> bool {
    match how {
        Compare::Equal => value == with,
        Compare::NotEqual => value != with,
        Compare::Less => value < with,
        Compare::LessOrEqual => value <= with,
        Compare::Greater => value > with,
        Compare::GreaterOrEqual => value >= with,
    }
}

pub(super) fn big_endian(bytes: &[u8]) -> u128 {
    bytes.iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}
