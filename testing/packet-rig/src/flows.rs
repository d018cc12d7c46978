//! The flows that a kernel remembers (conntrack), which decide where the packets of known flows go.

use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use crate::{
    error::{Result, RigError},
    netns::NetNs,
};

/// The message that deletes all entries: `IPCTNL_MSG_CT_DELETE` of `NFNL_SUBSYS_CTNETLINK`
/// (linux/netfilter/nfnetlink_conntrack.h) without attributes, for every family.
const DELETE: u16 = 1 << 8 | 2;

/// The length of the message: `nlmsghdr` and `nfgenmsg`.
const LENGTH: usize = 20;

/// Has the kernel forget all flows of a namespace, so that the next packet of each is the first of
/// a new one.
pub fn forget_flows(namespace: &NetNs) -> Result<()> {
    namespace.run(forget)?.map_err(RigError::io("forget all flows"))
}

fn forget() -> io::Result<()> {
    // SAFETY: a system call without pointers, whose result is checked before it is owned.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let mut message = [0u8; LENGTH];
    message[..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&DELETE.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: the pointer and the length describe one live buffer.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 512];
    // SAFETY: the pointer and the length describe one live, exclusively borrowed buffer.
    let length =
        unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // The answer is `nlmsgerr`: the kernel's error number, negative, after the header.
    const HEADER: usize = size_of::<libc::nlmsghdr>();
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}
