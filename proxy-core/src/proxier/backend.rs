//! Backends that are not open: what this node can run, and the removal of what a backend programs.

use std::{fmt, sync::Arc};

use super::{Mode, Proxier, ProxierError};
use crate::{config::NodeConfig, model::PerFamily};

/// A kind of backend with its configuration. Programs keep their backends in one table, and choose
/// among them by [`Backend::probe`].
///
/// All methods work in the network namespace of the calling thread, and may block it.
pub trait Backend: Send + Sync {
    /// The mode that selects the backend.
    fn mode(&self) -> Mode;

    /// Finds out whether this node can run the backend. Programs nothing, but may load kernel
    /// modules.
    ///
    /// # Errors
    /// If the node cannot run the backend, with what is missing.
    fn probe(&self) -> Result<Support, Unusable>;

    /// Opens the backend. Programs nothing yet.
    ///
    /// # Errors
    /// If the node cannot run the backend, or the kernel cannot be reached.
    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError>;

    /// Removes everything that this backend programs, whether this run, an earlier run, or
    /// kube-proxy in the same mode programmed it. Works on nodes that cannot run the backend, and needs no
    /// cluster; a second call finds nothing to remove.
    ///
    /// # Errors
    /// If something is left. [`ProxierError::Unsupported`] means that this node cannot hold
    /// anything that the backend programs.
    fn clean_up(&self) -> Result<(), ProxierError>;

    /// Removes what [`clean_up`](Self::clean_up) does, except what the backend with the mode
    /// `active`, which serves this node, programs under the same names. Without common names, that
    /// is everything.
    ///
    /// # Errors
    /// The same as those of [`clean_up`](Self::clean_up).
    fn clean_up_beside(&self, _active: Mode) -> Result<(), ProxierError> {
        self.clean_up()
    }

    /// The modes whose rules disturb or double the rules of this backend, and which must therefore be
    /// cleaned up after on a node that runs this backend.
    fn conflicts_with(&self) -> &'static [Mode];

    /// Whether the kernel translates the addresses of flows, so that its conntrack entries name
    /// endpoints. A proxy in user space answers in place of endpoints.
    fn translates_flows(&self) -> bool {
        true
    }

    /// Finds out whether syncs can serve what `node` asks of the kernel: whether they can set the parameters
    /// that are not set already. Changes nothing.
    ///
    /// # Errors
    /// If a parameter cannot be set.
    fn is_prepared(&self, _node: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Sets the kernel parameters that need more privileges than syncs do (`--init-only`), and programs
    /// before what must not be missing then.
    ///
    /// # Errors
    /// If a parameter cannot be set.
    fn prepare(&self, _node: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }
}

/// Returns the backends whose rules disturb or double the rules of the backend with this mode.
pub fn conflicting(backends: &[Arc<dyn Backend>], mode: Mode) -> Vec<Arc<dyn Backend>> {
    let conflicts = |a: &dyn Backend, b: Mode| a.conflicts_with().contains(&b);
    let own = backends.iter().find(|backend| backend.mode() == mode);
    let is_conflicting = |other: &&Arc<dyn Backend>| {
        other.mode() != mode
            && (conflicts(&***other, mode)
                || own.is_some_and(|own| conflicts(&**own, other.mode())))
    };
    backends.iter().filter(is_conflicting).cloned().collect()
}

/// Removes what any of these backends programs, for callers that do not know which backend ran here.
/// Tries all backends even if one fails.
///
/// # Errors
/// The first error. A node that cannot hold anything of a backend is no error.
pub fn clean_up(backends: &[Arc<dyn Backend>]) -> Result<(), ProxierError> {
    let mut result = Ok(());
    for backend in backends {
        match backend.clean_up() {
            Err(ProxierError::Unsupported { mode, reason, .. }) => {
                tracing::debug!(%mode, reason, "Nothing to clean up");
            }
            other => result = result.and(other),
        }
    }
    result
}

/// What a node can do for a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Support {
    /// The families that the backend will program; at least one.
    pub families: PerFamily<bool>,
}

impl Support {
    /// Support for these families.
    pub const fn new(families: PerFamily<bool>) -> Self {
        Self { families }
    }
}

/// Why a node cannot run a backend, in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The kernel or the node lacks something that every proxy would need for the mode, so that
    /// another mode may take its place.
    Node(String),
    /// Only this backend cannot run.
    Backend(String),
}

impl fmt::Display for Unusable {
    /// Writes the reason in one line: programs may print several.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Node(text) | Self::Backend(text)) = self;
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        f.write_str(lines.next().unwrap_or_default())?;
        lines.try_for_each(|line| write!(f, "; {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line() {
        let several =
            Unusable::Node("iptables fails:\n  table does not exist\n\nmodprobe?\n".into());
        assert_eq!(several.to_string(), "iptables fails:; table does not exist; modprobe?");
        assert_eq!(Unusable::Backend("not built".into()).to_string(), "not built");
    }
}
