//! The [`Proxier`] trait: what a backend is to the rest of the program.

use std::{error::Error, time::Duration};

use async_trait::async_trait;
use tokio::sync::mpsc::Sender;

use crate::{
    runner::Input,
    state::{Delta, State},
};

/// A backend: renders a [`State`] into its kernel's language.
///
/// A backend decides nothing about Services; it may assume every invariant that [`State`]
/// documents. It keeps what it needs to turn a [`Delta`] into few kernel operations, and must be
/// able to do without: `delta.full` asks it to look at what the kernel holds, whoever put it there,
/// and to change only what differs.
#[async_trait]
pub trait Proxier: Send {
    /// The `mode` that selects this backend: `nftables`, `iptables`, `ipvs` or `userspace`.
    fn mode(&self) -> &'static str;

    /// Makes the kernel hold `state`. `delta` says what changed since the last call that
    /// succeeded. All or nothing: after an error the kernel holds what it held before, and the
    /// caller comes again with a delta that contains this one and is full.
    async fn sync(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ProxierError>;

    /// Removes everything that this backend programs, whoever programmed it. Needs no cluster;
    /// may be called twice, and after a crash.
    async fn cleanup(&mut self) -> Result<(), ProxierError>;

    /// What notices that somebody else changes what this backend programs; `None` if that cannot
    /// be watched, so that only the periodic full sync finds out. To be called before the first
    /// sync.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        None
    }
}

/// Watches the kernel on behalf of a backend.
#[async_trait]
pub trait Monitor: Send {
    /// Sends [`Input::Resync`] whenever somebody else may have changed what the backend has
    /// programmed. Ends when nobody receives any more, or when it cannot watch any longer.
    async fn run(self: Box<Self>, inputs: Sender<Input>);
}

/// What the kernel held other than what was programmed, as a full sync found and repaired it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// How many objects (chains, sets, elements ...) were missing, altered or too many.
    pub objects: usize,
    /// The first few of them, in words.
    pub examples: Vec<String>,
}

impl Drift {
    /// How many objects are named.
    pub const EXAMPLES: usize = 5;

    /// Counts an object, and names it if it is one of the first few.
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

/// What a successful [`Proxier::sync`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Objects (chains, rules, sets, elements ...) that were added to the kernel.
    pub added: usize,
    /// Objects that were removed from the kernel.
    pub removed: usize,
    /// Bytes sent to the kernel or to a tool; 0 if nothing differed.
    pub bytes: usize,
    /// Messages, or lines, in the transaction.
    pub messages: usize,
    /// Time spent waiting for the kernel or the tool to commit.
    pub commit: Duration,
    /// Time spent waiting until another program let go of a lock; part of `commit`.
    pub waited: Duration,
    /// Service ports, by name, that this backend cannot program as they ask, and what it did
    /// instead. Everything else was programmed.
    pub skipped: Vec<(String, String)>,
    /// Whether leftovers of earlier syncs could not be removed. They do no harm, and are tried
    /// again.
    pub cleanup_failed: bool,
    /// What somebody else had changed. Only a full sync looks, and only if the backend knows what
    /// the kernel should have held: not after a failure, and not when the program has just started.
    pub drift: Drift,
}

/// Why a backend could not do what it was asked. The message names the backend's object that is
/// concerned, where there is one; [`Error::source`] has what lies below.
#[derive(Debug, thiserror::Error)]
pub enum ProxierError {
    /// The kernel or a tool refused, or could not be asked.
    #[error("{mode}: {message}")]
    Backend {
        /// The backend's mode.
        mode: &'static str,
        /// What was refused.
        message: String,
        /// The backend's own error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// This node cannot run the backend.
    #[error("{mode} cannot be used on this node: {reason}")]
    Unsupported {
        /// The backend's mode.
        mode: &'static str,
        /// What is missing: a kernel version or option, a program, a privilege.
        reason: String,
    },
}
