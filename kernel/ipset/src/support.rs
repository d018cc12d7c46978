//! What the kernel has of IP sets.

use switchyard_netlink::{Error, flags, nfnetlink};

use crate::{
    IpSets, SetType,
    abi::{attribute, command, error},
    refusal, request,
};

impl IpSets {
    /// Whether the kernel has IP sets. The kernel may load the module `ip_set` to answer.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer. Without CAP_NET_ADMIN, the kernel
    /// refuses.
    pub fn is_available(&mut self) -> Result<bool, Error> {
        match self.request(command::PROTOCOL, 0, |_| {}) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(error::NO_SUBSYSTEM) => Ok(false),
            Err(error) => Err(refusal::explained(error)),
        }
    }

    /// Whether the kernel has sets of this type as [`IpSets::create`] makes them, with addresses of IPv6
    /// or of IPv4. The kernel may load the type's [module](SetType::module) to answer.
    ///
    /// # Errors
    /// If the kernel refuses for another reason, or does not answer.
    pub fn has_type(&mut self, kind: SetType, is_v6: bool) -> Result<bool, Error> {
        let sequence = self.socket.sequences(1);
        let request = request(command::TYPE, flags::ACK, sequence, |w| {
            w.string(attribute::TYPE_NAME, kind.as_str());
            w.u8(attribute::FAMILY, kind.family(is_v6));
        });
        let mut revisions = None;
        let answer = self.socket.request(request.as_slice(), sequence, |message| {
            let attributes = message.attributes(nfnetlink::HEADER);
            let [least, most] = [attribute::LEAST_REVISION, attribute::REVISION]
                .map(|kind| attributes.find_kind(kind).and_then(|revision| revision.u8()));
            revisions = least.zip(most);
            Ok(())
        });
        match answer {
            Ok(()) => {
                let (least, most) =
                    revisions.ok_or(Error::Malformed("a type without revisions"))?;
                Ok((least..=most).contains(&kind.revision()))
            }
            Err(error) if matches!(error.errno(), Some(error::NO_TYPE | error::NO_SUBSYSTEM)) => {
                Ok(false)
            }
            Err(error) => Err(refusal::explained(error)),
        }
    }
}
