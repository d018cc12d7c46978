//! Why the demo cannot go on, in sentences for people who see it for the first time.

use std::{io, path::PathBuf};

use packet_rig::RigError;

/// Why the demo ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// It was not started by root.
    #[error("the demo makes network namespaces, for which it must be run as root: sudo make demo")]
    NotRoot,
    /// A program is missing.
    #[error("the program `{0}` is missing: install {1} and try again")]
    Missing(&'static str, &'static str),
    /// The proxy has not been built.
    #[error(
        "there is no `switchyard` at {}: build it with cargo build --release -p switchyard",
        .0.display()
    )]
    NoProxy(PathBuf),
    /// Ctrl-C, or a signal like it.
    #[error("stopped")]
    Stopped,
    /// The network, a server or the proxy.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// The proxy failed; with the end of its log.
    #[error("{source}\nthe last lines of its log:\n{log}")]
    Proxy {
        /// How.
        source: RigError,
        /// What it wrote last.
        log: String,
    },
    /// A manifest cannot be changed as the script wants.
    #[error("{file} has no endpoint {address} to change")]
    NoEndpoint {
        /// The file.
        file: &'static str,
        /// The endpoint.
        address: String,
    },
    /// The kernel does not do what was programmed, or it was not programmed.
    #[error("{0} did not happen within {1} s")]
    NotSeen(String, f64),
    /// A file or the terminal.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl DemoError {
    /// For `map_err`: `what` could not be done.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}

/// Shorthand for results of the demo.
pub type Result<T, E = DemoError> = std::result::Result<T, E>;
