//! For tests: sockets whose answers are bytes of any kind, and a record of the kernel's answers.

use std::cell::{Cell, RefCell};

use crate::netlink::{Error, error::errno_of, message};

/// The place of the sequence number in `struct nlmsghdr`.
const SEQUENCE: usize = 8;
/// The bytes of a datagram from which on another one begins, as in dumps of the kernel.
const DATAGRAM: usize = 32 * 1024;

/// The bytes that the sockets of a thread received or are to receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The answers to all requests, one after the other: the messages of a request up to an error,
    /// an acknowledgement or the end of a dump.
    pub answers: Vec<u8>,
    /// The messages to sockets that joined a group.
    pub notices: Vec<u8>,
}

enum Mode {
    Kernel,
    Recorded(Traffic),
    Replayed(Traffic),
}

thread_local! {
    static MODE: RefCell<Mode> = const { RefCell::new(Mode::Kernel) };
}

/// Returns what the sockets of this thread receive during `work`.
pub fn record(work: impl FnOnce()) -> Traffic {
    match during(Mode::Recorded(Traffic::default()), work) {
        (Mode::Recorded(traffic), ()) => traffic,
        _ => Traffic::default(),
    }
}

/// Answers the requests of this thread's sockets with `traffic` in place of the kernel during
/// `work`. Sequence numbers become those of the requests. Where `traffic` ends, there is no answer.
pub fn replay<T>(traffic: Traffic, work: impl FnOnce() -> T) -> T {
    during(Mode::Replayed(traffic), work).1
}

fn during<T>(mode: Mode, work: impl FnOnce() -> T) -> (Mode, T) {
    MODE.set(mode);
    let result = work();
    (MODE.replace(Mode::Kernel), result)
}

/// Whether sockets receive other bytes than the kernel's.
pub(crate) fn is_replaying() -> bool {
    MODE.with_borrow(|mode| matches!(mode, Mode::Replayed(_)))
}

/// Whether a replay has something for a socket that joined a group.
pub(crate) fn has_notices() -> bool {
    MODE.with_borrow(|mode| match mode {
        Mode::Replayed(traffic) => !traffic.notices.is_empty(),
        _ => false,
    })
}

/// The part of a socket that stands between it and the kernel.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// The sequence numbers of a request that waits for an answer: the first, and how many.
    asked: Option<(u32, u32)>,
    has_joined: Cell<bool>,
}

impl Tap {
    pub(crate) fn join(&self) {
        self.has_joined.set(true);
    }

    /// Takes messages that are sent, if the kernel does not get them.
    pub(crate) fn sent(&mut self, messages: &[u8]) -> bool {
        /// `NLM_F_ACK`, and both flags of a dump.
        const ANSWERED: u16 = 0x304;
        let sequences = |message: message::Message<'_>| (message.sequence, message.flags);
        let mut sent = message::Messages::new(messages).map(sequences);
        if let Some((first, flags)) = sent.next() {
            let (count, all) = sent.fold((1, flags), |(n, all), (_, flags)| (n + 1, all | flags));
            self.asked = (all & ANSWERED != 0).then_some((first, count));
        }
        is_replaying()
    }

    /// Records a datagram of the kernel.
    pub(crate) fn received(&self, datagram: &[u8]) {
        MODE.with_borrow_mut(|mode| {
            if let Mode::Recorded(traffic) = mode {
                let joined = self.has_joined.get();
                let part = if joined { &mut traffic.notices } else { &mut traffic.answers };
                part.extend_from_slice(datagram);
            }
        });
    }

    /// Receives the next datagram in place of the kernel's; `None` if it is the kernel's to answer.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Option<Result<Option<usize>, Error>> {
        MODE.with_borrow_mut(|mode| {
            let Mode::Replayed(traffic) = mode else { return None };
            if self.has_joined.get() {
                let notices = std::mem::take(&mut traffic.notices);
                return Some(Ok(copied(&notices, buffer)));
            }
            let Some((first, count)) = self.asked else { return Some(Ok(None)) };
            if traffic.answers.is_empty() {
                return Some(Err(Error::NoAnswer));
            }
            let (length, is_last) = answer(&mut traffic.answers, first, count);
            if is_last {
                self.asked = None;
            }
            let answer: Vec<u8> = traffic.answers.drain(..length).collect();
            Some(copied(&answer, buffer).ok_or(Error::Overrun).map(Some))
        })
    }
}

/// Finds the next datagram, whose messages get sequence numbers of a request. Returns its length,
/// and whether it ends the answer.
fn answer(bytes: &mut [u8], first: u32, count: u32) -> (usize, bool) {
    let mut at = 0;
    while at < DATAGRAM {
        let Some(message) = message::Messages::new(bytes.get(at..).unwrap_or_default()).next()
        else {
            return (bytes.len(), false);
        };
        let is_error = message.kind == message::NLMSG_ERROR;
        let is_last = is_error || message.kind == message::NLMSG_DONE;
        let which = match is_error && errno_of(message.payload) != Some(0) {
            true => message.sequence % count,
            false => count - 1,
        };
        let next = at + message::HEADER + message.payload.len().next_multiple_of(4);
        let sequence = first.wrapping_add(which).to_ne_bytes();
        bytes[at + SEQUENCE..][..4].copy_from_slice(&sequence);
        if is_last || next >= bytes.len() {
            return (next.min(bytes.len()), is_last);
        }
        at = next;
    }
    (at, false)
}

fn copied(bytes: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let to = buffer.get_mut(..bytes.len()).filter(|to| !to.is_empty())?;
    to.copy_from_slice(bytes);
    Some(bytes.len())
}

#[cfg(test)]
mod kernel_tests {
    use super::*;
    use crate::{
        netlink::{Socket, Writer, flags},
        nftables,
    };

    /// The kernel reports first that there was no room for more answers.
    #[test]
    fn refusals_that_there_was_room_for_are_not_lost_with_others() {
        let mut answers = Writer::new();
        answers.message(0xa00, 0, 0, |w| (0..2).for_each(|_| w.attribute(1, &[0; 40_000])));
        let refusal = [&(-libc::EPERM).to_ne_bytes()[..], &[0; 16]].concat();
        answers.message(message::NLMSG_ERROR, 0, 0, |w| w.raw(&refusal));
        let answers = answers.as_slice().to_vec();
        let mut batch = Writer::new();
        batch.message(0xa00, flags::ACK, 1, |_| {});
        let errors = replay(Traffic { answers, ..Traffic::default() }, || {
            let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
            socket.transaction(batch.as_slice(), 1).unwrap()
        });
        assert_eq!(errors.iter().map(|error| error.errno).collect::<Vec<_>>(), [libc::EPERM]);
    }

    #[test]
    fn a_record_is_answered_as_the_kernel_did() {
        test_netns::in_namespace(|| {
            let ask = || {
                let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
                nftables::generation(&mut socket).unwrap().unwrap()
            };
            let mut asked = 0;
            let traffic = record(|| asked = ask());
            assert_eq!(replay(traffic, ask), asked);
            let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
            let result = replay(Traffic::default(), || nftables::generation(&mut socket));
            assert!(matches!(result, Err(Error::NoAnswer)));
        });
    }
}
