//! Many commands at once.

use std::{fmt, net::SocketAddr};

use crate::{
    ipvs::{
        RealServer, Selector, VirtualServer,
        abi::{VERSION, attribute, command},
        real_server,
    },
    netlink::{KernelError, Pipeline, Writer, generic},
};

/// Commands, in the order in which the kernel carries them out.
///
/// IPVS has no transactions: the kernel carries out each command on its own, and goes on after one
/// that it refuses.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The messages, without their type, which only a connection has.
    requests: Pipeline,
}

/// A command of a [`Batch`] that the kernel refused. The kernel's numbers:
///
/// | `errno` | Means |
/// |---|---|
/// | `EEXIST` | The virtual server or the real server to be added exists |
/// | `ESRCH` | The virtual server to be changed or deleted does not exist, or that of a real server |
/// | `ENOENT` | The real server to be changed or deleted does not exist; or the kernel does not have the scheduler, of which it has tried to load the module |
/// | `EINVAL` | Among others, a prefix of IPv6 that is not from 1 to 128 bits long; a real server whose address is of another family than the virtual server's, or no unicast address, which all of IPv4 is for the kernel in a network namespace that never had an address; the name of a scheduler of more than 15 bytes |
/// | `ERANGE` | A weight of more than 2,147,483,647 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Refusal {
    /// The index of the command: the first that was added to the batch has 0.
    pub index: usize,
    /// The error number, positive.
    pub errno: i32,
}

impl Batch {
    /// Adds a virtual server, which has no real servers then.
    pub fn add_server(&mut self, server: &VirtualServer) {
        self.server(command::NEW_SERVICE, |w| server.write(w));
    }

    /// Changes everything but the selector of a virtual server. Its real servers and its
    /// connections stay.
    pub fn edit_server(&mut self, server: &VirtualServer) {
        self.server(command::SET_SERVICE, |w| server.write(w));
    }

    /// Deletes a virtual server with its real servers.
    pub fn delete_server(&mut self, selector: &Selector) {
        self.server(command::DELETE_SERVICE, |w| selector.write(w));
    }

    /// Adds a real server to a virtual server.
    pub fn add_real(&mut self, of: &Selector, real: &RealServer) {
        self.real(command::NEW_DESTINATION, of, |w| real.write(w));
    }

    /// Changes the weight of a real server, and has it masquerade.
    pub fn edit_real(&mut self, of: &Selector, real: &RealServer) {
        self.real(command::SET_DESTINATION, of, |w| real.write(w));
    }

    /// Deletes a real server of a virtual server. The kernel drops the packets of connections that
    /// the real server still has, unless the sysctl `net.ipv4.vs.expire_nodest_conn` has it end
    /// them.
    pub fn delete_real(&mut self, of: &Selector, address: SocketAddr) {
        self.real(command::DELETE_DESTINATION, of, |w| real_server::write_address(address, w));
    }

    /// The length of what is sent to the kernel, in bytes.
    pub fn bytes(&self) -> usize {
        self.requests.bytes()
    }

    /// The commands, in messages without a type.
    pub(crate) fn requests(&self) -> &Pipeline {
        &self.requests
    }

    fn server(&mut self, command: u8, fill: impl FnOnce(&mut Writer)) {
        self.message(command, |w| w.nest(attribute::SERVICE, fill));
    }

    fn real(&mut self, command: u8, of: &Selector, fill: impl FnOnce(&mut Writer)) {
        self.message(command, |w| {
            w.nest(attribute::SERVICE, |w| of.write(w));
            w.nest(attribute::DESTINATION, fill);
        });
    }

    fn message(&mut self, command: u8, fill: impl FnOnce(&mut Writer)) {
        self.requests.request(0, 0, |w| {
            generic::header(w, command, VERSION);
            fill(w);
        });
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        KernelError { errno: self.errno, sequence: 0, message: None, offset: None }.fmt(f)
    }
}

impl std::error::Error for Refusal {}
