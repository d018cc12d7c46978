//! Many requests at once, of which each stands alone.

use crate::netlink::{Error, KernelError, Socket, Writer, flags};

/// Where `struct nlmsghdr` has the type and the sequence number.
const KIND: usize = 4;
const SEQUENCE: usize = 8;

/// The number of requests that are sent at once. Any number from 16 on is as fast as any other, and
/// the errors of so many fit even into the usual receive buffer; those of tens of thousands fit
/// into none.
const CHUNK: usize = 256;

/// Requests without answers, of a protocol without transactions. They are sent many at a time, by
/// [`Socket::pipeline`].
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// The messages, without sequence numbers, which only a socket has.
    messages: Writer,
    /// Where each message starts.
    starts: Vec<usize>,
}

impl Pipeline {
    /// Appends a request, which `fill` fills.
    pub fn request(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Writer)) {
        self.starts.push(self.messages.len());
        self.messages.message(kind, flags, 0, fill);
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// The length of all requests, in bytes.
    pub fn bytes(&self) -> usize {
        self.messages.len()
    }

    /// Writes `count` requests from number `start` on into `chunk`, in place of what `chunk` has,
    /// with sequence numbers from `sequence` on. The last one is to be acknowledged. Returns the
    /// sequence number of the last one.
    fn write(
        &self,
        start: usize,
        count: usize,
        kind: Option<u16>,
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
            if let Some(kind) = kind {
                chunk.overwrite(start - origin + KIND, &kind.to_ne_bytes());
            }
            chunk.overwrite(start - origin + SEQUENCE, &last.to_ne_bytes());
        }
        if let Some(start) = starts.last() {
            chunk.add_flags(start - origin, flags::ACK);
        }
        last
    }
}

impl Socket {
    /// Sends requests, and returns the errors of those that the kernel refused, with their numbers,
    /// from 0 on and in order. The kernel goes on after a refused one. `kind` replaces the type of
    /// each message, if it is not known when the requests are written, as in generic netlink.
    ///
    /// # Errors
    /// If the kernel cannot be reached or does not answer. It may have carried out any part of the
    /// requests then.
    pub fn pipeline(
        &mut self,
        requests: &Pipeline,
        kind: Option<u16>,
    ) -> Result<Vec<(usize, KernelError)>, Error> {
        if requests.messages.overflowed() {
            return Err(Error::TooLong);
        }
        let mut refused = Vec::new();
        let mut chunk = Writer::new();
        for start in (0..requests.len()).step_by(CHUNK) {
            let count = CHUNK.min(requests.len() - start);
            let first = self.sequences(count as u32);
            let last = requests.write(start, count, kind, first, &mut chunk);
            for error in self.batch(chunk.as_slice(), last)? {
                refused.push((start + error.sequence.wrapping_sub(first) as usize, error));
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod kernel_tests {
    use super::*;
    use crate::{
        netlink::{
            Messages,
            nfnetlink::{self, subsystem::NFTABLES},
        },
        nftables::abi::message::GET_GENERATION,
    };

    /// Each request of a part has its number, and only the last one is acknowledged.
    #[test]
    fn parts_are_written() {
        let mut requests = Pipeline::default();
        for i in 0..5 {
            requests.request(7, 0, |w| w.ne32(1, i));
        }
        assert_eq!((requests.len(), requests.bytes()), (5, 5 * 24));
        let (plain, acked) = (flags::REQUEST, flags::REQUEST | flags::ACK);
        let mut chunk = Writer::new();
        for (kind, expected_kind) in [(None, 7), (Some(0x1234), 0x1234)] {
            assert_eq!(requests.write(2, 3, kind, u32::MAX, &mut chunk), 1);
            let written: Vec<_> = Messages::new(chunk.as_slice())
                .map(|message| {
                    let number = message.attributes(0).ne32(1);
                    (message.kind, message.flags, message.sequence, number.unwrap())
                })
                .collect();
            let expected = [(plain, u32::MAX, 2), (plain, 0, 3), (acked, 1, 4)]
                .map(|(flags, sequence, i)| (expected_kind, flags, sequence, i));
            assert_eq!(written, expected);
        }
    }

    /// More requests than are sent at once; errors on both sides of the borders, and of the last
    /// one.
    #[test]
    fn refused_requests_are_known_by_their_numbers() {
        test_netns::in_namespace(|| {
            let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
            let bad = [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 9];
            let mut requests = Pipeline::default();
            for i in 0..3 * CHUNK + 10 {
                // There is no message 99.
                let message = if bad.contains(&i) { 99 } else { GET_GENERATION };
                let kind = nfnetlink::kind(NFTABLES, message);
                requests.request(kind, 0, |w| nfnetlink::header(w, 0, 0));
            }
            let refused = socket.pipeline(&requests, None).unwrap();
            let numbers: Vec<_> = refused.iter().map(|(number, _)| *number).collect();
            assert_eq!(numbers, bad);
            assert!(refused.iter().all(|(_, error)| error.errno == libc::EINVAL), "{refused:?}");
            assert_eq!(socket.pipeline(&Pipeline::default(), None).unwrap(), []);
        });
    }

    #[test]
    fn what_is_too_long_is_not_sent() {
        let mut requests = Pipeline::default();
        requests.request(1, 0, |w| w.string(1, &"a".repeat(70_000)));
        let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
        let error = socket.pipeline(&requests, None).unwrap_err();
        assert!(matches!(error, Error::TooLong), "{error}");
    }
}
