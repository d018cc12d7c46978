//! Where datagrams are between two sockets.

use std::cell::RefCell;

/// More than the largest datagram, which has 65,507 bytes over IPv4, and 65,527 over IPv6.
const SIZE: usize = 65_536;

/// Lends the thread's buffer. There is one for each thread rather than for each flow, since a
/// datagram is in it only while nothing is waited for.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local! {
        static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SIZE].into());
    }
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => work(&mut buffer),
        Err(_) => work(&mut vec![0; SIZE]),
    })
}
