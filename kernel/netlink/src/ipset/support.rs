//! The kernel's support of IP sets.

use crate::{Attributes, Error, flags, nfnetlink};

use crate::ipset::{
    IpSets, SetType,
    abi::{attribute, command, error},
    refusal, request,
};

impl IpSets {
    /// Whether the kernel has IP sets. The kernel may load the module `ip_set` to answer.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer. Without CAP_NET_ADMIN, the
    /// kernel refuses.
    pub fn is_available(&mut self) -> Result<bool, Error> {
        match self.request(command::PROTOCOL, 0, |_| {}) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(error::NO_SUBSYSTEM) => Ok(false),
            Err(error) => Err(refusal::explained(error)),
        }
    }

    /// Whether the kernel has sets of this type as [`IpSets::create`] makes them, with addresses of
    /// IPv6 or of IPv4. The kernel may load the type's [module](SetType::module) to answer.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer.
    pub fn has_type(&mut self, kind: SetType, is_v6: bool) -> Result<bool, Error> {
        let sequence = self.socket.sequences(1);
        let request = request(command::TYPE, flags::ACK, sequence, |w| {
            w.string(attribute::TYPE_NAME, kind.as_str());
            w.u8(attribute::FAMILY, kind.family(is_v6));
        });
        let mut has = None;
        let answer = self.socket.request(request.as_slice(), sequence, |message| {
            has = has_revision(kind, message.attributes(nfnetlink::HEADER));
            Ok(())
        });
        match answer {
            Ok(()) => has.ok_or(Error::Malformed("a type without revisions")),
            Err(error) if matches!(error.errno(), Some(error::NO_TYPE | error::NO_SUBSYSTEM)) => {
                Ok(false)
            }
            Err(error) => Err(refusal::explained(error)),
        }
    }
}

/// Whether the revisions that the kernel has of a type include that of this crate. `None` if the
/// answer lacks them.
fn has_revision(kind: SetType, answer: Attributes<'_>) -> Option<bool> {
    let [least, most] = [attribute::LEAST_REVISION, attribute::REVISION]
        .map(|kind| answer.find_kind(kind).and_then(|revision| revision.u8()));
    Some((least?..=most?).contains(&kind.revision()))
}

#[cfg(test)]
mod tests {
    use crate::Writer;

    use super::*;

    #[test]
    fn older_kernels_lack_revisions() {
        let kind = SetType::HashIpPortNet;
        let has = |least, most| {
            let mut writer = Writer::new();
            writer.u8(attribute::LEAST_REVISION, least);
            writer.u8(attribute::REVISION, most);
            has_revision(kind, Attributes::new(writer.as_slice()))
        };
        let ours = kind.revision();
        assert_eq!([has(0, ours), has(ours, ours), has(0, ours + 3)], [Some(true); 3]);
        assert_eq!([has(0, ours - 1), has(ours + 1, ours + 2)], [Some(false); 2]);
        assert_eq!(has_revision(kind, Attributes::new(&[])), None);
    }
}
