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
    /// ([`Transition::programs`](crate::transition::Transition::programs)). The backend itself compares everything then if a part of the sync was
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
