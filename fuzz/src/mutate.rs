//! Random changes of bytes.

/// Numbers at the edges of types, and small ones, as lengths are.
const NUMBERS: [u32; 14] =
    [0, 1, 3, 4, 15, 16, 17, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff];
/// The longest input.
const LONGEST: usize = 64 * 1024;

/// A sequence of numbers that follows from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        self.next().checked_rem(end as u64).unwrap_or_default() as usize
    }

    /// A part of `bytes`, as a rule a short one.
    fn part(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length);
        let most = if self.below(4) == 0 { length } else { 16 };
        start..(start + self.below(most)).min(length)
    }
}

/// Returns one of the inputs after some changes: single bits, numbers, parts that are left out,
/// repeated, moved, or taken from another input.
///
/// # Panics
/// If there is no input.
pub fn mutated(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(7) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => bytes.insert(at, random.next() as u8),
            2 => {
                let mut number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let new = &mut number[..1 << random.below(3)];
                if random.below(2) == 0 {
                    new.reverse();
                }
                // Numbers of netlink are aligned.
                let at = if random.below(2) == 0 { at } else { at & !3 };
                bytes[at..].iter_mut().zip(new).for_each(|(byte, new)| *byte = *new);
            }
            3 => drop(bytes.drain(random.part(bytes.len()))),
            4 => bytes.truncate(at),
            from => {
                let other = &inputs[random.below(inputs.len())];
                let part = match from {
                    5 => other[random.part(other.len())].to_vec(),
                    _ => bytes[random.part(bytes.len())].to_vec(),
                };
                drop(bytes.splice(at..at, part));
            }
        }
    }
    bytes.truncate(LONGEST);
    bytes
}
