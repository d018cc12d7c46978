//! A device that holds addresses, of the type dummy or, where the kernel has none, bridge.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use switchyard_model::IpFamily;

use crate::{
    netlink::{Error, KernelError, Pipeline, Socket, Writer, flags},
    route::{
        list::{
            self, Link,
            abi::{address, link},
        },
        local_networks::{is_local, local_networks},
    },
};

/// A device of the type dummy, by its name, in the network namespace in which the value was opened.
/// With [`DummyDevice::or_bridge`], the device may be a bridge without ports, which is the same to
/// its addresses.
///
/// Such a device sends and receives nothing. Its addresses are addresses of the node, also while
/// the device is down, which is how it is made here: a device that is up would have an address of
/// its own in IPv6.
///
/// All calls block, for as long as the kernel takes to answer.
#[derive(Debug)]
pub struct DummyDevice {
    name: &'static str,
    /// The types that the device may have, the best first.
    kinds: &'static [&'static str],
    /// The alias by which the device is known as the program's own.
    alias: Option<&'static str>,
    socket: Socket,
}

/// Actions of which several may fail.
pub(super) const OPEN: &str = "open an rtnetlink socket";
pub(super) const RECEIVE: &str = "receive changes of addresses";
const LIST: &str = "list the addresses of the node's devices";
const ROUTES: &str = "look up the routes to addresses";

/// The most addresses whose routes are looked up one by one: a list is the whole table.
const FEW: usize = 16;
/// The time between two looks for a route, which doubles with each up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// Why something about a [`DummyDevice`], or about the addresses of devices, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel refused a request, or did not answer. `EOPNOTSUPP` where a device is made: the
    /// kernel has no devices of this type.
    #[error("cannot {action}")]
    Failed {
        /// The action, in words.
        action: String,
        /// The failed operation.
        #[source]
        source: Error,
    },
    /// A device of another type has the name.
    #[error("the device {device} is {kind}, where one of the type {} is needed", wanted.join(" or "))]
    OtherType {
        /// The name of the device.
        device: &'static str,
        /// Its type.
        kind: String,
        /// The types that it may have.
        wanted: &'static [&'static str],
    },
    /// There is no device of this name.
    #[error("there is no device {device}")]
    Missing {
        /// The name of the device.
        device: &'static str,
    },
    /// The kernel refused an address. All other addresses were changed nevertheless, but for those
    /// that were refused, too.
    #[error("cannot {action} the device {device}: {address}")]
    Address {
        /// The name of the device.
        device: &'static str,
        /// The operation: "add an address to", "remove an address from".
        action: &'static str,
        /// The address.
        address: IpAddr,
        /// The answer of the kernel.
        #[source]
        source: KernelError,
    },
}

/// Returns the error of an action for the error of a request.
pub(super) fn failed(action: impl Into<String>) -> impl FnOnce(Error) -> DeviceError {
    let action = action.into();
    |source| DeviceError::Failed { action, source }
}

impl DummyDevice {
    /// Opens a socket in the network namespace of the thread. The device need not exist.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open(name: &'static str) -> Result<Self, DeviceError> {
        let socket = Socket::open(libc::NETLINK_ROUTE).map_err(failed(OPEN))?;
        // Kernels before 4.20 list the addresses of all devices, of which others are dropped below.
        let _ = socket.check_strictly();
        Ok(Self { name, kinds: &[link::DUMMY], alias: None, socket })
    }

    /// Lets the device be a bridge, if the kernel has no devices of the type dummy.
    pub fn or_bridge(self) -> Self {
        Self { kinds: &[link::DUMMY, link::BRIDGE], ..self }
    }

    /// Gives the device an alias (`ip link show` has it), so that
    /// [`delete_own`](Self::delete_own) knows it again.
    pub fn with_alias(self, alias: &'static str) -> Self {
        Self { alias: Some(alias), ..self }
    }

    /// Makes the device if it is missing, and gives it its alias. Returns whether it was made.
    ///
    /// # Errors
    /// [`DeviceError::OtherType`] if a device of another type has the name; otherwise if the kernel
    /// refuses or does not answer.
    pub fn ensure(&mut self) -> Result<bool, DeviceError> {
        let made = self.make()?;
        let Some(alias) = self.alias else { return Ok(made) };
        if made || self.find()?.is_some_and(|link| link.alias.as_deref() != Some(alias)) {
            let device = self.name;
            let named = self.socket.carry_out(libc::RTM_NEWLINK, 0, |w| {
                w.raw(&link::NO_INDEX);
                w.string(link::NAME, device);
                w.string(link::ALIAS, alias);
            });
            named.map_err(failed(format!("give the device {device} an alias")))?;
        }
        Ok(made)
    }

    fn make(&mut self) -> Result<bool, DeviceError> {
        if let Some(link) = self.find()? {
            return self.check_type(&link).map(|()| false);
        }
        let (device, kinds) = (self.name, self.kinds);
        let mut last = None;
        for &kind in kinds {
            let made =
                self.socket.carry_out(libc::RTM_NEWLINK, flags::CREATE | flags::EXCLUSIVE, |w| {
                    w.raw(&link::NO_INDEX);
                    w.string(link::NAME, device);
                    w.nest(link::INFO, |w| w.string(link::INFO_KIND, kind));
                });
            let Err(source) = made else { return Ok(true) };
            let errno = source.errno();
            last = Some(failed(format!("make the device {device} of the type {kind}"))(source));
            match errno {
                Some(libc::EOPNOTSUPP) => {}
                // Another program was faster.
                Some(libc::EEXIST) => {
                    if let Some(link) = self.find()? {
                        return self.check_type(&link).map(|()| false);
                    }
                    break;
                }
                _ => break,
            }
        }
        Err(last.unwrap_or(DeviceError::Missing { device }))
    }

    /// Whether a device of this name exists, whatever its type.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn exists(&mut self) -> Result<bool, DeviceError> {
        Ok(self.find()?.is_some())
    }

    /// Deletes the device with its addresses, whatever its type. Returns whether the device
    /// existed.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn delete(&mut self) -> Result<bool, DeviceError> {
        let name = self.name;
        let deleted = self.socket.carry_out(libc::RTM_DELLINK, 0, |w| {
            w.raw(&link::NO_INDEX);
            w.string(link::NAME, name);
        });
        match deleted {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(failed(format!("delete the device {name}"))(error)),
        }
    }

    /// Deletes the device with its addresses, if its type and its alias are those of this value.
    /// Returns whether a device of this name is left: that of another program, or one whose maker
    /// ended before it gave it the alias.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn delete_own(&mut self) -> Result<bool, DeviceError> {
        let Some(link) = self.find()? else { return Ok(false) };
        let is_own = self.check_type(&link).is_ok() && link.alias.as_deref() == self.alias;
        if is_own {
            self.delete()?;
        }
        Ok(!is_own)
    }

    /// Returns the addresses of the device, without link-local ones of IPv6; none if the device is
    /// missing.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        let Some(link) = self.find()? else { return Ok(BTreeSet::new()) };
        let is_its = |index: u32, ip: IpAddr| index == link.index && !is_link_local(ip);
        match list::addresses(&mut self.socket, link.index, is_its) {
            Ok(addresses) => Ok(addresses),
            // Deleted in the meantime.
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(BTreeSet::new()),
            Err(error) => Err(failed(LIST)(error)),
        }
    }

    /// Returns the addresses of all other devices of the network namespace, those of loopback and
    /// link-local ones among them.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn others(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        let index = self.find()?.map_or(0, |link| link.index);
        list::addresses(&mut self.socket, 0, |of, _| of != index).map_err(failed(LIST))
    }

    /// Adds addresses to the device, and then removes addresses: as single addresses, without
    /// duplicate address detection. The kernel never chooses an added address as the source of
    /// packets to other hosts: in IPv4 by the scope `host`, which an address that is there already
    /// does not get; in IPv6 as a deprecated address. An address that is there, or gone, already is
    /// no error. The route to an address of IPv6 follows some time later
    /// ([`DummyDevice::await_local`]).
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if there is no such device; [`DeviceError::Address`] if the kernel
    /// refuses an address, as it does with those of IPv6 if that is switched off; otherwise if the
    /// kernel does not answer.
    pub fn change(&mut self, add: &[IpAddr], remove: &[IpAddr]) -> Result<(), DeviceError> {
        self.change_each(add, remove)?.into_iter().next().map_or(Ok(()), Err)
    }

    /// Does the same as [`DummyDevice::change`], and returns all addresses that the kernel refuses,
    /// each as a [`DeviceError::Address`].
    ///
    /// # Errors
    /// [`DeviceError::Missing`] if there is no such device; otherwise if the kernel does not
    /// answer.
    pub fn change_each(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError> {
        let device = self.name;
        let Some(link) = self.find()? else { return Err(DeviceError::Missing { device }) };
        let mut requests = Pipeline::default();
        for ip in add {
            requests.request(libc::RTM_NEWADDR, flags::CREATE | flags::REPLACE, |w| {
                write_address(link.index, *ip, single(*ip), w);
            });
        }
        for ip in remove {
            requests
                .request(libc::RTM_DELADDR, 0, |w| write_address(link.index, *ip, single(*ip), w));
        }
        let refused = self.send(&requests)?;
        let mut errors = Vec::new();
        let mut absent = BTreeSet::new();
        for (number, source) in refused {
            let (action, address) = match number.checked_sub(add.len()) {
                None => ("add an address to", add.get(number)),
                Some(number) => ("remove an address from", remove.get(number)),
            };
            let Some(&address) = address else { continue };
            match (source.errno, number < add.len()) {
                (libc::EEXIST, true) => {}
                (libc::EADDRNOTAVAIL, false) => drop(absent.insert(address)),
                _ => errors.push(DeviceError::Address { device, action, address, source }),
            }
        }
        absent.retain(IpAddr::is_ipv6);
        errors.extend(self.remove_with_networks(link.index, &absent)?);
        Ok(errors)
    }

    /// Waits until the kernel takes packets to all of these addresses of IPv6 for the node's, and
    /// returns those that it does not after this time. Those of IPv4 are the node's at once.
    ///
    /// The kernel makes the routes of addresses about in the order in which the addresses were
    /// added. So the last one is asked for until it is there, and then the others, or for many a
    /// list.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn await_local(
        &mut self,
        ips: &[IpAddr],
        patience: Duration,
    ) -> Result<Vec<IpAddr>, DeviceError> {
        let mut left: Vec<IpAddr> = ips.iter().copied().filter(IpAddr::is_ipv6).collect();
        let (deadline, mut pause) = (Instant::now() + patience, FIRST_PAUSE);
        while let Some(last) = left.last() {
            let is_over = Instant::now() >= deadline;
            if is_over || is_local(&mut self.socket, *last).map_err(failed(ROUTES))? {
                left = self.not_local(left).map_err(failed(ROUTES))?;
            }
            if is_over {
                break;
            }
            if !left.is_empty() {
                thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
            }
        }
        Ok(left)
    }

    /// Returns those of these addresses of IPv6 that are not the node's by its routes.
    fn not_local(&mut self, ips: Vec<IpAddr>) -> Result<Vec<IpAddr>, Error> {
        let mut left = Vec::new();
        if ips.len() <= FEW {
            for ip in ips {
                if !is_local(&mut self.socket, ip)? {
                    left.push(ip);
                }
            }
            return Ok(left);
        }
        let listed = local_networks(&mut self.socket, IpFamily::V6)?;
        let is_single = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
        let (single, wide): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_single);
        let single: BTreeSet<IpAddr> = single.into_iter().map(|net| net.addr()).collect();
        let is_local = |ip: &IpAddr| single.contains(ip) || wide.iter().any(|net| net.contains(ip));
        left.extend(ips.into_iter().filter(|ip| !is_local(ip)));
        Ok(left)
    }

    /// Removes those of these addresses of IPv6 that are there with a network: the kernel finds
    /// them by address and length together.
    fn remove_with_networks(
        &mut self,
        index: u32,
        ips: &BTreeSet<IpAddr>,
    ) -> Result<Vec<DeviceError>, DeviceError> {
        if ips.is_empty() {
            return Ok(Vec::new());
        }
        let device = self.name;
        let is_its = |of: u32, ip: IpAddr| of == index && ips.contains(&ip);
        let found = list::with_prefixes(&mut self.socket, index, is_its);
        let found = found.map_err(failed(LIST))?;
        let mut requests = Pipeline::default();
        for (ip, prefix) in &found {
            requests.request(libc::RTM_DELADDR, 0, |w| write_address(index, *ip, *prefix, w));
        }
        let refused = self.send(&requests)?;
        // An address that has gone meanwhile is no error.
        let refused = refused.into_iter().filter(|(_, e)| e.errno != libc::EADDRNOTAVAIL);
        let error = |(number, source): (usize, KernelError)| {
            let (address, _) = *found.get(number)?;
            let action = "remove an address from";
            Some(DeviceError::Address { device, action, address, source })
        };
        Ok(refused.filter_map(error).collect())
    }

    /// Sends requests about addresses. Returns those that the kernel refused, by their numbers.
    fn send(&mut self, requests: &Pipeline) -> Result<Vec<(usize, KernelError)>, DeviceError> {
        let action = format!("change the addresses of the device {}", self.name);
        self.socket.pipeline(requests, None).map_err(failed(action))
    }

    fn check_type(&self, link: &Link) -> Result<(), DeviceError> {
        let kind = match link.kind.as_deref() {
            Some(kind) if self.kinds.contains(&kind) => return Ok(()),
            Some(kind) => format!("of the type {kind}"),
            None => "hardware".to_owned(),
        };
        Err(DeviceError::OtherType { device: self.name, kind, wanted: self.kinds })
    }

    fn find(&mut self) -> Result<Option<Link>, DeviceError> {
        let device = self.name;
        list::find(&mut self.socket, device)
            .map_err(failed(format!("look for the device {device}")))
    }
}

/// The length of the network of a single address.
fn single(ip: IpAddr) -> u8 {
    if ip.is_ipv6() { 128 } else { 32 }
}

/// Appends what a request about an address contains.
fn write_address(index: u32, ip: IpAddr, prefix: u8, writer: &mut Writer) {
    match ip {
        IpAddr::V4(ip) => {
            writer.raw(&address::header(
                libc::AF_INET as u8,
                prefix,
                0,
                libc::RT_SCOPE_HOST,
                index,
            ));
            writer.attribute(address::LOCAL, &ip.octets());
        }
        IpAddr::V6(ip) => {
            let family = libc::AF_INET6 as u8;
            writer.raw(&address::header(family, prefix, address::NO_DETECTION, 0, index));
            writer.attribute(address::LOCAL, &ip.octets());
            writer.attribute(address::LIFETIMES, &address::NEVER_PREFERRED);
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}
