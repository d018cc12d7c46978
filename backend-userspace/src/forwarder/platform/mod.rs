//! Differences between systems, behind one trait.

#[cfg(target_os = "linux")]
mod datagrams;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(super) mod options;
#[cfg(target_os = "linux")]
mod sctp;

use std::{
    io::{self, Read, Write},
    net::SocketAddr,
    ops::{Range, RangeInclusive},
    slice,
    time::Duration,
};

use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use switchyard_core::model::Protocol;

/// The endpoints to which the system connects from ports that rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reuse {
    None,
    #[default]
    Loopback,
    All,
}

/// The attributes of a message of SCTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// The payload protocol identifier, in network byte order.
    pub(crate) protocol: [u8; 4],
    /// Whether the message may overtake others.
    pub(crate) is_unordered: bool,
}

/// The buffers that one call fills, at most.
pub(crate) const MESSAGES: usize = 16;

/// More than the largest datagram, which has 65,507 bytes over IPv4, and 65,527 over IPv6, and more
/// than the kernel hands over together. The beginnings of buffers do not all have the same place in
/// the processor's caches.
const BUFFER: usize = 65_536 + 512;

/// Where datagrams are between two sockets.
pub(crate) struct Receiving {
    /// The buffers, one behind the other. Those that were never filled take no memory.
    bytes: Box<[u8]>,
    /// The parts of the buffers that the last call has filled.
    pub(crate) received: Vec<Received>,
}

/// A datagram, or several of one sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// The sender; `None` if the socket is connected.
    pub(crate) from: Option<SocketAddr>,
    /// The place of the bytes.
    place: Range<usize>,
    /// The size of each datagram but the last, which may be smaller.
    each: usize,
}

impl Receiving {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; MESSAGES * BUFFER].into(), received: Vec::with_capacity(MESSAGES) }
    }

    fn buffers(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_exact_mut(BUFFER)
    }

    /// Returns the number of datagrams that were received.
    pub(crate) fn count(&self) -> usize {
        let count = |received| self.datagrams(received).count();
        self.received.iter().map(count).sum()
    }

    /// Returns the datagrams of a part of what was received.
    pub(crate) fn datagrams(&self, received: &Received) -> impl Iterator<Item = &[u8]> + Clone {
        let bytes = &self.bytes[received.place.clone()];
        // An empty datagram is one, too.
        let empty = bytes.is_empty().then_some(bytes);
        empty.into_iter().chain(bytes.chunks(received.each.max(1)))
    }
}

/// The system that the forwarder runs on. What is written here holds for any system with sockets.
pub(crate) trait Platform: Send + Sync {
    /// The number of file descriptors that the process may have.
    fn descriptors(&self) -> usize {
        8192
    }

    /// The memory that the process may have, if it is known, in bytes.
    fn memory(&self) -> Option<usize> {
        None
    }

    /// The ports that the system chooses from for sockets that are not bound, in ascending order,
    /// in the network namespace of the calling thread, if sockets that are connected to different
    /// endpoints may [share a port](Self::share_port).
    fn ephemeral_ports(&self) -> Vec<u16> {
        Vec::new()
    }

    /// The endpoints to which the system connects from ports that it keeps after a connection.
    fn reuse(&self) -> Reuse {
        Reuse::None
    }

    /// The most ports that the system keeps after connections.
    fn most_resting(&self) -> usize {
        usize::MAX
    }

    /// The ports that are reserved for programs that ask for them by number.
    fn reserved_ports(&self) -> io::Result<Vec<RangeInclusive<u16>>> {
        Ok(Vec::new())
    }

    /// Lets a socket share its port with others for which this is set, too, and which belong to the
    /// same user.
    fn share_port(&self, _socket: &Socket) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes a socket of a protocol, for the family of an address, whose calls do not block. The
    /// error is `Unsupported` where the system has no such protocol.
    fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
        let (kind, protocol) = match protocol {
            Protocol::Tcp => (Type::STREAM, socket2::Protocol::TCP),
            Protocol::Udp => (Type::DGRAM, socket2::Protocol::UDP),
            Protocol::Sctp => return Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Sets the mark of the packets of a socket.
    fn set_mark(&self, _socket: &Socket, _mark: u32) -> io::Result<()> {
        Ok(())
    }

    /// Binds a socket to an address of another host, so that what it sends comes from there. With
    /// port 0, the system chooses a port when the socket is connected.
    fn bind_as(&self, _socket: &Socket, _source: SocketAddr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets a listener be bound while connections at the address go on that have this option, too,
    /// but not beside another listener.
    fn reuse_address(&self, socket: &Socket) -> io::Result<()> {
        // On Windows, the option would take the address away from another listener.
        if cfg!(unix) { socket.set_reuse_address(true) } else { Ok(()) }
    }

    /// Has messages of SCTP sent at once, and received with their attributes.
    fn tune_sctp(&self, _socket: &SockRef<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Sends a message of SCTP.
    fn send(&self, mut socket: &Socket, bytes: &[u8], _message: Message) -> io::Result<usize> {
        socket.write(bytes)
    }

    /// Receives a message of SCTP.
    fn receive(&self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, Message)> {
        Ok((socket.read(buffer)?, Message::default()))
    }

    /// Writes the first bytes of a connection, if it is there already.
    fn write_first(&self, mut socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        socket.write(bytes)
    }

    /// Writes the last bytes before the end of a connection, which is sent next.
    fn write_last(&self, mut socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        socket.write(bytes)
    }

    /// Begins to connect a socket that does not block.
    fn connect(&self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
        let result = socket.connect(&address.into());
        #[cfg(unix)]
        let is_begun = |error: &io::Error| error.raw_os_error() == Some(libc::EINPROGRESS);
        #[cfg(not(unix))]
        let is_begun = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        result.or_else(|error| if is_begun(&error) { Ok(()) } else { Err(error) })
    }

    /// Has the system send the last packet of a handshake with the first bytes, which the caller
    /// sends as soon as it may, and then calls [`Self::end_handshake`].
    fn connect_with_bytes(&self, _socket: &Socket) -> io::Result<()> {
        Ok(())
    }

    /// Has the system send the last packet of a handshake if the first bytes did not go with it,
    /// which an endpoint without a window does not let them.
    fn end_handshake(&self, _socket: &Socket) -> io::Result<()> {
        Ok(())
    }

    /// Has the system take no more for a connection than it can soon send.
    fn limit_unsent(&self, _socket: &SockRef<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Whether connections have the options of the listener that has accepted them.
    fn inherits_options(&self) -> bool {
        false
    }

    /// Whether an error by which an end of a connection is gone means that the end had sent
    /// everything before.
    fn is_after_end(&self, _error: &io::Error) -> bool {
        false
    }

    /// Whether the other end has acknowledged everything that was sent; `None` where the system
    /// does not show that.
    fn has_acknowledged(&self, _socket: &Socket) -> Option<bool> {
        None
    }

    /// Whether the other end of a TCP connection has not answered for a time, although the system
    /// has asked more than once. An end that takes nothing, but answers, is there (RFC 9293,
    /// section 3.8.6.1).
    fn is_silent(&self, _socket: &Socket, _time: Duration) -> bool {
        false
    }

    /// Gives a listener for datagrams a receive buffer and a send buffer of this size, or as much
    /// of it as the system allows.
    fn set_buffers(&self, socket: &SockRef<'_>, size: usize) {
        // Smaller ones work, too.
        let _ = socket.set_recv_buffer_size(size);
        let _ = socket.set_send_buffer_size(size);
    }

    /// Has the system hand over datagrams of one sender together, where it can.
    fn receive_together(&self, _socket: &SockRef<'_>) {}

    /// Receives datagrams. Returns whether there may be more.
    fn receive_datagrams(&self, socket: &Socket, into: &mut Receiving) -> io::Result<bool> {
        into.received.clear();
        let Some(buffer) = into.buffers().next() else { return Ok(false) };
        // SAFETY: `recv_from` writes bytes to the buffer, which leaves it initialised.
        let buffer = unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), buffer.len()) };
        let (length, from): (usize, SockAddr) = socket.recv_from(buffer)?;
        into.received.push(Received { from: from.as_socket(), place: 0..length, each: length });
        Ok(true)
    }

    /// Sends datagrams in one call that have the same size, but for the last, which may be smaller:
    /// all or none, to an address or where the socket is connected to. The error is `Unsupported`
    /// where the system, or the way there, takes them one by one only.
    fn send_datagrams(
        &self,
        _socket: &Socket,
        _to: Option<&SockAddr>,
        _datagrams: &[&[u8]],
        _size: u16,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether an error of a socket for datagrams may be over with the datagram at hand.
    fn is_passing(&self, _error: &io::Error) -> bool {
        true
    }

    /// Whether an error means that the system or the process has no more descriptors or memory for
    /// sockets, so that no endpoint is to blame.
    fn is_exhausted(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::OutOfMemory
    }

    /// The address that a client has connected to, if the packet filter has sent the connection
    /// elsewhere.
    fn original_destination(&self, _socket: SockRef<'_>) -> Option<SocketAddr> {
        None
    }

    /// Makes a pipe, where the system can move bytes between sockets without copying them.
    fn pipe(&self) -> io::Result<Box<dyn Pipe>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A pipe that takes bytes from one socket and gives them to another. Its calls do not block.
pub(crate) trait Pipe: Send {
    /// Takes bytes from a socket into the pipe, which is empty. 0 bytes are the end.
    fn fill(&self, from: &Socket) -> io::Result<usize>;

    /// Gives up to `size` bytes in the pipe to a socket.
    fn drain(&self, to: &Socket, size: usize) -> io::Result<usize>;
}

/// A system of which nothing more is known.
#[cfg_attr(target_os = "linux", expect(dead_code, reason = "Linux has its own"))]
struct Portable;

impl Platform for Portable {}

/// Returns the system that the program was built for.
pub(crate) fn current() -> Box<dyn Platform> {
    #[cfg(target_os = "linux")]
    return Box::new(linux::Linux::default());
    #[cfg(not(target_os = "linux"))]
    return Box::new(Portable);
}
