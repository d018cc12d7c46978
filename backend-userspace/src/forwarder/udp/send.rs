//! Sending the datagrams of a flow, together where the system can.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use socket2::{SockAddr, Socket};

use super::{is_dropped, is_refusal};
use crate::forwarder::platform::Platform;

/// The most datagrams that are sent together, as many as Linux takes since 4.18
/// (`UDP_MAX_SEGMENTS`), and their most bytes: less than a packet of IP has.
const TOGETHER: usize = 64;
const BYTES: usize = 60_000;

/// Sends datagrams in order, to an address or where the socket is connected to. Tells `sent` of
/// each part what became of all of it, and ends at a part after which that returns false. Returns
/// how many datagrams came before the part.
///
/// `is_single` is set once the way there takes datagrams one by one only, as with IPsec, or with
/// datagrams that are larger than the way's packets.
pub(super) fn send<'a, 'b>(
    platform: &dyn Platform,
    socket: &Socket,
    to: Option<&SockAddr>,
    datagrams: &'a [&'b [u8]],
    is_single: &AtomicBool,
    mut sent: impl FnMut(&'a [&'b [u8]], io::Result<()>) -> bool,
) -> usize {
    let mut rest = datagrams;
    // The number of datagrams at the beginning of the rest that could not be sent together.
    let mut singly = 0_usize;
    while let [first, ..] = rest {
        let one_by_one = singly > 0 || is_single.load(Ordering::Relaxed);
        let together = if one_by_one { 1 } else { together(rest) };
        let result = match u16::try_from(first.len()) {
            Ok(size) if together > 1 => {
                let result = platform.send_datagrams(socket, to, &rest[..together], size);
                match &result {
                    Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                        is_single.store(true, Ordering::Relaxed);
                        continue;
                    }
                    // Perhaps a smaller one is taken.
                    Err(error) if !is_final(error) => {
                        singly = together;
                        continue;
                    }
                    _ => result,
                }
            }
            _ => match to {
                Some(to) => socket.send_to(first, to).map(drop),
                None => socket.send(first).map(drop),
            },
        };
        if !sent(&rest[..together], result) {
            break;
        }
        rest = &rest[together..];
        singly = singly.saturating_sub(1);
    }
    datagrams.len() - rest.len()
}

/// The number of datagrams at the beginning that can be sent together.
fn together(datagrams: &[&[u8]]) -> usize {
    let Some(size) = datagrams.first().map(|first| first.len()).filter(|size| *size > 0) else {
        return 1;
    };
    let most = TOGETHER.min(BYTES / size).max(1);
    let same = datagrams.iter().take(most).take_while(|next| next.len() == size).count();
    let has_last =
        same < most && datagrams.get(same).is_some_and(|next| (1..size).contains(&next.len()));
    same + usize::from(has_last)
}

pub(super) fn bytes(datagrams: &[&[u8]]) -> u64 {
    datagrams.iter().map(|datagram| datagram.len() as u64).sum()
}

/// Whether an error would meet each of the datagrams as well.
fn is_final(error: &io::Error) -> bool {
    is_refusal(error) || is_dropped(error) || error.kind() == io::ErrorKind::WouldBlock
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use socket2::SockRef;

    use super::*;
    use crate::forwarder::platform::Receiving;

    /// A system that cannot send datagrams together, with its error.
    struct OneByOne(io::ErrorKind);

    impl Platform for OneByOne {
        fn send_datagrams(
            &self,
            _socket: &Socket,
            _to: Option<&SockAddr>,
            _datagrams: &[&[u8]],
            _size: u16,
        ) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn what_cannot_be_sent_together_is_sent_one_by_one() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = to.local_addr().unwrap().into();
        let datagrams: [&[u8]; 4] = [b"a", b"b", b"", b"c"];
        let mut buffer = Receiving::new();
        for (kind, stays) in [(io::ErrorKind::Unsupported, true), (io::ErrorKind::Other, false)] {
            let (system, is_single) = (OneByOne(kind), AtomicBool::default());
            let count = send(
                &system,
                &SockRef::from(&from),
                Some(&address),
                &datagrams,
                &is_single,
                |part, result| part.len() == 1 && result.is_ok(),
            );
            assert_eq!((count, is_single.into_inner()), (4, stays), "{kind}");
            for datagram in datagrams {
                assert!(system.receive_datagrams(&SockRef::from(&to), &mut buffer).unwrap());
                let [received] = &buffer.received[..] else { panic!("one") };
                assert_eq!(received.from, from.local_addr().ok());
                assert_eq!(buffer.datagrams(received).collect::<Vec<_>>(), [datagram]);
            }
        }
    }

    #[test]
    fn datagrams_of_a_size_go_together_with_a_smaller_last_one() {
        let count = |sizes: &[usize]| {
            let all: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
            let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
            together(&all)
        };
        assert_eq!(count(&[7]), 1);
        assert_eq!(count(&[7, 7, 7]), 3);
        assert_eq!(count(&[7, 7, 3, 7]), 3);
        assert_eq!(count(&[7, 8, 8]), 1);
        assert_eq!(count(&[7, 0]), 1, "an empty datagram is none of a packet's");
        assert_eq!(count(&[0, 0]), 1);
        assert_eq!(count(&[1; 100]), 64);
        assert_eq!(count(&[20_000; 5]), 3);
        assert_eq!(count(&[20_000, 20_000, 20_000, 1]), 3);
        assert_eq!(count(&[65_000, 65_000]), 1);
    }
}
