//! An interface whose other end is the test.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// An interface without a link layer, in the namespace of the thread that opened it: the test
/// writes the packets that come in, and reads those that go out. It goes with this value.
#[derive(Debug)]
pub struct Tun(File);

impl Tun {
    /// Makes an interface of this name, which is not up.
    ///
    /// # Errors
    ///
    /// If the kernel has no such interfaces, or refuses.
    pub fn open(name: &str) -> io::Result<Self> {
        /// `IFF_TUN | IFF_NO_PI` of `linux/if_tun.h`.
        const FLAGS: libc::c_short = 0x1001;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun")?;
        // SAFETY: an ifreq of zeros is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays 0.
        let room = request.ifr_name.len() - 1;
        for (to, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
            *to = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = FLAGS;
        // SAFETY: the kernel reads and writes the request, which outlives the call.
        match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } {
            0 => Ok(Self(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Lets an IP packet come in. When this returns, the kernel has sent on what it sends on.
    ///
    /// # Errors
    ///
    /// If the interface is down, or the packet is none.
    pub fn receive(&self, packet: &[u8]) -> io::Result<()> {
        (&self.0).write_all(packet)
    }

    /// Returns the next IP packet that has gone out.
    pub fn sent(&self) -> Option<Vec<u8>> {
        let mut packet = vec![0; 2048];
        let length = (&self.0).read(&mut packet).ok()?;
        packet.truncate(length);
        Some(packet)
    }
}
