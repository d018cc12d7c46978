//! Datagrams by the handful: recvmmsg(2), and those of one flow in one buffer (udp(7), `UDP_GRO`
//! and `UDP_SEGMENT`), which the kernel leads to and from the network as one.
//!
//! The crate `quinn-udp` does that for QUIC: its sockets forbid fragments (`IP_PMTUDISC_PROBE`) and
//! queue errors (`IP_RECVERR`), and it sends what is in one buffer.

use std::{
    array,
    io::{self, IoSlice},
    mem,
    os::fd::AsRawFd,
    ptr,
};

use socket2::{MsgHdr, SockAddr, SockAddrStorage, Socket};

use super::{
    BUFFER, MESSAGES, Received, Receiving,
    options::{HEADER, header, switch_on},
};

/// The size of a header with an `int` or less, and padding.
const CONTROL: usize = HEADER + size_of::<usize>();

/// Room for control data, with the alignment of its header.
type Control = [usize; CONTROL / size_of::<usize>()];

/// Has the kernel hand over datagrams of one flow in one buffer. Needs Linux 5.0.
pub(super) fn receive_together(socket: &Socket) -> io::Result<()> {
    switch_on(socket, libc::SOL_UDP, libc::UDP_GRO)
}

/// Whether the kernel can send datagrams together, as Linux can since 4.18. Earlier ones would
/// ignore the size of each, and send them as one.
pub(super) fn can_send_together(socket: &Socket) -> bool {
    let mut size: libc::c_int = 0;
    let mut length = size_of_val(&size) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the pointer, which are those of `size`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw mut size).cast(),
            &raw mut length,
        )
    };
    result == 0
}

/// Receives what there is, at most [`MESSAGES`] buffers of datagrams. Returns whether there may be
/// more.
pub(super) fn receive(socket: &Socket, into: &mut Receiving) -> io::Result<bool> {
    into.received.clear();
    // SAFETY: all fields are integers, for which zero is a value, or pointers, which may be null.
    let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { mem::zeroed() };
    let mut names: [_; MESSAGES] = array::from_fn(|_| SockAddrStorage::zeroed());
    let mut controls = [Control::default(); MESSAGES];
    let mut buffers = [const { libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 } }; MESSAGES];
    let parts = names.iter_mut().zip(&mut controls).zip(&mut buffers).zip(into.buffers());
    for (header, (((name, control), buffer), bytes)) in headers.iter_mut().zip(parts) {
        *buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut *name).cast();
        header.msg_namelen = name.size_of();
        header.msg_iov = buffer;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut *control).cast();
        header.msg_controllen = size_of_val(control) as _;
    }
    // SAFETY: each of the headers points to an address, a buffer and control data that are as large
    // as the header tells, and that nothing else uses until the call returns.
    let count = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            MESSAGES as _,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let filled = headers.iter().zip(names).zip(&controls).take(count);
    for (((header, name), control), start) in filled.zip((0..).step_by(BUFFER)) {
        let length = header.msg_len as usize;
        // SAFETY: the kernel has written an address of this length, which is 0 if the socket is
        // connected.
        let from = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
        into.received.push(Received {
            from: from.as_socket(),
            place: start..start + length,
            each: size_of_each(*control).unwrap_or(length),
        });
    }
    Ok(count == MESSAGES)
}

/// Sends datagrams that have the same size, but for the last, which may be smaller. The error is
/// `Unsupported` if the way there takes them one by one only: EIO without checksums by the device
/// or with IPsec, EINVAL or EMSGSIZE with datagrams that do not fit into a packet
/// (`udp_send_skb` in `net/ipv4/udp.c`).
pub(super) fn send(
    socket: &Socket,
    to: Option<&SockAddr>,
    datagrams: &[&[u8]],
    size: u16,
) -> io::Result<()> {
    let buffers: Vec<IoSlice<'_>> = datagrams.iter().map(|bytes| IoSlice::new(bytes)).collect();
    let mut control = [0; CONTROL];
    control[..HEADER].copy_from_slice(&header(
        HEADER + size_of_val(&size),
        libc::SOL_UDP,
        libc::UDP_SEGMENT,
    ));
    control[HEADER..HEADER + size_of_val(&size)].copy_from_slice(&size.to_ne_bytes());
    let mut message = MsgHdr::new().with_buffers(&buffers).with_control(&control);
    if let Some(to) = to {
        message = message.with_addr(to);
    }
    match socket.sendmsg(&message, libc::MSG_NOSIGNAL) {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE) => {
                io::Error::new(io::ErrorKind::Unsupported, error)
            }
            _ => error,
        }),
    }
}

/// Reads the size of each datagram of a buffer, but for the last.
fn size_of_each(control: Control) -> Option<usize> {
    let control = control.map(usize::to_ne_bytes);
    let control = control.as_flattened();
    let length = HEADER + size_of::<libc::c_int>();
    let is_it = control[..HEADER] == header(length, libc::SOL_UDP, libc::UDP_GRO);
    let size = control[HEADER..].first_chunk()?;
    is_it.then(|| usize::try_from(libc::c_int::from_ne_bytes(*size)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use socket2::{Domain, SockRef, Type};

    use super::*;

    #[test]
    fn a_kernel_without_the_option_is_told_by_its_error() {
        let socket = |kind| Socket::new(Domain::IPV4, kind, None).unwrap();
        assert!(can_send_together(&socket(Type::DGRAM)));
        assert!(!can_send_together(&socket(Type::STREAM)), "that of TCP has no such option");
    }

    #[test]
    fn datagrams_that_are_sent_together_come_together_or_one_by_one() {
        let to = UdpSocket::bind("127.0.0.1:0").unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (sender, address) = (from.local_addr().unwrap(), to.local_addr().unwrap().into());
        let sent: [&[u8]; 3] = [&[1; 100], &[2; 100], &[3; 50]];
        let mut buffer = Receiving::new();
        let mut exchange = || {
            send(&SockRef::from(&from), Some(&address), &sent, 100).unwrap();
            assert!(!receive(&SockRef::from(&to), &mut buffer).unwrap(), "that is all");
            assert!(buffer.received.iter().all(|received| received.from == Some(sender)));
            let received = buffer.received.iter().map(|received| buffer.datagrams(received));
            let received: Vec<Vec<&[u8]>> = received.map(Iterator::collect).collect();
            assert_eq!(received.concat(), sent);
            received.len()
        };
        assert_eq!(exchange(), 3);
        receive_together(&SockRef::from(&to)).unwrap();
        assert_eq!(exchange(), 1);
        let nothing = receive(&SockRef::from(&to), &mut buffer).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }
}
