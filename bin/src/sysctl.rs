//! The kernel's settings that kube-proxy makes before it proxies: the limits and timeouts of
//! connection tracking.
//!
//! A setting is written only if its value differs, and a limit only if it is lower. So a process
//! without the privilege to write it can run on a node where an earlier one (`--init-only`) has
//! written it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::config::settings::ConntrackSettings;

/// The highest limit of connections that is ever set; a higher one that is set already stays.
const MOST_CONNECTIONS: u64 = 1 << 20;
/// The number of connections for each bucket of the hash table.
const PER_BUCKET: u64 = 4;

/// Why a setting of the kernel could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    #[error("cannot read {}{}", path.display(), hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("{} contains {text:?}, which is not a number", path.display())]
    NotANumber { path: PathBuf, text: String },
    #[error("cannot change {} from {from} to {to}{}", path.display(), hint(source))]
    Write {
        path: PathBuf,
        /// The current value.
        from: u64,
        /// The configured value.
        to: u64,
        source: io::Error,
    },
}

/// Returns advice about an error, or an empty text.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (is the module nf_conntrack loaded?)",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            " (run with --init-only and privileges first, as the init container of a new pod does, or \
             set conntrack.maxPerCore and the timeouts of conntrack to 0)"
        }
        _ => "",
    }
}

/// The directories of the settings: `/proc/sys` and `/sys`, or a test's copies of them.
#[derive(Clone, Debug)]
pub struct Kernel {
    proc_sys: PathBuf,
    sys: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { proc_sys: "/proc/sys".into(), sys: "/sys".into() }
    }
}

impl Kernel {
    /// Sets the limits and timeouts of connection tracking. A limit is never lowered.
    ///
    /// # Errors
    /// If a setting cannot be read, or must change and cannot be written.
    pub fn set_conntrack(&self, wanted: &ConntrackSettings) -> Result<(), SysctlError> {
        let netfilter = self.proc_sys.join("net/netfilter");
        if let Some(limit) = connections(wanted, self.processors()) {
            let max = netfilter.join("nf_conntrack_max");
            // A larger limit is an administrator's, and the kernel's 0 is none at all.
            if (1..limit).contains(&read(&max)?) {
                set(&max, limit)?;
            }
            let buckets = self.sys.join("module/nf_conntrack/parameters/hashsize");
            if hash_size(&buckets, &netfilter)? < limit / PER_BUCKET {
                set(&buckets, limit / PER_BUCKET)?;
            }
        }
        for (name, period) in [
            ("nf_conntrack_tcp_timeout_established", wanted.tcp_established_timeout),
            ("nf_conntrack_tcp_timeout_close_wait", wanted.tcp_close_wait_timeout),
            ("nf_conntrack_udp_timeout", wanted.udp_timeout),
            ("nf_conntrack_udp_timeout_stream", wanted.udp_stream_timeout),
        ] {
            if period > Duration::ZERO {
                // 0 would end each flow at once.
                set(&netfilter.join(name), period.as_secs().max(1))?;
            }
        }
        if wanted.tcp_be_liberal {
            set(&netfilter.join("nf_conntrack_tcp_be_liberal"), 1)?;
        }
        Ok(())
    }

    /// Returns the number of the host's processors. A limit of this process's CPUs does not count:
    /// the connections are the host's.
    fn processors(&self) -> u64 {
        let listed = fs::read_to_string(self.sys.join("devices/system/cpu/online"));
        let count = listed.ok().and_then(|text| count_ranges(text.trim()));
        count.or_else(usable_processors).unwrap_or(1)
    }
}

fn usable_processors() -> Option<u64> {
    std::thread::available_parallelism().ok()?.get().try_into().ok()
}

/// Counts the numbers in a list such as `0-3,5`.
fn count_ranges(list: &str) -> Option<u64> {
    list.split(',').try_fold(0, |sum: u64, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)? + 1)
    })
}

/// Returns the limit of connections to set, or `None` to keep the kernel's.
fn connections(wanted: &ConntrackSettings, processors: u64) -> Option<u64> {
    match wanted.max_per_core.saturating_mul(processors) {
        0 => None,
        many if many > MOST_CONNECTIONS => Some(MOST_CONNECTIONS),
        limit => Some(limit.max(wanted.min)),
    }
}

fn read(path: &Path) -> Result<u64, SysctlError> {
    let text = fs::read_to_string(path)
        .map_err(|source| SysctlError::Read { path: path.to_owned(), source })?;
    text.trim().parse().map_err(|_| SysctlError::NotANumber { path: path.to_owned(), text })
}

/// Reads the size of the hash table. Only root may read the module's parameter; the sysctl has the
/// same value.
fn hash_size(parameter: &Path, netfilter: &Path) -> Result<u64, SysctlError> {
    match read(parameter) {
        Err(SysctlError::Read { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            read(&netfilter.join("nf_conntrack_buckets"))
        }
        result => result,
    }
}

/// Writes a setting if its value differs.
fn set(path: &Path, to: u64) -> Result<(), SysctlError> {
    let from = read(path)?;
    if from == to {
        return Ok(());
    }
    fs::write(path, to.to_string()).map_err(|source| SysctlError::Write {
        path: path.to_owned(),
        from,
        to,
        source,
    })?;
    tracing::info!(
        target: "switchyard::v1",
        path = %path.display(), from, to,
        "Set sysctl"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tempfile::TempDir;

    use super::*;

    /// Makes a directory with a kernel's files: four processors, and these settings.
    fn kernel(settings: &[(&str, &str)]) -> (TempDir, Kernel) {
        let directory = TempDir::new().unwrap();
        let kernel = Kernel {
            proc_sys: directory.path().join("proc/sys"),
            sys: directory.path().join("sys"),
        };
        let cpus = [("sys/devices/system/cpu/online", "0-2,5\n")];
        for (path, value) in settings.iter().chain(&cpus) {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        (directory, kernel)
    }

    const MAX: &str = "proc/sys/net/netfilter/nf_conntrack_max";
    const HASHSIZE: &str = "sys/module/nf_conntrack/parameters/hashsize";
    const ESTABLISHED: &str = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";

    #[test]
    fn limits_are_kube_proxys() {
        let limit = |max_per_core, min| {
            connections(&ConntrackSettings { max_per_core, min, ..Default::default() }, 4)
        };
        assert_eq!(limit(0, 131_072), None, "the minimum is ignored too");
        assert_eq!(limit(32_768, 131_072), Some(131_072));
        assert_eq!(limit(32_768, 200_000), Some(200_000));
        assert_eq!(limit(40_000, 131_072), Some(160_000));
        assert_eq!(limit(1_000_000, 2_000_000), Some(1 << 20), "even if the minimum is higher");
    }

    #[test]
    fn limits_are_never_lowered() {
        let wanted = ConntrackSettings { max_per_core: 32_768, min: 131_072, ..Default::default() };
        for (max, hash_size) in [("2000000", "500000"), ("131073", "32768"), ("0", "32768")] {
            let (directory, kernel) = kernel(&[(MAX, max), (HASHSIZE, hash_size)]);
            kernel.set_conntrack(&wanted).unwrap();
            let value = |path| fs::read_to_string(directory.path().join(path)).unwrap();
            assert_eq!([MAX, HASHSIZE].map(value), [max, hash_size]);
        }
    }

    #[test]
    fn different_values_are_written_once() {
        let wanted = ConntrackSettings {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_timeout: Duration::from_secs(86_400),
            tcp_close_wait_timeout: Duration::from_secs(3600),
            udp_timeout: Duration::from_millis(7),
            udp_stream_timeout: Duration::from_secs(8),
            tcp_be_liberal: true,
            ..Default::default()
        };
        let timeout = |name| format!("proc/sys/net/netfilter/nf_conntrack_{name}");
        let names =
            ["tcp_timeout_close_wait", "udp_timeout", "udp_timeout_stream", "tcp_be_liberal"];
        let others = names.map(timeout);
        let mut paths: Vec<&str> = vec![MAX, HASHSIZE, ESTABLISHED];
        paths.extend(others.iter().map(String::as_str));
        let unset: Vec<(&str, &str)> = paths.iter().map(|path| (*path, "2")).collect();
        let (directory, kernel) = kernel(&unset);
        kernel.set_conntrack(&wanted).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let files: Vec<PathBuf> = paths.iter().map(|path| directory.path().join(path)).collect();
        for file in &files {
            fs::File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
        }
        kernel.set_conntrack(&wanted).unwrap();
        let expected = ["131072", "32768", "86400", "3600", "1", "8", "1"];
        for (file, expected) in files.iter().zip(expected) {
            assert_eq!(fs::read_to_string(file).unwrap(), expected, "{file:?}");
            assert_eq!(file.metadata().unwrap().modified().unwrap(), long_ago, "{file:?}");
        }
    }

    #[test]
    fn a_missing_file_is_an_error_with_advice() {
        let (directory, kernel) = kernel(&[(MAX, "131072")]);
        let wanted = ConntrackSettings { max_per_core: 32_768, min: 131_072, ..Default::default() };
        let error = kernel.set_conntrack(&wanted).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "cannot read {} (is the module nf_conntrack loaded?)",
                directory.path().join(HASHSIZE).display()
            )
        );
        let error = kernel
            .set_conntrack(&ConntrackSettings { tcp_be_liberal: true, ..Default::default() })
            .unwrap_err();
        assert!(matches!(error, SysctlError::Read { .. }), "{error}");
    }
}
