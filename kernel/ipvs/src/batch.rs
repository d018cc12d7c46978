//! Many commands at once.

use std::{fmt, net::SocketAddr};

use switchyard_netlink::{KernelError, Writer, flags, generic};

use crate::{
    RealServer, Selector, VirtualServer,
    abi::{VERSION, attribute, command},
    real_server,
};

/// Where `struct nlmsghdr` has the type and the sequence number.
const KIND: usize = 4;
const SEQUENCE: usize = 8;

/// Commands, in the order in which the kernel carries them out.
///
/// IPVS has no transactions: the kernel carries out each command on its own, and goes on after one
/// that it refuses.
#[derive(Clone, Default)]
pub struct Batch {
    /// The messages, without types and sequence numbers, which only a connection has.
    messages: Writer,
    /// Where each message starts.
    starts: Vec<usize>,
}

/// A command of a [`Batch`] that the kernel refused. The kernel's numbers:
///
/// | `errno` | Means |
/// |---|---|
/// | `EEXIST` | The virtual server or the real server to be added exists |
/// | `ESRCH` | The virtual server to be changed or deleted does not exist, or that of a real server |
/// | `ENOENT` | The real server to be changed or deleted does not exist; or the kernel does not have the scheduler, of which it has tried to load the module |
/// | `EINVAL` | Among others, a prefix of IPv6 that is not from 1 to 128 bits long; a real server whose address is of another family than the virtual server's, or no unicast address, which all of IPv4 is for the kernel in a network namespace that never had an address; the name of a scheduler of more than 15 bytes |
/// | `ERANGE` | A weight of more than 2,147,483,647 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Refusal {
    /// Which command: the first that was added to the batch has 0.
    pub index: usize,
    /// The error number, positive.
    pub errno: i32,
}

impl Batch {
    /// Adds a virtual server, which has no real servers then.
    pub fn add_server(&mut self, server: &VirtualServer) {
        self.server(command::NEW_SERVICE, |w| server.write(w));
    }

    /// Changes everything but the selector of a virtual server. Its real servers and its connections
    /// stay.
    pub fn edit_server(&mut self, server: &VirtualServer) {
        self.server(command::SET_SERVICE, |w| server.write(w));
    }

    /// Deletes a virtual server with its real servers.
    pub fn delete_server(&mut self, selector: &Selector) {
        self.server(command::DELETE_SERVICE, |w| selector.write(w));
    }

    /// Adds a real server to a virtual server.
    pub fn add_real(&mut self, of: &Selector, real: &RealServer) {
        self.real(command::NEW_DESTINATION, of, |w| real.write(w));
    }

    /// Changes the weight of a real server, and has it masquerade.
    pub fn edit_real(&mut self, of: &Selector, real: &RealServer) {
        self.real(command::SET_DESTINATION, of, |w| real.write(w));
    }

    /// Deletes a real server of a virtual server. The kernel drops the packets of connections that
    /// the real server still has, unless the sysctl `net.ipv4.vs.expire_nodest_conn` has it end them.
    pub fn delete_real(&mut self, of: &Selector, address: SocketAddr) {
        self.real(command::DELETE_DESTINATION, of, |w| real_server::write_address(address, w));
    }

    /// The number of commands.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The length of what is sent to the kernel, in bytes.
    pub fn bytes(&self) -> usize {
        self.messages.len()
    }

    /// Whether some attribute was too long, so that the batch is not what was meant.
    pub(crate) fn overflowed(&self) -> bool {
        self.messages.overflowed()
    }

    /// Writes `count` messages from number `start` on into `chunk`, in place of what `chunk` has,
    /// with the type `kind` and sequence numbers from `sequence` on. The last one is to be
    /// acknowledged. Returns the sequence number of the last one.
    pub(crate) fn write(
        &self,
        start: usize,
        count: usize,
        kind: u16,
        sequence: u32,
        chunk: &mut Writer,
    ) -> u32 {
        let starts = &self.starts[start..start + count];
        let origin = starts.first().copied().unwrap_or_default();
        let end = self.starts.get(start + count).copied().unwrap_or(self.messages.len());
        chunk.clear();
        chunk.raw(&self.messages.as_slice()[origin..end]);
        let mut last = sequence;
        for (i, start) in starts.iter().enumerate() {
            last = sequence.wrapping_add(i as u32);
            chunk.overwrite(start - origin + KIND, &kind.to_ne_bytes());
            chunk.overwrite(start - origin + SEQUENCE, &last.to_ne_bytes());
        }
        if let Some(start) = starts.last() {
            chunk.add_flags(start - origin, flags::ACK);
        }
        last
    }

    fn server(&mut self, command: u8, fill: impl FnOnce(&mut Writer)) {
        self.message(command, |w| w.nest(attribute::SERVICE, fill));
    }

    fn real(&mut self, command: u8, of: &Selector, fill: impl FnOnce(&mut Writer)) {
        self.message(command, |w| {
            w.nest(attribute::SERVICE, |w| of.write(w));
            w.nest(attribute::DESTINATION, fill);
        });
    }

    fn message(&mut self, command: u8, fill: impl FnOnce(&mut Writer)) {
        self.starts.push(self.messages.len());
        self.messages.message(0, 0, 0, |w| {
            generic::header(w, command, VERSION);
            fill(w);
        });
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KernelError { errno: self.errno, sequence: 0, message: None, offset: None }.fmt(f)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use switchyard_netlink::Messages;

    use super::*;

    const SERVER: Selector = Selector::Mark { family: libc::AF_INET as u16, mark: 7 };

    #[test]
    fn commands_are_those_of_the_kernels_header() {
        if cfg!(target_endian = "big") {
            return;
        }
        let mut batch = Batch::default();
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));
        batch.add_real(&SERVER, &RealServer::new((ip, 80).into(), 3));
        #[rustfmt::skip]
        let expected = [
            112, 0, 0, 0, 0x21, 0, 5, 0, 9, 0, 0, 0, 0, 0, 0, 0,
            5, 1, 0, 0,
            20, 0, 1, 0x80,
            6, 0, 1, 0, 2, 0, 0, 0,
            8, 0, 5, 0, 7, 0, 0, 0,
            72, 0, 2, 0x80,
            20, 0, 1, 0, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            6, 0, 2, 0, 0, 80, 0, 0,
            6, 0, 11, 0, 2, 0, 0, 0,
            8, 0, 3, 0, 0, 0, 0, 0,
            8, 0, 4, 0, 3, 0, 0, 0,
            8, 0, 5, 0, 0, 0, 0, 0,
            8, 0, 6, 0, 0, 0, 0, 0,
        ];
        let mut chunk = Writer::new();
        assert_eq!(batch.write(0, 1, 0x21, 9, &mut chunk), 9);
        assert_eq!(chunk.as_slice(), expected);
    }

    /// Each message of a part has its type and its number, and only the last one is acknowledged.
    #[test]
    fn parts_of_a_batch_are_written() {
        let mut batch = Batch::default();
        for mark in 1..=5 {
            batch.delete_server(&Selector::Mark { family: libc::AF_INET6 as u16, mark });
        }
        assert_eq!((batch.len(), batch.is_empty(), batch.bytes()), (5, false, 5 * 40));
        let mut chunk = Writer::new();
        assert_eq!(batch.write(2, 3, 0x1234, u32::MAX, &mut chunk), 1);
        let written: Vec<_> = Messages::new(chunk.as_slice())
            .map(|message| {
                let server = message.attributes(generic::HEADER).find_kind(1).unwrap();
                let mark = server.nested().find_kind(5).unwrap().ne32().unwrap();
                (message.kind, message.flags, message.sequence, mark)
            })
            .collect();
        let (plain, acked) = (flags::REQUEST, flags::REQUEST | flags::ACK);
        let expected = [(0x1234, plain, u32::MAX, 3), (0x1234, plain, 0, 4), (0x1234, acked, 1, 5)];
        assert_eq!(written, expected);
    }
}
