//! Owned addresses on Windows: those of the loopback interface, by the IP Helper API.
//!
//! The functions are those of `netioapi.h`: `CreateUnicastIpAddressEntry`,
//! `DeleteUnicastIpAddressEntry` and `GetUnicastIpAddressTable`. They need the rights of an
//! administrator. Addresses of this mode have a prefix that spans the whole address, and are never
//! chosen as a source (`SkipAsSource`), by which they are recognised.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr, slice,
};

use windows_sys::Win32::{
    Foundation::{ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR},
    NetworkManagement::IpHelper::{
        CreateUnicastIpAddressEntry, DeleteUnicastIpAddressEntry, FreeMibTable,
        GetUnicastIpAddressTable, InitializeUnicastIpAddressEntry, MIB_UNICASTIPADDRESS_ROW,
        MIB_UNICASTIPADDRESS_TABLE,
    },
    Networking::WinSock::{AF_INET, AF_INET6, AF_UNSPEC, IpDadStatePreferred, SOCKADDR_INET},
};

use super::{OwnedAddresses, SystemError};

/// The interface of loopback addresses has the index 1.
const LOOPBACK_INDEX: u32 = 1;
/// A lifetime without an end.
const FOREVER: u32 = u32::MAX;

struct LoopbackInterface;

/// Opens nothing: each call stands alone.
pub(crate) fn open() -> Result<Box<dyn OwnedAddresses>, SystemError> {
    Ok(Box::new(LoopbackInterface))
}

/// Finds out whether this process may add addresses: adds one for documentation (RFC 5737), and
/// removes the address.
pub(crate) fn probe() -> Result<(), SystemError> {
    let ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 83));
    add(ip)
        .and_then(|()| remove(ip))
        .map_err(|error| format!("addresses cannot be added: {error}").into())
}

/// Finds nothing: an address can be listened on at every port.
pub(crate) fn probe_ports() -> Result<(), SystemError> {
    Ok(())
}

/// Removes the addresses of this mode.
pub(crate) fn clean_up() -> Result<(), SystemError> {
    for ip in list(true)? {
        remove(ip)?;
    }
    Ok(())
}

impl OwnedAddresses for LoopbackInterface {
    fn ensure(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        Ok(list(true)?)
    }

    fn others(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        Ok(list(false)?)
    }

    fn change(
        &mut self,
        added: &[IpAddr],
        removed: &[IpAddr],
    ) -> Result<BTreeMap<IpAddr, String>, SystemError> {
        let refused = |ip: &IpAddr, done: io::Result<()>| Some((*ip, done.err()?.to_string()));
        let added = added.iter().filter_map(|ip| refused(ip, add(*ip)));
        Ok(added.chain(removed.iter().filter_map(|ip| refused(ip, remove(*ip)))).collect())
    }
}

/// Adds an address. One that is there is no error.
fn add(ip: IpAddr) -> io::Result<()> {
    let row = row(ip);
    // SAFETY: the row is initialized, and lives until the call returns.
    let result = unsafe { CreateUnicastIpAddressEntry(&row) };
    check(result, ERROR_OBJECT_ALREADY_EXISTS)
}

/// Removes an address. One that is not there is no error.
fn remove(ip: IpAddr) -> io::Result<()> {
    let row = row(ip);
    // SAFETY: the row is initialized, and lives until the call returns.
    let result = unsafe { DeleteUnicastIpAddressEntry(&row) };
    check(result, ERROR_NOT_FOUND)
}

fn check(result: u32, harmless: u32) -> io::Result<()> {
    match result {
        NO_ERROR => Ok(()),
        code if code == harmless => Ok(()),
        code => Err(io::Error::from_raw_os_error(code as i32)),
    }
}

/// Lists the addresses of this mode, or all others.
fn list(own: bool) -> io::Result<BTreeSet<IpAddr>> {
    let mut table: *mut MIB_UNICASTIPADDRESS_TABLE = ptr::null_mut();
    // SAFETY: the pointer is set to a table of the system's if the call succeeds.
    let result = unsafe { GetUnicastIpAddressTable(AF_UNSPEC, &mut table) };
    check(result, ERROR_NOT_FOUND)?;
    if table.is_null() {
        return Ok(BTreeSet::new());
    }
    // SAFETY: the system's table has as many rows as it states, and is freed below alone.
    let rows =
        unsafe { slice::from_raw_parts((*table).Table.as_ptr(), (*table).NumEntries as usize) };
    let addresses = rows.iter().filter(|row| is_own(row) == own).filter_map(address).collect();
    // SAFETY: the table comes from the system, and no reference to it is left.
    unsafe { FreeMibTable(table.cast()) };
    Ok(addresses)
}

fn is_own(row: &MIB_UNICASTIPADDRESS_ROW) -> bool {
    row.InterfaceIndex == LOOPBACK_INDEX && row.SkipAsSource
}

fn address(row: &MIB_UNICASTIPADDRESS_ROW) -> Option<IpAddr> {
    // SAFETY: the family, which all variants begin with, selects the variant that is read.
    unsafe {
        match row.Address.si_family {
            AF_INET => {
                let bits = row.Address.Ipv4.sin_addr.S_un.S_addr;
                Some(Ipv4Addr::from(u32::from_be(bits)).into())
            }
            AF_INET6 => Some(Ipv6Addr::from(row.Address.Ipv6.sin6_addr.u.Byte).into()),
            _ => None,
        }
    }
}

/// The row of a single address of the loopback interface.
fn row(ip: IpAddr) -> MIB_UNICASTIPADDRESS_ROW {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the row is large enough, and any bits are a row.
    unsafe { InitializeUnicastIpAddressEntry(&mut row) };
    row.InterfaceIndex = LOOPBACK_INDEX;
    row.Address = SOCKADDR_INET::default();
    match ip {
        IpAddr::V4(ip) => {
            row.Address.Ipv4.sin_family = AF_INET;
            row.Address.Ipv4.sin_addr.S_un.S_addr = u32::from(ip).to_be();
            row.OnLinkPrefixLength = 32;
        }
        IpAddr::V6(ip) => {
            row.Address.Ipv6.sin6_family = AF_INET6;
            row.Address.Ipv6.sin6_addr.u.Byte = ip.octets();
            row.OnLinkPrefixLength = 128;
        }
    }
    row.DadState = IpDadStatePreferred;
    row.SkipAsSource = true;
    row.ValidLifetime = FOREVER;
    row.PreferredLifetime = FOREVER;
    row
}
