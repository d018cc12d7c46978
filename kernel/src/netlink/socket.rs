//! Sockets.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use crate::netlink::{Error, KernelError, Message, Messages, Reply, Writer, flags};

/// The kernel never puts more than 32 KiB of a dump into one datagram; other answers are smaller.
const RECEIVE: usize = 64 * 1024;

/// The room for answers: errors of thousands of messages in a batch, and events.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;

/// The cost of a message in the send buffer beside its bytes.
const SEND_OVERHEAD: usize = 64 * 1024;

/// The time to wait for the next part of a dump; all other answers come before `send` returns.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of times that an interrupted dump is begun again before giving up.
const DUMP_ATTEMPTS: usize = 20;

/// A netlink socket, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    send_buffer: usize,
    received: Vec<u8>,
    sequence: u32,
    #[cfg(feature = "testing")]
    pub(crate) tap: crate::netlink::testing::Tap,
}

impl Socket {
    /// Opens a socket of `protocol` (`libc::NETLINK_*`).
    pub fn open(protocol: c_int) -> Result<Self, Error> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(Error::io("open a netlink socket"));
        }
        // SAFETY: the descriptor is new, so nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self::from_descriptor(fd);
        // Explanations of errors, and errors without the request.
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, 1)?;
        socket.set_option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        // Needs CAP_NET_ADMIN; without the capability, the usual buffer must do.
        let wanted = RECEIVE_BUFFER as c_int;
        if socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
            socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, wanted)?;
        }
        Ok(socket)
    }

    pub(crate) fn from_descriptor(fd: OwnedFd) -> Self {
        Self {
            fd,
            send_buffer: 0,
            received: vec![0; RECEIVE],
            sequence: first_sequence(),
            #[cfg(feature = "testing")]
            tap: Default::default(),
        }
    }

    /// Has the kernel check requests for lists strictly, and so return only what they select
    /// (`NETLINK_GET_STRICT_CHK`).
    ///
    /// # Errors
    /// On kernels before 4.20, which have no such checks.
    pub fn check_strictly(&self) -> Result<(), Error> {
        self.set_option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, 1)
    }

    /// The first of `count` sequence numbers that follow each other and were not used before.
    pub fn sequences(&mut self, count: u32) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(count);
        first
    }

    /// Sends a buffer of messages at once, after growing the send buffer to its size.
    pub fn send(&mut self, messages: &[u8]) -> Result<(), Error> {
        #[cfg(feature = "testing")]
        if self.tap.sent(messages) {
            return Ok(());
        }
        self.grow_send_buffer(messages.len())?;
        loop {
            // SAFETY: the pointer and the length are those of a live slice.
            let sent = unsafe {
                libc::send(self.fd.as_raw_fd(), messages.as_ptr().cast(), messages.len(), 0)
            };
            match usize::try_from(sent) {
                Ok(length) if length == messages.len() => return Ok(()),
                Ok(_) => return Err(Error::Malformed("only a part was sent")),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(Error::Io { action: "send to the kernel", source: error });
                    }
                }
            }
        }
    }

    /// Receives one datagram; `None` if there is none now.
    pub fn receive(&mut self) -> Result<Option<Messages<'_>>, Error> {
        let Some(length) = self.receive_bytes()? else { return Ok(None) };
        Ok(Some(Messages::new(&self.received[..length])))
    }

    /// Sends a batch and collects the answers, all of which are there when `send` returns.
    ///
    /// Returns the messages that the kernel refused. The message with sequence number `acked` must
    /// ask for an acknowledgement ([`flags::ACK`]), which ends the answers.
    pub fn batch(&mut self, messages: &[u8], acked: u32) -> Result<Vec<KernelError>, Error> {
        let (errors, is_all) = self.refusals(messages, acked)?;
        if is_all { Ok(errors) } else { Err(Error::Overrun) }
    }

    /// Sends a batch of which the kernel makes all or nothing. As [`Socket::batch`], but of more
    /// refusals than the receive buffer takes, it returns the first ones.
    pub fn transaction(&mut self, messages: &[u8], acked: u32) -> Result<Vec<KernelError>, Error> {
        let (errors, is_all) = self.refusals(messages, acked)?;
        if is_all || !errors.is_empty() { Ok(errors) } else { Err(Error::Overrun) }
    }

    /// Sends a batch. Returns the refusals, and whether these are all.
    fn refusals(&mut self, messages: &[u8], acked: u32) -> Result<(Vec<KernelError>, bool), Error> {
        self.discard()?;
        self.send(messages)?;
        let mut errors = Vec::new();
        let (mut done, mut lost) = (false, false);
        loop {
            let datagram = match self.receive() {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break,
                // It comes before the answers that there was room for.
                Err(Error::Overrun) => {
                    lost = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for message in datagram {
                match message.reply() {
                    Some(Reply::Ack(sequence)) if sequence == acked => done = true,
                    Some(Reply::Error(error)) => errors.push(error),
                    Some(Reply::Overrun) => lost = true,
                    _ => {}
                }
            }
        }
        if errors.is_empty() && !lost && !done {
            return Err(Error::NoAnswer);
        }
        Ok((errors, !lost))
    }

    /// Sends a request and hands every object of the answer to `each`, until the kernel
    /// acknowledges, refuses, or says that it was the last. The request with sequence number
    /// `sequence` must ask for one of them ([`flags::DUMP`] or [`flags::ACK`]).
    pub fn request(
        &mut self,
        request: &[u8],
        sequence: u32,
        mut each: impl FnMut(Message<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.discard()?;
        self.send(request)?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut interrupted = false;
        loop {
            let Some(datagram) = self.receive()? else {
                self.wait(deadline)?;
                continue;
            };
            for message in datagram.filter(|message| message.sequence == sequence) {
                interrupted |= message.flags & flags::DUMP_INTERRUPTED != 0;
                match message.reply().ok_or(Error::Malformed("too short"))? {
                    Reply::Object(object) => each(object)?,
                    Reply::Error(error) | Reply::Done(Err(error)) => {
                        return Err(Error::Kernel(error));
                    }
                    Reply::Done(Ok(())) | Reply::Ack(_) if interrupted => {
                        return Err(Error::Interrupted);
                    }
                    Reply::Done(Ok(())) | Reply::Ack(_) => return Ok(()),
                    Reply::Overrun => return Err(Error::Overrun),
                    Reply::Noop => {}
                }
            }
        }
    }

    /// Sends a request with [`flags::ACK`] and hands every object of the answer to `each`.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(Message<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let sequence = self.sequences(1);
        let mut writer = Writer::new();
        writer.message(kind, flags | flags::ACK, sequence, fill);
        self.request(writer.as_slice(), sequence, each)
    }

    /// Sends a request with [`flags::ACK`] and waits until the kernel has carried it out.
    pub(crate) fn carry_out(
        &mut self,
        kind: u16,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<(), Error> {
        self.ask(kind, flags, fill, |_| Ok(()))
    }

    /// Asks for one object, and returns what `read` makes of it; `None` if the kernel refuses with
    /// the error `absent`.
    pub(crate) fn find<T>(
        &mut self,
        kind: u16,
        fill: impl FnOnce(&mut Writer),
        absent: i32,
        read: impl Fn(Message<'_>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let mut found = None;
        let result = self.ask(kind, 0, fill, |message| {
            found = Some(read(message)?);
            Ok(())
        });
        match result {
            Ok(()) => Ok(found),
            Err(error) if error.errno() == Some(absent) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Dumps objects: `write` makes the request for a sequence number, `read` collects the objects
    /// from nothing. If the objects change in the meantime, it starts again.
    pub fn dump<T: Default>(
        &mut self,
        mut write: impl FnMut(&mut Writer, u32),
        mut read: impl FnMut(&mut T, Message<'_>) -> Result<(), Error>,
    ) -> Result<T, Error> {
        for _ in 0..DUMP_ATTEMPTS {
            let (collected, interrupted) = self.dump_once(&mut write, &mut read)?;
            if !interrupted {
                return Ok(collected);
            }
        }
        Err(Error::Interrupted)
    }

    /// Dumps objects like [`Self::dump`], but once. Also returns whether the kernel calls the dump
    /// interrupted: it does so if anything of a larger whole changes, which may concern other
    /// objects alone.
    pub fn dump_once<T: Default>(
        &mut self,
        write: impl FnOnce(&mut Writer, u32),
        mut read: impl FnMut(&mut T, Message<'_>) -> Result<(), Error>,
    ) -> Result<(T, bool), Error> {
        let sequence = self.sequences(1);
        let mut request = Writer::new();
        write(&mut request, sequence);
        let mut collected = T::default();
        match self.request(request.as_slice(), sequence, |message| read(&mut collected, message)) {
            // The request ends with this error after the last object.
            Err(Error::Interrupted) => Ok((collected, true)),
            Err(error) => Err(error),
            Ok(()) => Ok((collected, false)),
        }
    }

    /// Throws away what an earlier request left behind.
    fn discard(&mut self) -> Result<(), Error> {
        loop {
            match self.receive_bytes() {
                Ok(None) => return Ok(()),
                Ok(Some(_)) | Err(Error::Overrun) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn receive_bytes(&mut self) -> Result<Option<usize>, Error> {
        #[cfg(feature = "testing")]
        if let Some(replayed) = self.tap.receive(&mut self.received) {
            return replayed;
        }
        loop {
            // SAFETY: the pointer and the length are those of a live buffer.
            let received = unsafe {
                libc::recv(
                    self.fd.as_raw_fd(),
                    self.received.as_mut_ptr().cast(),
                    self.received.len(),
                    // The real length, even if the buffer is too short.
                    libc::MSG_TRUNC,
                )
            };
            match usize::try_from(received) {
                Ok(length) if length > self.received.len() => return Err(Error::Overrun),
                Ok(length) => {
                    #[cfg(feature = "testing")]
                    self.tap.received(&self.received[..length]);
                    return Ok(Some(length));
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match (error.kind(), error.raw_os_error()) {
                        (io::ErrorKind::WouldBlock, _) => return Ok(None),
                        (io::ErrorKind::Interrupted, _) => {}
                        (_, Some(libc::ENOBUFS)) => return Err(Error::Overrun),
                        _ => {
                            let action = "receive from the kernel";
                            return Err(Error::Io { action, source: error });
                        }
                    }
                }
            }
        }
    }

    /// Waits until something can be received.
    fn wait(&self, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::NoAnswer);
        }
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live `pollfd` is passed, and its number.
        let ready = unsafe { libc::poll(&raw mut poll, 1, left.as_millis() as c_int + 1) };
        if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return Err(Error::io("wait for the kernel"));
        }
        Ok(())
    }

    /// A datagram must fit into the send buffer with what the kernel keeps beside it.
    fn grow_send_buffer(&mut self, length: usize) -> Result<(), Error> {
        let wanted = length + length / 4 + SEND_OVERHEAD;
        if wanted <= self.send_buffer {
            return Ok(());
        }
        let size = c_int::try_from(wanted.next_power_of_two()).map_err(|_| Error::TooLong)?;
        if self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size).is_err() {
            // Without CAP_NET_ADMIN there is a limit, and `send` says when it is too low.
            self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, size)?;
        }
        self.send_buffer = wanted;
        Ok(())
    }

    pub(crate) fn set_option(
        &self,
        level: c_int,
        option: c_int,
        value: c_int,
    ) -> Result<(), Error> {
        set_option(self.as_fd(), level, option, value)
    }
}

/// Sets an option of a socket.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: c_int,
) -> Result<(), Error> {
    #[cfg(feature = "testing")]
    if crate::netlink::testing::is_replaying() {
        return Ok(());
    }
    // SAFETY: the pointer and the length are those of a live integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(Error::io("set an option of a netlink socket")) } else { Ok(()) }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

/// Returns the first sequence number, which differs between sockets, so that an answer to another
/// program is not taken for an answer to this one.
fn first_sequence() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.subsec_nanos()) & 0x3fff_ffff
}
