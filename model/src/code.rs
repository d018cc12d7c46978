//! Codes of findings.

use std::fmt;

/// The code of a finding, such as `SWY0102`, by which a page of `docs/codes/` in the repository
/// can be found: `SWY01xx` about a Service or an address, the others about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Code(&'static str);

impl Code {
    /// Creates a code, which is written as a literal, so that a test finds it.
    pub const fn new(code: &'static str) -> Self {
        Self(code)
    }

    /// The code as it is printed.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}
