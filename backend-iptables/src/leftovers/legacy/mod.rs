//! Rules of iptables-legacy: tables of x_tables, each of which is read and replaced as a whole.
//!
//! - [`kernel`]: how that is done.
//! - [`blob`]: what a table looks like, and what it looks like without our rules.

mod blob;
mod kernel;

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io, thread,
    time::Duration,
};

use proxy_core::model::IpFamily;

pub(crate) use self::kernel::Kernel;

use self::kernel::Counters;
use super::{ATTEMPTS, LeftoverError};
use crate::layout::Table;

/// How many hooks there are (`NF_INET_NUMHOOKS`).
const HOOKS: usize = 5;

/// The lock of the programs, and how long to wait for it.
const LOCK: &str = "/run/xtables.lock";
const LOCK_ATTEMPTS: usize = 50;
const LOCK_WAIT: Duration = Duration::from_millis(100);

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
        result = result.and(kernel.and_then(|kernel| remove_from(&kernel)));
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

/// Removes our rules of a table.
fn remove_from(kernel: &Kernel) -> Result<(), LeftoverError> {
    for _ in 0..ATTEMPTS {
        let old = kernel.read()?;
        let malformed = LeftoverError::Malformed { table: kernel.table.name() };
        let (new, kept) = blob::without_ours(&old, kernel.table, kernel.family).ok_or(malformed)?;
        if new == old {
            return Ok(());
        }
        match kernel.replace(&old, &new) {
            Ok(counters) => {
                let kept: Vec<Counters> =
                    kept.iter().filter_map(|&index| counters.get(index).copied()).collect();
                return kernel.add_counters(&kept);
            }
            // The number of entries has changed.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(source) => return Err(kernel.error("replace", source)),
        }
    }
    Err(LeftoverError::Busy)
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
}
