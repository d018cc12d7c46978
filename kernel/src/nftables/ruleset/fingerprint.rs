//! Fingerprints of rules, by which a rule that is read back is recognised without decoding it.

use std::fmt::{self, Write};

use super::{Family, Rule};

/// The version of the encoding. It is raised when the encoding of a statement changes while its
/// text stays the same, so that rules of an older version count as different.
const ENCODING_VERSION: u8 = 1;

impl Rule {
    /// Returns a hash of everything in the rule, which is the same in every process and on every
    /// machine. It is written beside the rule, and read back as [`super::RuleDump::fingerprint`].
    pub fn fingerprint(&self, family: Family) -> u64 {
        let mut hash = Fnv::new();
        hash.byte(ENCODING_VERSION);
        // Writing into the hash does not fail.
        let _ = write!(hash, "{}", self.display(family));
        hash.0
    }
}

/// FNV-1a with 64 bits: no key, no dependence on the machine.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn byte(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.byte(byte));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use switchyard_model::Protocol;

    use super::*;
    use crate::nftables::{Selector, SlotChoice, Statement, Verdict};

    #[test]
    fn the_hash_is_fnv_1a() {
        let mut hash = Fnv::new();
        hash.write_str("foobar").unwrap();
        assert_eq!(hash.0, 0x8594_4171_f739_67e8);
    }

    #[test]
    fn every_difference_counts() {
        let rule = Rule::new([Statement::CtStateNew, Statement::Verdict(Verdict::Drop)]);
        let same = rule.clone().fingerprint(Family::Ip);
        assert_eq!(rule.fingerprint(Family::Ip), same);
        let other = Rule::new([Statement::CtStateNew, Statement::Verdict(Verdict::Return)]);
        assert_ne!(other.fingerprint(Family::Ip), same);
        assert_ne!(rule.with_comment("why").fingerprint(Family::Ip), same);
    }

    #[test]
    fn a_random_slot_has_the_fingerprint_that_it_always_had() {
        let fingerprint = |family, key: &[Selector]| {
            Rule::new([Statement::DnatSlot {
                protocol: Protocol::Tcp,
                key: key.to_vec(),
                choice: SlotChoice::Random,
                slots: 5,
                map: "tcp-endpoints".into(),
            }])
            .fingerprint(family)
        };
        let by_address = [Selector::DestinationAddress, Selector::DestinationPort];
        // Rules in the kernels of running nodes have it: another one replaces them all.
        assert_eq!(fingerprint(Family::Ip, &by_address), 0x4e42_41c0_48a7_cf27);
        assert_eq!(fingerprint(Family::Ip6, &by_address[1..]), 0x596e_8815_1cea_42f7);
    }
}
