//! Rules of iptables-legacy: tables of x_tables, each of which is read and replaced as a whole.
//!
//! A table is a row of entries. Those of a built-in chain stand between where its hook begins and
//! its policy; a chain of one's own begins with an entry whose target is `ERROR` and has the
//! chain's name, and ends with one that returns. A jump says where, in bytes from the start of the
//! table, the first rule of the other chain is.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File, OpenOptions, TryLockError},
    io,
    mem::{offset_of, size_of},
    ops::Range,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::Duration,
};

use proxy_core::model::IpFamily;

use super::{ATTEMPTS, LeftoverError, is_our_jump, is_ours};
use crate::layout::Table;

/// `IPT_SO_GET_INFO`, `IPT_SO_GET_ENTRIES`, `IPT_SO_SET_REPLACE`, `IPT_SO_SET_ADD_COUNTERS`; the
/// same in IPv6.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;
const SET_REPLACE: libc::c_int = 64;
const SET_ADD_COUNTERS: libc::c_int = 65;

/// The built-in chains, by hook (`NF_INET_PRE_ROUTING` to `NF_INET_POST_ROUTING`).
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The lock of the programs, and how long to wait for it.
const LOCK: &str = "/run/xtables.lock";
const LOCK_ATTEMPTS: usize = 50;
const LOCK_WAIT: Duration = Duration::from_millis(100);

/// `struct xt_counters`: packets, bytes.
type Counters = [u64; 2];

/// `struct ipt_getinfo`
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    name: [u8; 32],
    valid_hooks: u32,
    hook_entry: [u32; HOOKS.len()],
    underflow: [u32; HOOKS.len()],
    entries: u32,
    size: u32,
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
    hook_entry: [u32; HOOKS.len()],
    underflow: [u32; HOOKS.len()],
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

/// `struct ipt_entry`, without matches and target; what is not used is bytes.
#[repr(C)]
struct Entry4 {
    ip: [u32; 21],
    cache: u32,
    target_offset: u16,
    next_offset: u16,
    comes_from: u32,
    counters: Counters,
}

/// `struct ip6t_entry`
#[repr(C)]
struct Entry6 {
    ip: [u32; 34],
    cache: u32,
    target_offset: u16,
    next_offset: u16,
    comes_from: u32,
    counters: Counters,
}

/// `struct xt_entry_target`: its size, name, and revision; what follows is the target's own.
const TARGET_NAME: Range<usize> = 2..31;
const TARGET: usize = 32;

/// A table as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Blob {
    valid_hooks: u32,
    hook_entry: [u32; HOOKS.len()],
    underflow: [u32; HOOKS.len()],
    entries: u32,
    bytes: Vec<u8>,
}

/// An entry of a table.
struct Entry {
    at: Range<usize>,
    target: Target,
}

enum Target {
    /// To the rule that begins there.
    Jump { to: usize, value: usize },
    /// A chain begins.
    Chain(String),
    /// Anything else.
    Other,
}

/// Removes our rules of a family.
pub(super) fn remove(family: IpFamily) -> Result<(), LeftoverError> {
    let names = fs::read_to_string(match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    });
    let has_module = |module: &str| fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    let tables = tables(names, has_module, family);
    if tables.is_empty() {
        return Ok(());
    }
    let _lock = lock();
    let mut result = Ok(());
    for table in tables {
        let kernel = Kernel::open(family, table);
        result = result.and(kernel.and_then(|kernel| kernel.remove()));
    }
    result
}

/// The tables that there are, by their list. To ask for one that is not there would make it, which
/// slows every packet down. But the list is root's alone; to others a table that somebody on this
/// machine has made, by loading its module, may be here as well.
fn tables(
    names: io::Result<String>,
    has_module: impl Fn(&str) -> bool,
    family: IpFamily,
) -> Vec<Table> {
    let prefix = match family {
        IpFamily::V4 => "iptable",
        IpFamily::V6 => "ip6table",
    };
    let is_there = |table: &Table| match &names {
        Ok(names) => names.lines().any(|name| name == table.name()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            has_module(&format!("{prefix}_{}", table.name()))
        }
        Err(_) => false,
    };
    Table::ALL.into_iter().filter(is_there).collect()
}

/// Takes the lock of the programs, if we may and if it becomes free. Without it, a change of theirs
/// may fail; ours is repeated.
fn lock() -> Option<File> {
    let file = OpenOptions::new().read(true).open(LOCK).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Some(file),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_WAIT),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// The kernel's interface to a table.
struct Kernel {
    family: IpFamily,
    table: Table,
    socket: OwnedFd,
}

impl Kernel {
    fn open(family: IpFamily, table: Table) -> Result<Self, LeftoverError> {
        let domain = match family {
            IpFamily::V4 => libc::AF_INET,
            IpFamily::V6 => libc::AF_INET6,
        };
        // Any socket will do; a raw one would need another capability.
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(LeftoverError::Legacy { action: "read", table: table.name(), source });
        }
        // SAFETY: the descriptor is new, so nobody else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { family, table, socket })
    }

    fn remove(&self) -> Result<(), LeftoverError> {
        for _ in 0..ATTEMPTS {
            let old = self.read()?;
            let malformed = LeftoverError::Malformed { table: self.table.name() };
            let (new, kept) = without_ours(&old, self.table, self.family).ok_or(malformed)?;
            if new == old {
                return Ok(());
            }
            match self.replace(&old, &new) {
                Ok(counters) => {
                    let kept: Vec<Counters> =
                        kept.iter().filter_map(|&index| counters.get(index).copied()).collect();
                    return self.add_counters(&kept);
                }
                // The number of entries has changed.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(source) => return Err(self.error("replace", source)),
            }
        }
        Err(LeftoverError::Busy)
    }

    fn error(&self, action: &'static str, source: io::Error) -> LeftoverError {
        LeftoverError::Legacy { action, table: self.table.name(), source }
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
        // `replace` puts into it, which are alive, and as many as it says.
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

    fn read(&self) -> Result<Blob, LeftoverError> {
        for _ in 0..ATTEMPTS {
            let mut buffer = [0; size_of::<Info>()];
            buffer[..32].copy_from_slice(&self.name());
            self.get(GET_INFO, &mut buffer).map_err(|source| self.error("read", source))?;
            // SAFETY: all fields are numbers, for which any bytes will do, and there are as many.
            let info: Info = unsafe { buffer.as_ptr().cast::<Info>().read_unaligned() };

            const BEFORE: usize = offset_of!(GetEntries, entries);
            let mut buffer = vec![0; BEFORE + info.size as usize];
            buffer[..32].copy_from_slice(&self.name());
            let size = offset_of!(GetEntries, size);
            buffer[size..size + 4].copy_from_slice(&info.size.to_ne_bytes());
            match self.get(GET_ENTRIES, &mut buffer) {
                Ok(()) => {
                    return Ok(Blob {
                        valid_hooks: info.valid_hooks,
                        hook_entry: info.hook_entry,
                        underflow: info.underflow,
                        entries: info.entries,
                        bytes: buffer.split_off(BEFORE),
                    });
                }
                // The size has changed.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(source) => return Err(self.error("read", source)),
            }
        }
        Err(LeftoverError::Busy)
    }

    /// Returns the counters that the old entries had.
    fn replace(&self, old: &Blob, new: &Blob) -> io::Result<Vec<Counters>> {
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

    /// Gives entries back what the kernel had counted before they were replaced.
    fn add_counters(&self, counters: &[Counters]) -> Result<(), LeftoverError> {
        let count = u32::try_from(counters.len()).unwrap_or(u32::MAX);
        let mut buffer = vec![0; offset_of!(AddCounters, counters)];
        buffer[..32].copy_from_slice(&self.name());
        let at = offset_of!(AddCounters, count);
        buffer[at..at + 4].copy_from_slice(&count.to_ne_bytes());
        buffer.extend(counters.iter().flatten().flat_map(|number| number.to_ne_bytes()));
        self.set(SET_ADD_COUNTERS, &buffer).map_err(|source| self.error("replace", source))
    }
}

fn numbers(numbers: &[u32; HOOKS.len()]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// The table without our chains and what leads to them, and the numbers of the entries that stay.
/// `None` if it has an unknown form.
fn without_ours(old: &Blob, table: Table, family: IpFamily) -> Option<(Blob, Vec<usize>)> {
    let entries = entries(&old.bytes, family)?;
    let owners = owners(&entries, old);
    // Where jumps to a chain lead.
    let chains: HashMap<usize, &str> = entries
        .iter()
        .filter_map(|entry| match &entry.target {
            Target::Chain(name) => Some((entry.at.end, name.as_str())),
            _ => None,
        })
        .collect();
    let is_own = |index: usize| is_ours(table, owners[index]);
    let leads_to = |entry: &Entry| match entry.target {
        Target::Jump { to, .. } => chains.get(&to).copied().filter(|name| is_ours(table, name)),
        _ => None,
    };
    let others = entries.iter().enumerate().filter(|(index, _)| !is_own(*index));
    let held: HashSet<&str> = others
        .filter_map(|(index, entry)| Some((owners[index], leads_to(entry)?)))
        .filter(|(from, to)| !is_our_jump(table, from, to))
        .map(|(_, to)| to)
        .collect();
    let stays = |index: usize| {
        let entry = &entries[index];
        let ends_chain = owners.get(index + 1) != Some(&owners[index]);
        match is_own(index) {
            // A chain that is held stays, without rules.
            true => {
                let is_frame = matches!(entry.target, Target::Chain(_)) || ends_chain;
                is_frame && held.contains(owners[index])
            }
            false => leads_to(entry).is_none_or(|to| held.contains(to)),
        }
    };
    let kept: Vec<usize> = (0..entries.len()).filter(|&index| stays(index)).collect();

    // What goes is replaced by what comes after it.
    let mut moved: HashMap<usize, usize> = HashMap::new();
    let mut bytes = Vec::with_capacity(old.bytes.len());
    for (index, entry) in entries.iter().enumerate() {
        moved.insert(entry.at.start, bytes.len());
        if stays(index) {
            bytes.extend_from_slice(&old.bytes[entry.at.clone()]);
        }
    }
    for &index in &kept {
        let entry = &entries[index];
        if let Target::Jump { to, value } = entry.target {
            let at = moved[&entry.at.start] + (value - entry.at.start);
            let to = u32::try_from(*moved.get(&to)?).ok()?;
            bytes.get_mut(at..at + 4)?.copy_from_slice(&to.to_ne_bytes());
        }
    }
    let place = |hook: usize, old_place: u32| match old.valid_hooks & (1 << hook) {
        0 => Some(old_place),
        _ => u32::try_from(*moved.get(&(old_place as usize))?).ok(),
    };
    let mut new = Blob { bytes, entries: u32::try_from(kept.len()).ok()?, ..old.clone() };
    for hook in 0..HOOKS.len() {
        new.hook_entry[hook] = place(hook, old.hook_entry[hook])?;
        new.underflow[hook] = place(hook, old.underflow[hook])?;
    }
    Some((new, kept))
}

/// The chain that each entry belongs to.
fn owners<'a>(entries: &'a [Entry], blob: &Blob) -> Vec<&'a str> {
    let built_in = |start: usize| {
        (0..HOOKS.len()).find(|&hook| {
            let range = blob.hook_entry[hook] as usize..=blob.underflow[hook] as usize;
            blob.valid_hooks & (1 << hook) != 0 && range.contains(&start)
        })
    };
    let mut chain = "";
    let mut owner = |entry: &'a Entry| {
        match (&entry.target, built_in(entry.at.start)) {
            (Target::Chain(name), _) => chain = name,
            (_, Some(hook)) => chain = HOOKS[hook],
            _ => {}
        }
        chain
    };
    entries.iter().map(&mut owner).collect()
}

/// Takes a table apart.
fn entries(bytes: &[u8], family: IpFamily) -> Option<Vec<Entry>> {
    let (size, target_offset, next_offset) = match family {
        IpFamily::V4 => (
            size_of::<Entry4>(),
            offset_of!(Entry4, target_offset),
            offset_of!(Entry4, next_offset),
        ),
        IpFamily::V6 => (
            size_of::<Entry6>(),
            offset_of!(Entry6, target_offset),
            offset_of!(Entry6, next_offset),
        ),
    };
    let number = |at: usize| -> Option<usize> {
        Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
    };
    let mut entries = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let next = number(start + next_offset)?;
        let target = number(start + target_offset)?;
        if target < size || next < target + TARGET {
            return None;
        }
        let entry = bytes.get(start..start + next)?;
        let name = word(&entry[target..][TARGET_NAME])?;
        let value = target + TARGET;
        let target = match name {
            "" => {
                let verdict = i32::from_ne_bytes(entry.get(value..value + 4)?.try_into().ok()?);
                match usize::try_from(verdict) {
                    Ok(to) => Target::Jump { to, value: start + value },
                    Err(_) => Target::Other,
                }
            }
            "ERROR" => Target::Chain(word(&entry[value..])?.to_owned()),
            _ => Target::Other,
        };
        entries.push(Entry { at: start..start + next, target });
        start += next;
    }
    Some(entries)
}

/// Text up to the first zero.
fn word(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_not_made_to_be_looked_at() {
        let listed = |names: io::Result<&str>, family| {
            tables(names.map(str::to_owned), |module| module == "ip6table_nat", family)
        };
        let none: [Table; 0] = [];
        assert_eq!(listed(Ok("nat\nraw\nfilter\n"), IpFamily::V6), [Table::Filter, Table::Nat]);
        assert_eq!(listed(Ok(""), IpFamily::V6), none);
        let hidden = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        assert_eq!(listed(hidden(), IpFamily::V6), [Table::Nat]);
        assert_eq!(listed(hidden(), IpFamily::V4), none);
        let absent = Err(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(listed(absent, IpFamily::V6), none);
    }

    #[test]
    fn what_is_no_table_is_not_understood() {
        for bytes in [&[0; 111][..], &[0; 112], &[255; 400]] {
            assert!(entries(bytes, IpFamily::V4).is_none());
            assert!(entries(bytes, IpFamily::V6).is_none());
        }
        assert!(entries(&[], IpFamily::V4).is_some_and(|entries| entries.is_empty()));
    }
}
