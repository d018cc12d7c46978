//! What can go wrong in the rig itself, as opposed to what a probe observes.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// A failure of the rig: it could not build, start or read something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RigError {
    /// A namespace could not be made or entered. Needs root (`CAP_SYS_ADMIN`).
    #[error("cannot {action} a network namespace (root is needed): {source}")]
    Namespace {
        /// `create` or `enter`.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it wrote to standard error.
        stderr: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read`, `write`, `remove`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A socket could not be made, or a request on it failed.
    #[error("{what}: {source}")]
    Socket {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The proxy ended by itself.
    #[error("the proxy ended ({status})")]
    ProxyEnded {
        /// How it ended.
        status: ExitStatus,
    },
    /// The proxy did not program anything in time.
    #[error("the proxy was not ready after {waited:?}: {last}")]
    ProxyNotReady {
        /// How long was waited.
        waited: Duration,
        /// What the last look at it showed.
        last: String,
    },
    /// There is no binary to test.
    #[error("no proxy to test: {0}")]
    NoBinary(String),
    /// A case says something that makes no sense.
    #[error("case {case}: {message}")]
    BadCase {
        /// The case, or the file of cases.
        case: String,
        /// What is wrong.
        message: String,
    },
}

/// Shorthand for results of the rig.
pub type Result<T, E = RigError> = std::result::Result<T, E>;
