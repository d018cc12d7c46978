//! The names of backends.

use std::fmt;

/// The name of a backend, as `mode` in a configuration selects it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mode(&'static str);

impl Mode {
    /// `nftables`
    pub const NFTABLES: Self = Self("nftables");
    /// `iptables`
    pub const IPTABLES: Self = Self("iptables");
    /// `ipvs`
    pub const IPVS: Self = Self("ipvs");
    /// `userspace`
    pub const USERSPACE: Self = Self("userspace");

    /// Creates the mode of another backend. By convention the name is a lower-case word.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name of the mode.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
