//! The version of the running kernel.

use std::{
    fmt::{self, Display, Formatter},
    fs,
};

/// The version of a kernel: major and minor, such as 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelVersion(pub u32, pub u32);

impl KernelVersion {
    /// Returns the version of the running kernel; `None` if the kernel does not state one.
    pub fn running() -> Option<Self> {
        Self::of_release(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
    }

    /// Returns the version in the name of a release, such as `6.1.0-18-amd64`; `None` if the name
    /// does not begin with two numbers.
    pub fn of_release(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl Display for KernelVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_the_version() {
        let of = KernelVersion::of_release;
        assert_eq!(of("6.1.0-18-amd64\n"), Some(KernelVersion(6, 1)));
        assert_eq!(of("5.10"), Some(KernelVersion(5, 10)));
        for unknown in ["", "6", "unknown", "v6.1", "6..1"] {
            assert_eq!(of(unknown), None, "{unknown}");
        }
        assert!(KernelVersion(5, 10) > KernelVersion(5, 9));
        assert!(KernelVersion(4, 20) < KernelVersion(5, 9));
        assert_eq!(KernelVersion(5, 13).to_string(), "5.13");
        assert!(KernelVersion::running().is_some());
    }
}
