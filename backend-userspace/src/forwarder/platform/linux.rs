//! Linux: its limits, its errors, SCTP, the packet filter, and splice(2).

use std::{
    fs, io,
    net::SocketAddr,
    ops::RangeInclusive,
    os::fd::{AsRawFd, OwnedFd},
    sync::OnceLock,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::sockopt,
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
    process::{Resource, getrlimit},
    system::sysinfo,
};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use switchyard_core::model::Protocol;

use super::{
    Message, Pipe, Platform, Receiving, Reuse, datagrams,
    options::{switch_on, tcp_info},
    sctp,
};

/// The number of bytes a socket takes ahead of what it can that send, so that a client that does
/// not read has little memory of the kernel: tcp(7), `TCP_NOTSENT_LOWAT`. What is on its way does
/// not count.
const UNSENT: u32 = 256 * 1024;

/// Options of `linux/sctp.h`: send messages at once instead of collecting them, and receive
/// each with its attributes.
const SCTP_NODELAY: libc::c_int = 3;
const SCTP_RECVRCVINFO: libc::c_int = 32;

#[derive(Default)]
pub(super) struct Linux {
    /// Whether the kernel can send datagrams together, once that is known.
    can_send_together: OnceLock<bool>,
}

impl Platform for Linux {
    fn descriptors(&self) -> usize {
        let soft = getrlimit(Resource::Nofile).current;
        soft.map_or(usize::MAX, |soft| usize::try_from(soft).unwrap_or(usize::MAX))
    }

    /// The memory of the machine or, if that is less, of the container.
    fn memory(&self) -> Option<usize> {
        let info = sysinfo();
        let machine = usize::try_from(info.totalram).ok()?.saturating_mul(info.mem_unit as usize);
        let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
        let container = limit.and_then(|limit| limit.trim().parse().ok());
        Some(container.map_or(machine, |limit: usize| limit.min(machine)))
    }

    /// ip-sysctl: `ip_local_port_range` without `ip_local_reserved_ports`. No setting of IPv6.
    fn ephemeral_ports(&self) -> Vec<u16> {
        let range = setting("ip_local_port_range").unwrap_or_default();
        let mut bounds = range.split_whitespace().map_while(|bound| bound.parse().ok());
        let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else { return Vec::new() };
        let Ok(reserved) = self.reserved_ports() else { return Vec::new() };
        let is_reserved = |port: &u16| reserved.iter().any(|ports| ports.contains(port));
        (first..=last).filter(|port| !is_reserved(port)).collect()
    }

    /// ip-sysctl: `tcp_tw_reuse`.
    fn reuse(&self) -> Reuse {
        match setting("tcp_tw_reuse").as_deref().map(str::trim) {
            Ok("0") => Reuse::None,
            Ok("1") => Reuse::All,
            _ => Reuse::Loopback,
        }
    }

    /// ip-sysctl: `tcp_max_tw_buckets`.
    fn most_resting(&self) -> usize {
        let most = setting("tcp_max_tw_buckets").ok();
        most.and_then(|most| most.trim().parse().ok()).unwrap_or(usize::MAX)
    }

    /// ip-sysctl: `ip_local_reserved_ports`.
    fn reserved_ports(&self) -> io::Result<Vec<RangeInclusive<u16>>> {
        let reserved = setting("ip_local_reserved_ports")?;
        Ok(reserved.trim().split(',').filter_map(ports).collect())
    }

    fn share_port(&self, socket: &Socket) -> io::Result<()> {
        socket.set_reuse_port(true)
    }

    fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
        let (kind, protocol) = match protocol {
            Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
            Protocol::Udp => (Type::DGRAM, socket2::Protocol::UDP),
            Protocol::Sctp => (Type::STREAM, socket2::Protocol::SCTP),
        };
        let kind = kind.nonblocking();
        Socket::new(Domain::for_address(address), kind, Some(protocol)).map_err(|error| {
            match Errno::from_io_error(&error) {
                Some(Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT | Errno::AFNOSUPPORT) => {
                    io::Error::new(io::ErrorKind::Unsupported, error)
                }
                _ => error,
            }
        })
    }

    fn set_mark(&self, socket: &Socket, mark: u32) -> io::Result<()> {
        socket.set_mark(mark)
    }

    /// ip(7): `IP_TRANSPARENT` needs CAP_NET_ADMIN or CAP_NET_RAW. With `IP_BIND_ADDRESS_NO_PORT`,
    /// sockets share ports that are connected to different endpoints, and a client who chooses its
    /// port takes none from the servers of this node.
    fn bind_as(&self, socket: &Socket, source: SocketAddr) -> io::Result<()> {
        match source {
            SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
            SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
        }
        if source.port() == 0 {
            switch_on(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        }
        socket.bind(&source.into())
    }

    fn tune_sctp(&self, socket: &SockRef<'_>) -> io::Result<()> {
        switch_on(socket, libc::IPPROTO_SCTP, SCTP_NODELAY)?;
        switch_on(socket, libc::IPPROTO_SCTP, SCTP_RECVRCVINFO)
    }

    fn send(&self, socket: &Socket, bytes: &[u8], message: Message) -> io::Result<usize> {
        sctp::send(socket, bytes, message)
    }

    fn receive(&self, socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, Message)> {
        sctp::receive(socket, buffer)
    }

    fn write_first(&self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    fn write_last(&self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        socket.send_with_flags(bytes, libc::MSG_MORE | libc::MSG_NOSIGNAL)
    }

    /// `tcp_rcv_synsent_state_process` in `net/ipv4/tcp_input.c`, which acknowledges at once what
    /// comes next. Without `TCP_QUICKACK`, an endpoint that writes twice would wait.
    fn connect_with_bytes(&self, socket: &Socket) -> io::Result<()> {
        switch_on(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)
    }

    /// tcp(7): an acknowledgement that is due is sent at once. A SYNPROXY, whose window is closed,
    /// connects to its server after that of the handshake only.
    fn end_handshake(&self, socket: &Socket) -> io::Result<()> {
        switch_on(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK)
    }

    fn limit_unsent(&self, socket: &SockRef<'_>) -> io::Result<()> {
        socket.set_tcp_notsent_lowat(UNSENT)
    }

    fn inherits_options(&self) -> bool {
        true
    }

    /// A reset that comes after a FIN: `tcp_reset` in `net/ipv4/tcp_input.c`.
    fn is_after_end(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::BrokenPipe
    }

    fn has_acknowledged(&self, socket: &Socket) -> Option<bool> {
        let mut unacknowledged: libc::c_int = 0;
        // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes an int to the pointer.
        let result =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut unacknowledged) };
        (result == 0).then_some(unacknowledged == 0)
    }

    /// `TCP_USER_TIMEOUT` (tcp(7)) would also end connections to an end that answers the probes of
    /// its closed window.
    fn is_silent(&self, socket: &Socket, time: Duration) -> bool {
        tcp_info(socket).is_some_and(|info| {
            let is_asked = info.tcpi_retransmits.max(info.tcpi_probes) > 1;
            is_asked && u128::from(info.tcpi_last_ack_recv) >= time.as_millis()
        })
    }

    /// With CAP_NET_ADMIN, the limits `net.core.rmem_max` and `wmem_max` do not count, which are
    /// 208 KiB by default: a few hundred small datagrams. As many wait for the hardware address of
    /// a single neighbour that is gone (`unres_qlen_bytes`), so that two fill the usual send buffer.
    fn set_buffers(&self, socket: &SockRef<'_>, size: usize) {
        if sockopt::set_socket_recv_buffer_size_force(&**socket, size).is_err() {
            let _ = socket.set_recv_buffer_size(size);
        }
        if sockopt::set_socket_send_buffer_size_force(&**socket, size).is_err() {
            let _ = socket.set_send_buffer_size(size);
        }
    }

    fn receive_together(&self, socket: &SockRef<'_>) {
        // Without it, datagrams come one by one.
        let _ = datagrams::receive_together(socket);
    }

    fn receive_datagrams(&self, socket: &Socket, into: &mut Receiving) -> io::Result<bool> {
        datagrams::receive(socket, into)
    }

    fn send_datagrams(
        &self,
        socket: &Socket,
        to: Option<&SockAddr>,
        datagrams: &[&[u8]],
        size: u16,
    ) -> io::Result<()> {
        if !self.can_send_together.get_or_init(|| datagrams::can_send_together(socket)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        datagrams::send(socket, to, datagrams, size)
    }

    fn is_passing(&self, error: &io::Error) -> bool {
        matches!(
            Errno::from_io_error(error),
            Some(
                Errno::AGAIN
                    | Errno::INTR
                    | Errno::MSGSIZE
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::PERM
            )
        )
    }

    fn is_exhausted(&self, error: &io::Error) -> bool {
        matches!(
            Errno::from_io_error(error),
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN)
        )
    }

    fn original_destination(&self, socket: SockRef<'_>) -> Option<SocketAddr> {
        // Errors: no connection tracking, or none of this connection.
        if socket.domain().ok()? == Domain::IPV4 {
            sockopt::ip_original_dst(&*socket).ok().map(SocketAddr::from)
        } else {
            sockopt::ipv6_original_dst(&*socket).ok().map(SocketAddr::from)
        }
    }

    fn pipe(&self) -> io::Result<Box<dyn Pipe>> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Box::new(Splicing { read, write }))
    }
}

fn setting(name: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))
}

/// Reads a port, or a range of ports.
fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some(from.parse().ok()?..=to.parse().ok()?)
}

/// The amount that may be in a pipe; the kernel has its own lower limit.
const IN_PIPE: usize = 512 * 1024;

/// A pipe that has both its ends.
struct Splicing {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe for Splicing {
    fn fill(&self, from: &Socket) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(splice(from, None, &self.write, None, IN_PIPE, flags)?)
    }

    /// If the peer is gone, the kernel sends SIGPIPE, which Rust programs ignore.
    fn drain(&self, to: &Socket, size: usize) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(splice(&self.read, None, to, None, size, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_no_refusal() {
        let is_exhausted = |errno: Errno| Linux::default().is_exhausted(&errno.into());
        assert!(is_exhausted(Errno::MFILE) && is_exhausted(Errno::NOBUFS));
        assert!(!is_exhausted(Errno::CONNREFUSED));
    }
}

#[cfg(test)]
mod kernel_tests {
    use test_netns::{in_namespace, run};

    use super::*;

    #[test]
    fn reserved_ports_are_left_to_those_who_bind_them() {
        in_namespace(|| {
            fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009").unwrap();
            fs::write("/proc/sys/net/ipv4/ip_local_reserved_ports", "40001,40003-40008").unwrap();
            assert_eq!(Linux::default().ephemeral_ports(), [40000, 40002, 40009]);
        });
    }

    #[test]
    fn a_receive_buffer_may_exceed_the_limit_for_users() {
        let limit = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        in_namespace(|| {
            run("ip link set lo up");
            let socket =
                Linux::default().socket(Protocol::Udp, ([127, 0, 0, 1], 0).into()).unwrap();
            Linux::default().set_buffers(&SockRef::from(&socket), 2 * limit);
            // The kernel doubles what is asked for (socket(7)).
            assert_eq!(socket.recv_buffer_size().unwrap(), 4 * limit);
        });
    }
}
