//! Failures of the demo, in sentences for people who see it for the first time.

use std::{io, path::PathBuf};

use control_plane::ControlPlaneError;
use packet_rig::RigError;

/// A reason for which the demo ends early. The text of an error does not repeat its source.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The demo was not started by root.
    #[error("the demo makes network namespaces, for which it must be run as root: sudo make demo")]
    NotRoot,
    /// The argument names no act.
    #[error("the demo has no act `{0}`: there are `cluster` and `user`")]
    NoAct(String),
    /// A program is missing.
    #[error("the program `{0}` is missing: install {1} and try again")]
    Missing(&'static str, &'static str),
    /// The proxy has not been built.
    #[error(
        "there is no `switchyard` at {}: build it with cargo build --release -p switchyard-agent",
        .0.display()
    )]
    NoProxy(PathBuf),
    /// Ctrl-C, or a signal like it.
    #[error("stopped")]
    Stopped,
    /// The network, a server or the proxy failed.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// The proxy failed.
    #[error("the proxy failed; the last lines of its log:\n{log}\nreason")]
    Proxy {
        /// The reason.
        source: RigError,
        /// The last lines of the proxy's log.
        log: String,
    },
    /// The genuine API server failed, or refused an object.
    #[error("the API server failed")]
    Server(#[from] ControlPlaneError),
    /// A manifest cannot be decoded.
    #[error("a manifest cannot be sent to the API server: {0}")]
    Manifest(String),
    /// A manifest does not have the endpoint that the script changes.
    #[error("{file} has no endpoint {address} to change")]
    NoEndpoint {
        /// The file.
        file: &'static str,
        /// The endpoint.
        address: String,
    },
    /// An effect of a change was not seen in time.
    #[error("{0} did not happen within {1} s")]
    NotSeen(String, f64),
    /// A file or the terminal failed.
    #[error("cannot {what}")]
    Io {
        /// The action that failed, as in `write web.yaml`.
        what: String,
        /// The reason.
        source: io::Error,
    },
}

impl DemoError {
    /// Makes the error of a proxy with this log.
    pub fn proxy(source: RigError, log: &str) -> Self {
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        Self::Proxy { source, log: last }
    }

    /// Makes the error of an action, for `map_err`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}

/// Shorthand for results of the demo.
pub type Result<T, E = DemoError> = std::result::Result<T, E>;
