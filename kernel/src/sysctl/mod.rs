//! Settings of the kernel (sysctls).

mod localnet;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use self::localnet::{can_route_localnet, route_localnet, routes_localnet};

/// Why a setting of the kernel could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {} to {value}", path.display())]
pub struct SysctlError {
    /// The file of the setting.
    pub path: PathBuf,
    /// The value that the setting should have.
    pub value: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Writes `value` to the setting with this file, unless the setting has the value already: a
/// process without the privilege to write it can run on a node where an earlier one has written it.
/// Logs a change.
///
/// # Errors
/// If the setting has another value, or does not exist, and cannot be written.
pub fn set_sysctl(path: &Path, value: &'static str) -> Result<(), SysctlError> {
    let before = fs::read_to_string(path);
    if before.as_ref().is_ok_and(|text| text.trim() == value) {
        return Ok(());
    }
    fs::write(path, value).map_err(|source| SysctlError {
        path: path.to_owned(),
        value,
        source,
    })?;
    tracing::info!(
        target: "switchyard_kernel::v1",
        path = %path.display(),
        from = before.as_ref().map_or("", |text| text.trim()),
        to = value,
        "Set sysctl"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{error::Error, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_setting_is_written_if_it_differs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ip_forward");
        fs::write(&path, "0\n").unwrap();
        set_sysctl(&path, "1").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
        // The kernel ends its answers with a line break, which a write would remove here.
        fs::write(&path, "1\n").unwrap();
        set_sysctl(&path, "1").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let path = Path::new("/proc/sys/kernel/osrelease");
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o222, 0);
        let error = set_sysctl(path, "1").unwrap_err();
        assert_eq!(error.to_string(), "cannot set /proc/sys/kernel/osrelease to 1");
        assert!(error.source().is_some());
    }
}
