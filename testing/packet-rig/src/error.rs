//! Failures of the rig itself, as opposed to what a probe observes.

use std::{error::Error, io, process::ExitStatus};

/// A failure of the rig: something could not be built, started or read.
///
/// The text of an error does not repeat its source; [`chain`] prints both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RigError {
    /// An operation failed: a network namespace, a program, a file or a socket cannot be used.
    #[error("cannot {what}")]
    Io { what: String, source: io::Error },
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        command: String,
        /// The exit code or the signal.
        status: ExitStatus,
        stderr: String,
    },
    /// The proxy ended by itself, was not ready in time, or did not end by `SIGTERM`.
    #[error("the proxy {0}")]
    Proxy(String),
    /// The program to be tested, or a thing that tests need, is missing; or a case is malformed.
    #[error("{0}")]
    Setup(String),
}

impl RigError {
    /// Returns a function that gives an error of the operating system its context: `cannot {what}`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { what: what.into(), source }
    }
}

pub type Result<T, E = RigError> = std::result::Result<T, E>;

/// An error and its sources, joined by `: `.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
