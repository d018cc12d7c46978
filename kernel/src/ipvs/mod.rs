//! Virtual servers of IPVS, the kernel's own load balancer.
//!
//! [`Ipvs`] speaks the kernel's protocol (generic netlink, `linux/ip_vs.h`). Virtual servers belong
//! to a network namespace.
//!
//! All calls block, for as long as the kernel takes to answer. IPVS has no transactions: each
//! command stands alone.

mod abi;
mod address;
mod batch;
mod real_server;
mod selector;
mod timeouts;
mod virtual_server;

use std::collections::BTreeMap;

use crate::netlink::{Error, KernelError, Socket, Writer, flags, generic};

use self::abi::{attribute, command};

pub use self::{
    batch::{Batch, Refusal},
    real_server::RealServer,
    selector::Selector,
    timeouts::Timeouts,
    virtual_server::VirtualServer,
};

/// So many virtual servers fit into the first part of a list, which the kernel makes 8 KiB long or
/// longer.
const ONE_PART: usize = 16;

/// The number of times that a long list is read, at most.
const READINGS: usize = 20;

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

    /// Returns all virtual servers, in the order of their selectors.
    ///
    /// The kernel sends a long list in parts, and repeats or lacks some when virtual servers come
    /// or go in between, in any network namespace. A long list is therefore read until two readings
    /// agree; if none do, all that were seen are returned.
    ///
    /// # Errors
    /// If the kernel refuses, or describes a virtual server in an unknown way. Without
    /// CAP_NET_ADMIN, the kernel refuses.
    pub fn virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        complete(|| self.read_virtual_servers())
    }

    /// Reads the list of [`Ipvs::virtual_servers`] once: it may repeat some, or lack some.
    ///
    /// # Errors
    /// The same.
    pub fn read_virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        let family = self.family;
        self.socket.dump(
            |request, sequence| {
                request.message(family, flags::DUMP, sequence, |w| {
                    generic::header(w, command::GET_SERVICE, abi::VERSION);
                });
            },
            |found: &mut Vec<VirtualServer>, message| {
                let server = message.attributes(generic::HEADER).find_kind(attribute::SERVICE);
                let server = server.and_then(|server| VirtualServer::read(server.nested()));
                found.push(server.ok_or(Error::Malformed("a virtual server"))?);
                Ok(())
            },
        )
    }

    /// Returns the real servers of a virtual server, in no order; none if there is no such virtual
    /// server.
    ///
    /// The kernel lists the real servers of one virtual server at a time, and answers one such
    /// request of a connection at a time, so requests cannot be sent together.
    ///
    /// # Errors
    /// If the kernel refuses, or describes a real server in an unknown way.
    pub fn real_servers(&mut self, of: &Selector) -> Result<Vec<RealServer>, Error> {
        let family = self.family;
        self.socket.dump(
            |request, sequence| {
                request.message(family, flags::DUMP, sequence, |w| {
                    generic::header(w, command::GET_DESTINATION, abi::VERSION);
                    w.nest(attribute::SERVICE, |w| of.write(w));
                });
            },
            |found: &mut Vec<RealServer>, message| {
                let real = message.attributes(generic::HEADER).find_kind(attribute::DESTINATION);
                let real = real.and_then(|real| RealServer::read(real.nested(), of.family()));
                found.push(real.ok_or(Error::Malformed("a real server"))?);
                Ok(())
            },
        )
    }

    /// Sends the commands of a batch, and returns those that the kernel refused, in the order of
    /// the batch. The kernel carries out all others, also those that follow a refused one.
    ///
    /// # Errors
    /// If the kernel cannot be reached or does not answer. Any part of the batch may have been
    /// carried out then.
    pub fn commit(&mut self, batch: &Batch) -> Result<Vec<Refusal>, Error> {
        let refused = self.socket.pipeline(batch.requests(), Some(self.family))?;
        let refusal = |(index, error): (usize, KernelError)| Refusal { index, errno: error.errno };
        Ok(refused.into_iter().map(refusal).collect())
    }

    /// Returns how long the kernel remembers connections.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        let mut timeouts = None;
        let fill = |w: &mut Writer| generic::header(w, command::GET_CONFIG, abi::VERSION);
        self.socket.ask(self.family, 0, fill, |message| {
            timeouts = Some(Timeouts::read(message.attributes(generic::HEADER)));
            Ok(())
        })?;
        timeouts.ok_or(Error::Malformed("no timeouts"))
    }

    /// Sets how long the kernel remembers connections. What is 0 stays as it is.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. `EINVAL`: a number is so large that the kernel
    /// cannot count its ticks.
    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        self.socket.carry_out(self.family, 0, |w| {
            generic::header(w, command::SET_CONFIG, abi::VERSION);
            timeouts.write(w);
        })
    }

    /// Deletes a virtual server with its real servers. Returns whether the virtual server existed.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn delete(&mut self, selector: &Selector) -> Result<bool, Error> {
        let deleted = self.socket.carry_out(self.family, 0, |w| {
            generic::header(w, command::DELETE_SERVICE, abi::VERSION);
            w.nest(attribute::SERVICE, |w| selector.write(w));
        });
        match deleted {
            Ok(()) => Ok(true),
            Err(Error::Kernel(error)) if error.errno == libc::ESRCH => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Reads a list until it is complete. [`Ipvs::virtual_servers`] has the rule.
fn complete(
    mut read: impl FnMut() -> Result<Vec<VirtualServer>, Error>,
) -> Result<Vec<VirtualServer>, Error> {
    let mut before: Option<Vec<VirtualServer>> = None;
    let mut all = BTreeMap::new();
    for _ in 0..READINGS {
        let mut found = read()?;
        found.sort_unstable_by_key(|server| server.selector);
        found.dedup_by_key(|server| server.selector);
        if found.len() <= ONE_PART || before.as_ref() == Some(&found) {
            return Ok(found);
        }
        // The latest reading of each counts.
        all.extend(found.iter().map(|server| (server.selector, server.clone())));
        before = Some(found);
    }
    Ok(all.into_values().collect())
}

#[cfg(test)]
mod kernel_tests {
    use super::*;

    fn numbered(numbers: impl IntoIterator<Item = u32>) -> Vec<VirtualServer> {
        let server = |number| VirtualServer {
            selector: Selector::Mark { family: libc::AF_INET as u16, mark: number },
            scheduler: "rr".to_owned(),
            flags: 0,
            timeout: 0,
            netmask: u32::MAX,
        };
        numbers.into_iter().map(server).collect()
    }

    /// The result of [`complete`] for these readings, and how many it takes; the last is repeated.
    fn completed(readings: &[Vec<VirtualServer>]) -> (Vec<VirtualServer>, usize) {
        let mut count = 0;
        let found = complete(|| {
            count += 1;
            Ok(readings[(count - 1).min(readings.len() - 1)].clone())
        });
        (found.unwrap(), count)
    }

    #[test]
    fn long_lists_are_read_until_two_readings_agree() {
        let lacking = numbered((0..100).filter(|number| *number != 40));
        let repeating = numbered((0..100).chain(30..50));
        assert_eq!(completed(&[lacking, repeating]), (numbered(0..100), 3));
        assert_eq!(completed(&[numbered(0..16)]), (numbered(0..16), 1), "one part");
    }

    #[test]
    fn readings_that_never_agree_are_complete_together() {
        let lacking = |lost| numbered((0..100).filter(|number| *number != lost));
        let readings: Vec<_> = (0..READINGS as u32).map(lacking).collect();
        assert_eq!(completed(&readings), (numbered(0..100), READINGS));
    }
}
