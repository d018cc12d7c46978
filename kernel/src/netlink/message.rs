//! Reading messages.

use crate::netlink::{
    Attributes,
    error::{KernelError, errno_of},
};

/// `struct nlmsghdr`: length, type, flags, sequence number, port.
pub(crate) const HEADER: usize = 16;

const NLMSG_NOOP: u16 = 1;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;

/// The kernel left the request out of its error, as `NETLINK_CAP_ACK` asks.
const NLM_F_CAPPED: u16 = 0x100;
/// Attributes that explain follow the error.
const NLM_F_ACK_TLVS: u16 = 0x200;

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

/// A message that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its type.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// The sequence number: that of the request, in an answer.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// The meaning of a message in every protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Nothing.
    Noop,
    /// The request with this sequence number was done.
    Ack(u32),
    /// A request failed.
    Error(KernelError),
    /// The end of a dump, with the error if the dump failed.
    Done(Result<(), KernelError>),
    /// Messages were lost.
    Overrun,
    /// An object; the protocol's own.
    Object(Message<'a>),
}

impl<'a> Message<'a> {
    /// Returns the meaning of the message, or `None` if the message is too short.
    pub fn reply(&self) -> Option<Reply<'a>> {
        Some(match self.kind {
            NLMSG_NOOP => Reply::Noop,
            NLMSG_OVERRUN => Reply::Overrun,
            NLMSG_ERROR => {
                let errno = errno_of(self.payload)?;
                if errno == 0 {
                    Reply::Ack(self.sequence)
                } else {
                    Reply::Error(self.error(errno, self.error_attributes()))
                }
            }
            NLMSG_DONE => match errno_of(self.payload) {
                None | Some(0) => Reply::Done(Ok(())),
                Some(errno) => {
                    let attributes = self.payload.get(4..).unwrap_or_default();
                    Reply::Done(Err(self.error(errno, attributes)))
                }
            },
            _ => Reply::Object(*self),
        })
    }

    /// The attributes after a fixed header of `header` bytes.
    pub fn attributes(&self, header: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(header.next_multiple_of(4)..).unwrap_or_default())
    }

    /// Returns the attributes behind the error number and the quoted request.
    fn error_attributes(&self) -> &'a [u8] {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return &[];
        }
        let quoted =
            match self.payload.get(4..8).map(|length| {
                u32::from_ne_bytes([length[0], length[1], length[2], length[3]]) as usize
            }) {
                _ if self.flags & NLM_F_CAPPED != 0 => HEADER,
                Some(length) => length.max(HEADER).min(self.payload.len()).next_multiple_of(4),
                None => HEADER,
            };
        self.payload.get(4 + quoted..).unwrap_or_default()
    }

    fn error(&self, errno: i32, attributes: &[u8]) -> KernelError {
        let attributes = Attributes::new(attributes);
        KernelError {
            errno,
            sequence: self.sequence,
            message: attributes.text(NLMSGERR_ATTR_MSG).map(str::to_owned),
            offset: attributes.ne32(NLMSGERR_ATTR_OFFS),
        }
    }
}

/// An iterator over the messages of a datagram, which ends early at a message whose length cannot
/// be right.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a> {
    bytes: &'a [u8],
}

impl<'a> Messages<'a> {
    /// The messages in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = self.bytes.split_first_chunk::<HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = self.bytes.get(HEADER..length)?;
        self.bytes = self.bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Writer;

    #[test]
    fn an_error_carries_its_explanation() {
        let mut writer = Writer::new();
        let flags = NLM_F_ACK_TLVS | NLM_F_CAPPED;
        writer.message(NLMSG_ERROR, flags, 5, |w| {
            w.raw(&(-17i32).to_ne_bytes());
            w.raw(&[0; HEADER]);
            w.string(NLMSGERR_ATTR_MSG, "there already");
            w.ne32(NLMSGERR_ATTR_OFFS, 28);
        });
        let reply = Messages::new(writer.as_slice()).next().unwrap().reply();
        let Some(Reply::Error(error)) = reply else { panic!("{reply:?}") };
        assert_eq!((error.errno, error.sequence, error.offset), (17, 5, Some(28)));
        assert_eq!(error.message.as_deref(), Some("there already"));
    }
}
