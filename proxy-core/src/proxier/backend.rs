//! Backends that are not open: what this node can run, and the removal of what a backend programs.

use std::{fmt, sync::Arc};

use super::{Mode, Profile, Proxier, ProxierError};
use crate::{error::ErrorChain, model::PerFamily};

/// A kind of backend with its configuration. Programs keep their backends in one table, and choose
/// among them by [`Backend::probe`].
///
/// All methods work in the network namespace of the calling thread, and may block it.
pub trait Backend: Send + Sync {
    /// The properties of the backend. Those of an open one ([`Proxier::profile`]) are what this
    /// node leaves of them.
    fn profile(&self) -> Profile;

    /// Finds out whether this node can run the backend. Programs nothing, but may load kernel
    /// modules.
    ///
    /// # Errors
    /// [`ProxierError::Unusable`], with what is missing.
    fn probe(&self) -> Result<Probed, ProxierError>;

    /// Removes everything that this backend programs, whether this run, an earlier run, or
    /// kube-proxy in the same mode programmed it; except what the mode `keep`, which serves this
    /// node, programs under the same names. Works on nodes that cannot run the backend, and needs
    /// no cluster; a second call finds nothing to remove.
    ///
    /// # Errors
    /// If something is left.
    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError>;

    /// Reads what the kernel holds of what this backend programs, as text for people: about `most`
    /// bytes altogether. By default, nothing is shown.
    fn dump(&self, _most: usize) -> Vec<KernelTable> {
        Vec::new()
    }
}

/// A table of rules, or another part of what the kernel holds of a backend, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTable {
    /// The name, such as `ip kube-proxy`.
    pub name: String,
    /// The text, nearly in the syntax of the usual program; with a comment after `#` where it is
    /// cut, or in the place of what cannot be read. `None` if there is no such table.
    pub text: Option<String>,
}

impl KernelTable {
    /// The last line of a text that is cut.
    pub const CUT: &str = "# there is more\n";

    /// Returns a table that cannot be read, for this reason.
    pub fn unread(name: String, error: &(dyn std::error::Error + 'static)) -> Self {
        let text = format!("# cannot be read: {}\n", ErrorChain(error));
        Self { name, text: Some(text) }
    }
}

/// Opens a backend with what a probe has found.
type Open = dyn FnOnce() -> Result<Box<dyn Proxier>, ProxierError> + Send;

/// A backend that this node can run, by the result of [`Backend::probe`].
pub struct Probed {
    /// The families that the backend will program; at least one.
    pub families: PerFamily<bool>,
    open: Box<Open>,
}

impl Probed {
    /// Creates the result of a probe: the families, and how the backend is opened.
    pub fn new(
        families: PerFamily<bool>,
        open: impl FnOnce() -> Result<Box<dyn Proxier>, ProxierError> + Send + 'static,
    ) -> Self {
        Self { families, open: Box::new(open) }
    }

    /// Opens the backend. Programs nothing yet.
    ///
    /// # Errors
    /// If the kernel cannot be reached.
    pub fn open(self) -> Result<Box<dyn Proxier>, ProxierError> {
        (self.open)()
    }
}

impl fmt::Debug for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probed").field("families", &self.families).finish_non_exhaustive()
    }
}

/// Returns the backends whose rules disturb or double the rules of an open backend with this
/// profile.
pub fn conflicting(backends: &[Arc<dyn Backend>], open: &Profile) -> Vec<Arc<dyn Backend>> {
    let is_conflicting = |other: &&Arc<dyn Backend>| {
        let other = other.profile();
        !open.is_beside
            && other.mode != open.mode
            && (open.conflicts_with.contains(&other.mode)
                || other.conflicts_with.contains(&open.mode))
    };
    backends.iter().filter(is_conflicting).cloned().collect()
}

/// Removes what any of these backends programs, for callers that do not know which backend ran
/// here. Tries all backends even if one fails.
///
/// # Errors
/// The first error.
pub fn clean_up(backends: &[Arc<dyn Backend>]) -> Result<(), ProxierError> {
    backends.iter().map(|backend| backend.clean_up(None)).fold(Ok(()), Result::and)
}
