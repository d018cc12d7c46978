//! Removal of chains of iptables-legacy, each of whose tables is read and replaced as a whole.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::Path,
};

use switchyard_model::IpFamily;

use super::{ATTEMPTS, LeftoverError, both, entries};
use crate::xtables::{
    OwnedChains, Table,
    legacy_table::{self, Counters, LegacyTable},
    lock,
};

/// The xtables lock, which is waited for once.
#[derive(Debug, Default)]
pub(super) struct Lock(Option<Result<File, TryLockError>>);

impl Lock {
    /// Takes the lock, unless an earlier call did or tried. Returns whether there was such a call.
    ///
    /// A process that cannot open the file, such as one in a container without the host's `/run`,
    /// goes on without the lock: rules that stay would translate to endpoints that are gone. The
    /// kernel refuses a replacement only if another program has changed the number of entries.
    ///
    /// # Errors
    /// If another program holds the lock: that program may add and delete as many entries.
    fn take(&mut self, path: &Path) -> Result<bool, LeftoverError> {
        let was_taken = self.0.is_some();
        match self.0.get_or_insert_with(|| lock::acquire(path)) {
            Err(TryLockError::WouldBlock) => return Err(LeftoverError::Locked),
            Err(TryLockError::Error(error)) if !was_taken => {
                let path = path.display();
                tracing::warn!(%path, err = %error, "Removing rules without the xtables lock");
            }
            Err(TryLockError::Error(_)) | Ok(_) => {}
        }
        Ok(was_taken)
    }
}

/// Removes the owned chains of a family.
pub(super) fn remove(
    family: IpFamily,
    owned: &OwnedChains,
    lock: &mut Lock,
) -> Result<bool, LeftoverError> {
    let names = legacy_table::table_names(family);
    let has_module = |module: &str| fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    let tables = tables(names, has_module, family);
    if tables.is_empty() {
        return Ok(false);
    }
    let mut result = Ok(false);
    for table in tables {
        let opened = LegacyTable::open(family, table).map_err(|error| read_error(table, error));
        result = both(result, opened.and_then(|kernel| remove_from(&kernel, owned, lock)));
    }
    result
}

/// Whether the table of a family holds this text.
pub(super) fn has(family: IpFamily, table: Table, text: &str) -> Result<bool, LeftoverError> {
    let names = legacy_table::table_names(family);
    if !tables(names, |_| false, family).contains(&table) {
        return Ok(false);
    }
    let read = LegacyTable::open(family, table).and_then(|kernel| kernel.read());
    let contents = read.map_err(|error| read_error(table, error))?;
    Ok(contents.bytes.windows(text.len()).any(|window| window == text.as_bytes()))
}

/// Returns the names of tables that have rules, or cannot be looked at.
pub(super) fn used(family: IpFamily) -> Vec<String> {
    let names = legacy_table::table_names(family).unwrap_or_default();
    let is_empty = |name: &str| {
        let known = Table::ALL.into_iter().find(|table| table.name() == name);
        let info = known.and_then(|table| LegacyTable::open(family, table).ok()?.info().ok());
        info.is_some_and(|info| !info.has_rules())
    };
    names.lines().filter(|name| !is_empty(name)).map(str::to_owned).collect()
}

/// Returns the tables that exist. Users other than root cannot read their list; for them, every
/// table whose module is loaded may exist.
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

/// Removes the owned chains of a table. Returns whether there was any.
fn remove_from(
    kernel: &LegacyTable,
    owned: &OwnedChains,
    lock: &mut Lock,
) -> Result<bool, LeftoverError> {
    let table = kernel.table;
    for _ in 0..ATTEMPTS {
        let old = kernel.read().map_err(|error| read_error(table, error))?;
        let (new, kept) = entries::without(&old, table, kernel.family, owned)
            .ok_or(LeftoverError::Malformed { table: table.name() })?;
        if new == old {
            return Ok(false);
        }
        if !lock.take(&lock::default_file())? {
            continue;
        }
        match kernel.replace(&old, &new) {
            Ok(counters) => {
                let kept: Vec<Counters> =
                    kept.iter().filter_map(|&index| counters.get(index).copied()).collect();
                let added = kernel.add_counters(&kept);
                return added.map(|_| true).map_err(|source| replace_error(table, source));
            }
            // The number of entries has changed.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(source) => return Err(replace_error(table, source)),
        }
    }
    Err(LeftoverError::Busy)
}

fn read_error(table: Table, source: io::Error) -> LeftoverError {
    match source.raw_os_error() {
        Some(libc::EAGAIN) => LeftoverError::Busy,
        _ => LeftoverError::Legacy { action: "read", table: table.name(), source },
    }
}

fn replace_error(table: Table, source: io::Error) -> LeftoverError {
    LeftoverError::Legacy { action: "replace", table: table.name(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_that_another_program_holds_keeps_rules() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut missing = Lock::default();
        for was_taken in [false, true] {
            assert_eq!(missing.take(Path::new("/nonexistent/lock")).unwrap(), was_taken);
        }
        let mut ours = Lock::default();
        assert!(!ours.take(file.path()).unwrap() && ours.take(file.path()).unwrap());
        // It was waited for once.
        let mut held = Lock(Some(Err(TryLockError::WouldBlock)));
        assert!(matches!(held.take(file.path()), Err(LeftoverError::Locked)));
    }

    #[test]
    fn only_tables_that_exist_are_read() {
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
