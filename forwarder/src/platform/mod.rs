//! Differences between systems, behind one trait.

#[cfg(target_os = "linux")]
mod linux;

use std::{io, net::SocketAddr, time::Duration};

use socket2::{Domain, SockRef, Socket, Type};
use switchyard_core::model::Protocol;

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

    /// Lets a listener be bound while connections of an earlier one at the address go on, but not
    /// beside another listener.
    fn reuse_address(&self, socket: &Socket) -> io::Result<()> {
        // On Windows, the option would take the address away from another listener.
        if cfg!(unix) { socket.set_reuse_address(true) } else { Ok(()) }
    }

    /// Sets the options of the system for the socket of a connection, whose other end is gone if it
    /// takes nothing for a time.
    fn tune(
        &self,
        _protocol: Protocol,
        _socket: &SockRef<'_>,
        _dead_after: Duration,
    ) -> io::Result<()> {
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

    /// Whether the other end has acknowledged everything that was sent, as far as the system shows
    /// that.
    fn has_acknowledged(&self, _socket: &Socket) -> bool {
        false
    }

    /// Gives a listener for datagrams a receive buffer of this size, or as much of it as the system
    /// allows.
    fn set_receive_buffer(&self, socket: &SockRef<'_>, size: usize) {
        // A smaller one works, too.
        let _ = socket.set_recv_buffer_size(size);
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
    return Box::new(linux::Linux);
    #[cfg(not(target_os = "linux"))]
    return Box::new(Portable);
}
