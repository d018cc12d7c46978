//! The interface of backends: a [`Backend`] can be probed, opened and cleaned up after; an open backend
//! is a [`Proxier`], which syncs; its [`Monitor`] reports changes by other programs.

mod abilities;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

pub use self::abilities::Abilities;
use crate::{
    config::NodeConfig,
    model::{IpFamily, PerFamily, ServicePortId},
    transition::Transition,
};

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
pub fn predecessors(backends: &[Arc<dyn Backend>], mode: Mode) -> Vec<Arc<dyn Backend>> {
    let conflicts = |a: &dyn Backend, b: Mode| a.conflicts_with().contains(&b);
    let own = backends.iter().find(|backend| backend.mode() == mode);
    let is_predecessor = |other: &&Arc<dyn Backend>| {
        other.mode() != mode
            && (conflicts(&***other, mode)
                || own.is_some_and(|own| conflicts(&**own, other.mode())))
    };
    backends.iter().filter(is_predecessor).cloned().collect()
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

/// An open backend: renders resolved states into its kernel's language.
///
/// A backend decides nothing about Services, and may assume every invariant that
/// [`State`](crate::state::State) documents. Core remembers what was synced; a backend keeps only
/// what its kernel adds to that, such as slots and handles.
#[async_trait]
pub trait Proxier: Send {
    /// The mode that selects the backend.
    fn mode(&self) -> Mode;

    /// What the backend can program: spreads, weights, and node ports on any local address. An engine
    /// asks once, before the first sync; the states that it shows ask for nothing else.
    fn abilities(&self) -> Abilities {
        Abilities::PARITY
    }

    /// Makes the kernel hold [`change.after()`](Transition::after). May block its thread for as
    /// long as the kernel takes, which is why an [`Engine`](crate::engine::Engine) has a thread of
    /// its own.
    ///
    /// A sync may be several transactions, each of them atomic, and every state between them serves
    /// traffic. The transition is empty only if the backend asked to be revisited
    /// ([`SyncReport::revisit_after`]).
    ///
    /// # Errors
    /// If the kernel or a tool refuses. The kernel may then hold a part of the change; the next
    /// call has a transition that covers this one, with [`Transition::compare`] set. A backend that knows which
    /// Service ports, or which family, are refused names them ([`ProxierError::of_parts`]), so that all else
    /// is programmed.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError>;

    /// Removes everything that this backend programs, whichever program programmed it. Needs no cluster; a
    /// second call finds nothing to remove. A later sync has [`Transition::compare`] set.
    ///
    /// # Errors
    /// If something is left.
    async fn clean_up(&mut self) -> Result<(), ProxierError>;

    /// Opens a monitor of what the backend programs; `None` if changes by other programs cannot be
    /// watched, so that only the periodic comparison finds them. An engine asks once, before the
    /// first sync.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        None
    }
}

#[async_trait]
impl Proxier for Box<dyn Proxier> {
    fn mode(&self) -> Mode {
        (**self).mode()
    }

    fn abilities(&self) -> Abilities {
        (**self).abilities()
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        (**self).sync(change).await
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        (**self).clean_up().await
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        (**self).monitor()
    }
}

/// Watches the kernel on behalf of a backend. Reports only: when everything is compared, the runner
/// decides.
#[async_trait]
pub trait Monitor: Send {
    /// Waits until another program may have changed what the backend programs. The engine calls
    /// again at once, in a task on its own thread.
    ///
    /// # Errors
    /// If nothing can be watched any longer. The monitor is then dropped.
    async fn disturbed(&mut self) -> Result<Disturbance, ProxierError>;
}

/// A report of a [`Monitor`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Another program has changed what the backend programs.
    Changed {
        /// The program, if the kernel names it.
        by: Option<String>,
    },
    /// Another program has changed something that may or may not concern the backend.
    Suspected,
}

/// The differences between the kernel and what had been programmed, which a comparison found and
/// repaired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// How many objects (chains, sets, elements ...) were missing, altered or too many.
    pub objects: usize,
    /// Descriptions of the first few of them.
    pub examples: Vec<String>,
}

impl Drift {
    /// How many objects are described.
    pub const EXAMPLES: usize = 5;

    /// Counts an object, and keeps the descriptions of the first few objects.
    pub fn found(&mut self, describe: impl FnOnce() -> String) {
        self.objects += 1;
        if self.examples.len() < Self::EXAMPLES {
            self.examples.push(describe());
        }
    }

    /// Whether the kernel held what it should.
    pub fn is_none(&self) -> bool {
        self.objects == 0
    }
}

/// The report of a successful [`Proxier::sync`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncReport {
    /// How many objects (chains, rules, sets, elements ...) were added to the kernel.
    pub added: usize,
    /// How many objects were removed from the kernel.
    pub removed: usize,
    /// Bytes sent to the kernel or to a tool; 0 if nothing differed.
    pub bytes: usize,
    /// Messages, or lines, in the transactions.
    pub messages: usize,
    /// Time spent waiting for the kernel or the tool to commit.
    pub commit: Duration,
    /// Time spent waiting until another program released a lock; part of `commit`.
    pub waited: Duration,
    /// Service ports that this backend cannot program as configured. Everything else was programmed.
    pub skipped: Vec<Skipped>,
    /// Whether leftovers of earlier syncs could not be removed. Leftovers do no harm, and the next
    /// sync tries again.
    pub cleanup_failed: bool,
    /// What another program had changed. Only a comparison looks, and only if the backend knows
    /// what the kernel should have held: not after a failure, and not when the program has just
    /// started.
    pub drift: Drift,
    /// The rules of each table, in backends whose rules grow with the number of Services.
    pub rules: Vec<RuleCount>,
    /// Attempts that were refused before the sync succeeded.
    pub refused: Vec<RefusedAttempt>,
    /// The time after which the backend has something to do although nothing may have changed by then,
    /// such as to remove endpoints whose connections have ended. The next sync comes by then, with
    /// whatever [`Transition`] there is, possibly an empty one. Each report replaces the one before.
    pub revisit_after: Option<Duration>,
}

/// A Service port that a backend serves otherwise than configured, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The Service port's id.
    pub port: ServicePortId,
    /// What differs from the configuration, and what the backend does instead.
    pub reason: String,
}

/// The rules of a table in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The family.
    pub family: IpFamily,
    /// The table's name, such as `filter` or `nat`.
    pub table: &'static str,
    /// The rules in the backend's own chains. Jumps from other chains do not count.
    pub owned: u64,
    /// The rules that the sync wrote.
    pub written: u64,
}

/// The parts of a state that the kernel or a tool refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedParts {
    /// Service ports, and why they are refused.
    pub ports: Vec<Skipped>,
    /// Why nothing of a family can be programmed.
    pub families: PerFamily<Option<String>>,
}

impl RefusedParts {
    /// Whether nothing is refused.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.families.v4.is_none() && self.families.v6.is_none()
    }
}

/// An attempt to change the tables of one family that the kernel or a tool refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedAttempt {
    /// The family.
    pub family: IpFamily,
    /// Whether the attempt had compared everything; if not, a comparison followed.
    pub compared: bool,
}

/// Why a backend could not do what it was asked. The message names the backend's object that is
/// concerned, where there is one; [`Error::source`] has the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxierError {
    /// The kernel or a tool refused, or could not be reached.
    #[error("{mode}: {message}")]
    #[non_exhaustive]
    Backend {
        /// The backend's mode.
        mode: Mode,
        /// What was refused.
        message: String,
        /// The attempts that were refused, where the backend counts them by family.
        refused: Vec<RefusedAttempt>,
        /// What the kernel would not have refused the rest without.
        parts: Box<RefusedParts>,
        /// The backend's own error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// This node cannot run the backend.
    #[error("{mode} cannot be used on this node: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// The backend's mode.
        mode: Mode,
        /// What is missing: a kernel version or option, a program, a privilege.
        reason: String,
    },
}

impl ProxierError {
    /// An error of a backend's own, with its cause.
    pub fn backend(
        mode: Mode,
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        let (message, source) = (message.into(), Some(source.into()));
        let parts = Box::default();
        Self::Backend { mode, message, refused: Vec::new(), parts, source }
    }

    /// An error of a node that lacks something.
    pub fn unsupported(mode: Mode, reason: impl Into<String>) -> Self {
        Self::Unsupported { mode, reason: reason.into() }
    }

    /// The same error, with the attempts that were refused.
    pub fn after_attempts(mut self, attempts: Vec<RefusedAttempt>) -> Self {
        if let Self::Backend { refused, .. } = &mut self {
            *refused = attempts;
        }
        self
    }

    /// The same error, which concerns these parts alone. The caller leaves them out, and syncs again at once:
    /// the next transition lacks these Service ports, and these families are not to be programmed
    /// ([`Transition::programs`]). The backend itself compares everything then if a part of the sync was
    /// done.
    pub fn of_parts(mut self, refused: RefusedParts) -> Self {
        if let Self::Backend { parts, .. } = &mut self {
            **parts = refused;
        }
        self
    }

    /// The parts that the error concerns; `None` if it concerns everything.
    pub fn refused_parts(&self) -> Option<&RefusedParts> {
        match self {
            Self::Backend { parts, .. } if !parts.is_empty() => Some(parts),
            _ => None,
        }
    }

    /// The attempts that were refused, where the backend counts them by family.
    pub fn refused(&self) -> &[RefusedAttempt] {
        match self {
            Self::Backend { refused, .. } => refused,
            Self::Unsupported { .. } => &[],
        }
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
