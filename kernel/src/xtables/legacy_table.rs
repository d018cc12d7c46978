//! Tables of iptables-legacy, read and replaced by socket options
//! (`linux/netfilter_ipv4/ip_tables.h`).

use std::{
    fs, io,
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use switchyard_model::{IpFamily, PerFamily};

use crate::{families::family_number, xtables::Table};

/// The number of hooks (`NF_INET_NUMHOOKS`).
pub(crate) const HOOKS: usize = 5;

/// The number of times that a table is read again that changed in between.
const ATTEMPTS: usize = 10;

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`, `IPT_SO_SET_REPLACE`, `IPT_SO_SET_ADD_COUNTERS`, whose
/// numbers are the same for IPv6.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const SET_REPLACE: libc::c_int = 64;
const SET_ADD_COUNTERS: libc::c_int = 65;

/// `IPT_SO_GET_REVISION_MATCH`, `IP6T_SO_GET_REVISION_MATCH`.
const GET_REVISION_MATCH: PerFamily<libc::c_int> = PerFamily { v4: 66, v6: 68 };

/// `struct xt_counters`: packets, bytes.
pub(crate) type Counters = [u64; 2];

/// `struct ipt_getinfo`, which is the same as `struct ip6t_getinfo`. Most changes of a table change
/// it.
#[repr(C)]
#[derive(Clone, Copy, Hash)]
pub(crate) struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; HOOKS],
    underflow: [u32; HOOKS],
    entries: u32,
    size: u32,
}

impl Info {
    /// Whether there are entries besides the policies of the built-in chains and the one that ends
    /// each table.
    pub(crate) fn has_rules(&self) -> bool {
        self.entries > self.valid_hooks.count_ones() + 1
    }
}

/// `struct ipt_get_entries`, without the entries.
#[repr(C)]
struct GetEntries {
    name: [u8; 32],
    size: u32,
    /// Aligned as entries are.
    entries: [Counters; 0],
}

/// `struct ipt_replace`, without the entries.
#[repr(C)]
struct Replace {
    name: [u8; 32],
    valid_hooks: u32,
    entries: u32,
    size: u32,
    hook_entry: [u32; HOOKS],
    underflow: [u32; HOOKS],
    old_entries: u32,
    old_counters: *mut Counters,
    new: [Counters; 0],
}

/// `struct xt_counters_info`, without the counters.
#[repr(C)]
struct AddCounters {
    name: [u8; 32],
    count: u32,
    counters: [Counters; 0],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) valid_hooks: u32,
    pub(crate) hook_entry: [u32; HOOKS],
    pub(crate) underflow: [u32; HOOKS],
    /// The number of entries in `bytes`.
    pub(crate) entries: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The kernel's interface to one table.
pub(crate) struct LegacyTable {
    pub(crate) family: IpFamily,
    pub(crate) table: Table,
    socket: OwnedFd,
}

/// Returns the names of a family's tables, one to a line. Asking for any other table would make it,
/// which slows every packet down. Only root may read them.
pub(crate) fn table_names(family: IpFamily) -> io::Result<String> {
    fs::read_to_string(match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    })
}

impl LegacyTable {
    /// Opens a socket to a table.
    pub(crate) fn open(family: IpFamily, table: Table) -> io::Result<Self> {
        let domain = family_number(family).into();
        // Any socket will do; a raw one would need another capability.
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so that nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { family, table, socket })
    }

    /// Turns to another table of the family, with the same socket.
    pub(crate) fn with_table(self, table: Table) -> Self {
        Self { table, ..self }
    }

    fn level(&self) -> libc::c_int {
        match self.family {
            IpFamily::V4 => libc::IPPROTO_IP,
            IpFamily::V6 => libc::IPPROTO_IPV6,
        }
    }

    fn name(&self) -> [u8; 32] {
        let mut name = [0; 32];
        let text = self.table.name().as_bytes();
        name[..text.len()].copy_from_slice(text);
        name
    }

    fn get(&self, option: libc::c_int, buffer: &mut [u8]) -> io::Result<()> {
        let mut length = buffer.len() as libc::socklen_t;
        // SAFETY: the kernel reads and writes at most `length` bytes of the buffer.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                self.level(),
                option,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn set(&self, option: libc::c_int, buffer: &[u8]) -> io::Result<()> {
        // SAFETY: the kernel reads the buffer, and writes to nothing but the counters whose address
        // `replace` puts into it, which are alive and as many as the buffer states.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                self.level(),
                option,
                buffer.as_ptr().cast(),
                buffer.len() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether the kernel has a match, or can load its module.
    pub(crate) fn has_match(&self, name: &str) -> io::Result<bool> {
        // `struct xt_get_revision`: the name, and the revision.
        let mut buffer = [0; 30];
        let length = name.len().min(28);
        buffer[..length].copy_from_slice(&name.as_bytes()[..length]);
        match self.get(*GET_REVISION_MATCH.get(self.family), &mut buffer) {
            Ok(()) => Ok(true),
            // It has other revisions.
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the size of the table, the number of its entries, and where its built-in chains are.
    pub(crate) fn info(&self) -> io::Result<Info> {
        let mut buffer = [0; size_of::<Info>()];
        buffer[..32].copy_from_slice(&self.name());
        self.get(GET_INFO, &mut buffer)?;
        // SAFETY: all fields are numbers, for which any bytes will do, and there are as many.
        Ok(unsafe { buffer.as_ptr().cast::<Info>().read_unaligned() })
    }

    /// Reads the whole table. The error is `EAGAIN` if other programs change the table faster than
    /// that.
    pub(crate) fn read(&self) -> io::Result<Contents> {
        for _ in 0..ATTEMPTS {
            let info = self.info()?;
            const BEFORE: usize = offset_of!(GetEntries, entries);
            let mut buffer = vec![0; BEFORE + info.size as usize];
            buffer[..32].copy_from_slice(&self.name());
            let size = offset_of!(GetEntries, size);
            buffer[size..size + 4].copy_from_slice(&info.size.to_ne_bytes());
            match self.get(GET_ENTRIES, &mut buffer) {
                Ok(()) => {
                    return Ok(Contents {
                        valid_hooks: info.valid_hooks,
                        hook_entry: info.hook_entry,
                        underflow: info.underflow,
                        entries: info.entries,
                        bytes: buffer.split_off(BEFORE),
                    });
                }
                // The size has changed.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Replaces the table. Returns the counters that the old entries had. The error is `EAGAIN` if
    /// the number of entries is not that of `old` any more.
    pub(crate) fn replace(&self, old: &Contents, new: &Contents) -> io::Result<Vec<Counters>> {
        let mut counters: Vec<Counters> = vec![[0; 2]; old.entries as usize];
        let size = u32::try_from(new.bytes.len()).map_err(io::Error::other)?;
        let mut buffer = vec![0; size_of::<Replace>()];
        let mut put = |at: usize, bytes: &[u8]| buffer[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(Replace, name), &self.name());
        put(offset_of!(Replace, valid_hooks), &new.valid_hooks.to_ne_bytes());
        put(offset_of!(Replace, entries), &new.entries.to_ne_bytes());
        put(offset_of!(Replace, size), &size.to_ne_bytes());
        put(offset_of!(Replace, hook_entry), &numbers(&new.hook_entry));
        put(offset_of!(Replace, underflow), &numbers(&new.underflow));
        put(offset_of!(Replace, old_entries), &old.entries.to_ne_bytes());
        let address = counters.as_mut_ptr().expose_provenance();
        put(offset_of!(Replace, old_counters), &address.to_ne_bytes());
        buffer.extend_from_slice(&new.bytes);
        self.set(SET_REPLACE, &buffer)?;
        Ok(counters)
    }

    /// Adds to the counters of the entries, in order.
    pub(crate) fn add_counters(&self, counters: &[Counters]) -> io::Result<()> {
        let count = u32::try_from(counters.len()).unwrap_or(u32::MAX);
        let mut buffer = vec![0; offset_of!(AddCounters, counters)];
        buffer[..32].copy_from_slice(&self.name());
        let at = offset_of!(AddCounters, count);
        buffer[at..at + 4].copy_from_slice(&count.to_ne_bytes());
        buffer.extend(counters.iter().flatten().flat_map(|number| number.to_ne_bytes()));
        self.set(SET_ADD_COUNTERS, &buffer)
    }
}

fn numbers(numbers: &[u32; HOOKS]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}
