//! Virtual servers of IPVS, the kernel's own load balancer.
//!
//! [`Ipvs`] speaks the kernel's protocol (generic netlink, `linux/ip_vs.h`). Virtual servers belong
//! to a network namespace.
//!
//! All calls block, for as long as the kernel takes to answer. IPVS has no transactions: each
//! request stands alone.

mod abi;
mod virtual_server;

use switchyard_netlink::{Error, Socket, Writer, flags, generic};

pub use virtual_server::Selector;

/// A connection to IPVS, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    /// The message type that the kernel assigned to IPVS.
    family: u16,
}

impl Ipvs {
    /// Opens a connection; `None` if the kernel has no IPVS. The kernel may load the module `ip_vs`
    /// to answer.
    ///
    /// # Errors
    /// If the kernel cannot be reached or does not answer.
    pub fn open() -> Result<Option<Self>, Error> {
        let mut socket = Socket::open(libc::NETLINK_GENERIC)?;
        let family = generic::family(&mut socket, abi::FAMILY_NAME)?;
        Ok(family.map(|family| Self { socket, family }))
    }

    /// Returns the selectors of all virtual servers, in no order.
    ///
    /// # Errors
    /// If the kernel refuses, or describes a virtual server in an unknown way. Without
    /// CAP_NET_ADMIN, the kernel refuses.
    pub fn virtual_servers(&mut self) -> Result<Vec<Selector>, Error> {
        let family = self.family;
        self.socket.dump(
            |sequence| list(family, sequence).as_slice().to_vec(),
            |found: &mut Vec<Selector>, message| {
                let service = message.attributes(generic::HEADER).find_kind(abi::SERVICE);
                let selector = service.and_then(|service| Selector::read(service.nested()));
                found.push(selector.ok_or(Error::Malformed("a virtual server"))?);
                Ok(())
            },
        )
    }

    /// Deletes a virtual server with its real servers. Returns whether the virtual server existed.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn delete(&mut self, selector: &Selector) -> Result<bool, Error> {
        let sequence = self.socket.sequences(1);
        let request = delete(self.family, selector, sequence);
        match self.socket.request(request.as_slice(), sequence, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(Error::Kernel(error)) if error.errno == libc::ESRCH => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns a request for all virtual servers.
fn list(family: u16, sequence: u32) -> Writer {
    let mut writer = Writer::new();
    writer.message(family, flags::DUMP, sequence, |w| {
        generic::header(w, abi::GET_SERVICE, abi::VERSION);
    });
    writer
}

/// Returns a request to delete a virtual server.
fn delete(family: u16, selector: &Selector, sequence: u32) -> Writer {
    let mut writer = Writer::new();
    writer.message(family, flags::ACK, sequence, |w| {
        generic::header(w, abi::DELETE_SERVICE, abi::VERSION);
        w.nest(abi::SERVICE, |w| selector.write(w));
    });
    writer
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn requests_are_those_of_the_kernels_header() {
        if cfg!(target_endian = "big") {
            return;
        }
        #[rustfmt::skip]
        let expected = [
            20, 0, 0, 0, 0x21, 0, 1, 3, 7, 0, 0, 0, 0, 0, 0, 0,
            4, 1, 0, 0,
        ];
        assert_eq!(list(0x21, 7).as_slice(), expected);
        let selector = Selector::Address {
            protocol: 17,
            ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
            port: 53,
        };
        #[rustfmt::skip]
        let expected = [
            68, 0, 0, 0, 0x21, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0,
            3, 1, 0, 0,
            48, 0, 1, 0x80,
            6, 0, 1, 0, 2, 0, 0, 0,
            6, 0, 2, 0, 17, 0, 0, 0,
            20, 0, 3, 0, 10, 96, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            6, 0, 4, 0, 0, 53, 0, 0,
        ];
        assert_eq!(delete(0x21, &selector, 7).as_slice(), expected);
    }

    /// Where the kernel has IPVS, a new namespace has no virtual servers. Not where it would have to
    /// load the module, which would stay.
    #[test]
    fn the_kernel_answers() {
        if !std::path::Path::new("/proc/net/ip_vs").exists() {
            return;
        }
        test_netns::in_namespace(|| {
            let Some(mut ipvs) = Ipvs::open().unwrap() else { return };
            assert_eq!(ipvs.virtual_servers().unwrap(), []);
            assert!(
                !ipvs.delete(&Selector::Mark { family: libc::AF_INET as u16, mark: 1 }).unwrap()
            );
        });
    }
}
