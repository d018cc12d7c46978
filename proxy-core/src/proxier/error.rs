//! Why a backend could not do what it was asked, and which Service ports or families that concerns.

use std::error::Error;

use super::{DegradedPort, Mode};
use crate::model::{IpFamily, PerFamily};

/// The parts of a state that the kernel or a tool refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedParts {
    /// Service ports, and why they are refused.
    pub ports: Vec<DegradedPort>,
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
    /// Whether the attempt had compared everything; if not, a resync followed.
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
        /// The refused parts.
        message: String,
        /// The attempts that were refused, where the backend counts them by family.
        refused: Vec<RefusedAttempt>,
        /// The parts without which the kernel would have accepted the rest.
        parts: Box<RefusedParts>,
        /// The backend's own error.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// This node cannot run the backend.
    #[error("{mode} cannot be used on this node")]
    #[non_exhaustive]
    Unusable {
        /// The backend's mode.
        mode: Mode,
        /// Whether the kernel or the node lacks something that every proxy would need for the mode,
        /// so that another mode may take its place; if not, only this backend cannot run.
        is_node: bool,
        /// The missing part: a kernel version or option, a program, a privilege.
        source: Box<dyn Error + Send + Sync>,
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

    /// An error of a backend that cannot run here, whatever other proxies can.
    pub fn unusable(mode: Mode, why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unusable { mode, is_node: false, source: why.into() }
    }

    /// An error of a node that lacks what every proxy would need for the mode.
    pub fn lacking(mode: Mode, what: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unusable { mode, is_node: true, source: what.into() }
    }

    /// The backend's mode.
    pub fn mode(&self) -> Mode {
        let (Self::Backend { mode, .. } | Self::Unusable { mode, .. }) = self;
        *mode
    }

    /// The same error, with the attempts that were refused.
    pub fn after_attempts(mut self, attempts: Vec<RefusedAttempt>) -> Self {
        if let Self::Backend { refused, .. } = &mut self {
            *refused = attempts;
        }
        self
    }

    /// The same error, which concerns these parts alone. The caller leaves them out, and syncs
    /// again at once: the next transition lacks these Service ports, and these families are not to
    /// be programmed ([`Transition::programs`](crate::transition::Transition::programs)). The
    /// backend itself compares everything then if a part of the sync was done.
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
            Self::Unusable { .. } => &[],
        }
    }
}
