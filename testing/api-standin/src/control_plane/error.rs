//! Failures of the servers, and of requests to them.

use std::{io, path::PathBuf, time::Duration};

/// A server cannot be started, or a request of a test failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlPlaneError {
    /// One variable names a program, and the other does not.
    #[error("{set} is set, and {missing} is not: both programs are needed")]
    Half {
        /// The variable that is set.
        set: &'static str,
        /// The variable that is not.
        missing: &'static str,
    },
    /// A variable names no file.
    #[error("{variable}: no file {}", path.display())]
    NoFile {
        /// The variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A file of the servers cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No port is free.
    #[error("no port of the loopback address is free")]
    Port(#[source] io::Error),
    /// A program cannot be run.
    #[error("cannot run {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A server ended, or did not become ready in time.
    #[error("the API server was not ready after {waited:?}: {last}\n{logs}")]
    NotReady {
        /// The time that was waited.
        waited: Duration,
        /// The last answer, or the cause of none.
        last: String,
        /// The ends of both logs.
        logs: String,
    },
    /// A client cannot be made.
    #[error("no client for the API server")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// An object has no name, or its kind is not served.
    #[error("the test's object cannot be sent: {0}")]
    Object(String),
    /// The API server refused a request, or gave no answer.
    #[error("{method} {path} failed")]
    Request {
        /// `PUT`, `POST` or `DELETE`.
        method: &'static str,
        /// The path.
        path: String,
        /// The cause.
        source: Box<kube::Error>,
    },
}

/// Shorthand for results of this module.
pub type Result<T, E = ControlPlaneError> = std::result::Result<T, E>;
