//! The attributes of a message of SCTP: RFC 6458, sections 5.3.4 and 5.3.5, with the numbers of
//! `linux/sctp.h`.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    slice,
};

use socket2::{MaybeUninitSlice, MsgHdr, MsgHdrMut, Socket};

use super::{
    Message,
    options::{HEADER, header},
};

/// The type of a `struct sctp_sndinfo`: stream, flags, payload protocol identifier, context and
/// association.
const SNDINFO: i32 = 2;
/// The type of a `struct sctp_rcvinfo`: stream, number in the stream, flags, payload protocol
/// identifier, and more.
const RCVINFO: i32 = 3;
/// The flag of a message that may overtake others.
const UNORDERED: u16 = 1;

/// The size of the control data that [`encode`] writes.
const CONTROL: usize = HEADER + 16;

pub(super) fn send(socket: &Socket, bytes: &[u8], message: Message) -> io::Result<usize> {
    let (buffers, control) = ([IoSlice::new(bytes)], encode(message));
    let header = MsgHdr::new().with_buffers(&buffers).with_control(&control);
    socket.sendmsg(&header, libc::MSG_NOSIGNAL)
}

/// Receives a message, or as much as the buffer takes.
pub(super) fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<(usize, Message)> {
    let mut control = [MaybeUninit::new(0); 128];
    // SAFETY: the kernel writes bytes to the buffer, which leaves it initialised, and nothing else
    // does until `buffers` is dropped.
    let bytes = unsafe { slice::from_raw_parts_mut(buffer.as_mut_ptr().cast(), buffer.len()) };
    let mut buffers = [MaybeUninitSlice::new(bytes)];
    let mut header = MsgHdrMut::new().with_buffers(&mut buffers).with_control(&mut control);
    let length = socket.recvmsg(&mut header, 0)?;
    let filled = header.control_len();
    // SAFETY: the bytes were initialised above, and the kernel writes bytes only.
    let control = control.map(|byte| unsafe { byte.assume_init() });
    Ok((length, decode(control.get(..filled).unwrap_or_default())))
}

fn encode(message: Message) -> [u8; CONTROL] {
    let flags = if message.is_unordered { UNORDERED } else { 0 };
    let mut control = [0; CONTROL];
    control[..HEADER].copy_from_slice(&header(CONTROL, libc::IPPROTO_SCTP, SNDINFO));
    control[HEADER + 2..HEADER + 4].copy_from_slice(&flags.to_ne_bytes());
    control[HEADER + 4..HEADER + 8].copy_from_slice(&message.protocol);
    control
}

/// Reads the first control data, the only one that is asked for.
fn decode(control: &[u8]) -> Message {
    let found = || {
        let info = control.get(HEADER..)?;
        let expected = header(CONTROL, libc::IPPROTO_SCTP, RCVINFO);
        let is_info = control[size_of::<usize>()..HEADER] == expected[size_of::<usize>()..];
        let flags = u16::from_ne_bytes(info.get(4..6)?.try_into().ok()?);
        let protocol = info.get(8..12)?.try_into().ok()?;
        is_info.then_some(Message { protocol, is_unordered: flags & UNORDERED != 0 })
    };
    found().unwrap_or_default()
}
