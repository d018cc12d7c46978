//! Options and control data of Linux's sockets that socket2 does not have.

use std::{io, mem, os::fd::AsRawFd};

use socket2::Socket;

/// The size of a `struct cmsghdr`: length, level and type.
pub(super) const HEADER: usize = size_of::<usize>() + 8;

/// Returns the header of control data of a length, which is that of the header included.
pub(super) fn header(length: usize, level: libc::c_int, kind: libc::c_int) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (size, rest) = header.split_at_mut(size_of::<usize>());
    size.copy_from_slice(&length.to_ne_bytes());
    rest[..4].copy_from_slice(&level.to_ne_bytes());
    rest[4..].copy_from_slice(&kind.to_ne_bytes());
    header
}

/// Switches an option of a socket on.
pub(super) fn switch_on(
    socket: &Socket,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at the pointer, which are those of `on`.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the state of a socket of TCP (tcp(7), `TCP_INFO`).
pub(crate) fn tcp_info(socket: &impl AsRawFd) -> Option<libc::tcp_info> {
    // SAFETY: all fields are integers, for which zero is a value.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let mut size = size_of_val(&info) as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), (&raw mut info).cast());
    // SAFETY: the kernel writes at most `size` bytes to the pointer, which are those of `info`.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut size) };
    (result == 0).then_some(info)
}
