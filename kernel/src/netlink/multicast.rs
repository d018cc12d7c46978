//! Listening to what the kernel tells a group of sockets.

use std::{
    ffi::c_int,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use crate::netlink::{Error, Socket, socket::set_option};

/// Where `struct nlmsghdr` has the port of the sender.
const SENDER_OFFSET: u32 = 12;
const TABLE_OFFSET: u32 = 20;

impl Socket {
    /// The port of this socket (`nl_pid`): the kernel's notifications carry that of the socket
    /// whose request they are about.
    pub fn port(&self) -> Result<u32, Error> {
        // A socket that has neither been bound nor sent has no port yet.
        if self.bound_port()? == 0 {
            self.bind_anywhere()?;
        }
        self.bound_port()
    }

    fn bound_port(&self) -> Result<u32, Error> {
        let mut address = MaybeUninit::<libc::sockaddr_nl>::zeroed();
        let mut length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which is the size of what it is given.
        let result = unsafe {
            libc::getsockname(self.as_raw_fd(), address.as_mut_ptr().cast(), &raw mut length)
        };
        if result < 0 {
            return Err(Error::io("ask for the port of a netlink socket"));
        }
        // SAFETY: all fields are numbers, for which any bytes will do, and all were set to zero.
        Ok(unsafe { address.assume_init() }.nl_pid)
    }

    /// Joins a group: from now on [`Socket::receive`] returns the notifications of the group.
    pub fn join(&self, group: c_int) -> Result<(), Error> {
        // The kernel sends no notifications to a socket without a port: it takes that for the
        // sender.
        self.port()?;
        #[cfg(feature = "testing")]
        self.tap.join();
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, group)
    }

    /// Returns the membership in a group that this socket has joined.
    pub fn membership(&self, group: c_int) -> Result<Membership, Error> {
        let fd = self.as_fd().try_clone_to_owned();
        let fd = fd.map_err(|source| Error::Io { action: "copy a netlink socket", source })?;
        Ok(Membership { socket: fd, group })
    }

    /// Has the kernel drop datagrams of messages about requests of the sockets with these ports (at
    /// most 255), before they take any room here. The kernel puts messages about different requests
    /// into different datagrams.
    pub fn ignore_requests_of(&self, ports: &[u32]) -> Result<(), Error> {
        // The program sees bytes in network order.
        let ports = ports.iter().map(|port| u32::from_be_bytes(port.to_ne_bytes()));
        self.filter(libc::BPF_W, SENDER_OFFSET, ports, [0, u32::MAX])
    }

    /// Has the kernel drop announcements of routes and rules of all routing tables but this one,
    /// before they take any room here (`rtm_table` of `rtmsg` and `table` of `fib_rule_hdr`, which are
    /// at the same place).
    pub(crate) fn receive_only_of_table(&self, table: u8) -> Result<(), Error> {
        self.filter(libc::BPF_B, TABLE_OFFSET, [table.into()], [u32::MAX, 0])
    }

    /// Accepts `same` bytes of a datagram if the `size`-wide field at `offset` equals one of
    /// `values`, else `other` bytes.
    fn filter(
        &self,
        size: u32,
        offset: u32,
        values: impl IntoIterator<Item = u32>,
        [same, other]: [u32; 2],
    ) -> Result<(), Error> {
        let statement =
            |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut program = vec![statement(libc::BPF_LD | size | libc::BPF_ABS, 0, offset)];
        for value in values {
            program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, value));
            program.push(statement(libc::BPF_RET | libc::BPF_K, 0, same));
        }
        program.push(statement(libc::BPF_RET | libc::BPF_K, 0, other));
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: `filter` points to as many live statements as it says; the kernel copies them.
        let result = unsafe {
            libc::setsockopt(
                self.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        if result < 0 { Err(Error::io("attach a filter to a netlink socket")) } else { Ok(()) }
    }

    /// Has the kernel choose a port.
    fn bind_anywhere(&self) -> Result<(), Error> {
        // SAFETY: all fields are numbers, for which zero will do.
        let mut address: libc::sockaddr_nl = unsafe { MaybeUninit::zeroed().assume_init() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        // SAFETY: the pointer and the length are those of a live address.
        let result = unsafe {
            libc::bind(
                self.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_nl>() as libc::socklen_t,
            )
        };
        if result < 0 { Err(Error::io("bind a netlink socket")) } else { Ok(()) }
    }
}

/// The membership of a socket in a group, which outlives the socket's own descriptor.
#[derive(Debug)]
pub struct Membership {
    socket: OwnedFd,
    group: c_int,
}

impl Membership {
    /// Leaves the group, and joins it again after `work`. Without members, the kernel makes no
    /// notifications.
    pub(crate) fn without<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let set = |option| set_option(self.socket.as_fd(), libc::SOL_NETLINK, option, self.group);
        set(libc::NETLINK_DROP_MEMBERSHIP)?;
        let result = work();
        set(libc::NETLINK_ADD_MEMBERSHIP)?;
        Ok(result)
    }
}
