//! Failures of the rig itself, as opposed to what a probe observes.

use std::{error::Error, io, path::PathBuf, process::ExitStatus, time::Duration};

/// A failure of the rig: something could not be built, started or read.
///
/// The text of an error does not repeat its source; [`chain`] prints both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RigError {
    /// A namespace could not be made or entered. Needs root (`CAP_SYS_ADMIN`).
    #[error("cannot {action} a network namespace (root is needed)")]
    Namespace {
        /// `create` or `enter`.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// A program ran and failed.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// The command line.
        command: String,
        /// The exit code or the signal.
        status: ExitStatus,
        /// The program's standard error.
        stderr: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}", path.display())]
    File {
        /// `read`, `write`, `remove`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A socket could not be made, or a request on it failed.
    #[error("{what} failed")]
    Socket {
        /// The operation.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// The proxy ended by itself.
    #[error("the proxy ended ({status})")]
    ProxyEnded {
        /// The exit code or the signal.
        status: ExitStatus,
    },
    /// The proxy did not program anything in time.
    #[error("the proxy was not ready after {waited:?}: {last}")]
    ProxyNotReady {
        /// The time that the rig waited.
        waited: Duration,
        /// The result of the last look at the proxy.
        last: String,
    },
    /// The proxy did not end by `SIGTERM`.
    #[error("the proxy did not end by SIGTERM ({})", status.map_or("it was not running".to_owned(), |status| status.to_string()))]
    ProxyNotStopped {
        /// The way in which the proxy ended then; none if it was not running.
        status: Option<ExitStatus>,
    },
    /// There is no binary to test.
    #[error("no proxy to test: {0}")]
    NoBinary(String),
    /// The binary is older than a file that it is built from.
    #[error(
        "{} is older than {}: build it again (cargo build --workspace --bins)",
        binary.display(),
        source_file.display()
    )]
    StaleBinary {
        /// The binary.
        binary: PathBuf,
        /// The file that changed, or is no more.
        source_file: PathBuf,
    },
    /// The environment names an unknown backend.
    #[error("SWITCHYARD_BACKENDS: there is no backend {name:?}")]
    UnknownBackend {
        /// The name.
        name: String,
    },
    /// The environment names ipvs, on a kernel without IPVS.
    #[error(
        "SWITCHYARD_BACKENDS names ipvs, but this kernel has no IPVS (module ip_vs); make test-ipvs runs \
         the cases on a kernel that has"
    )]
    NoIpvs,
    /// The environment names kube-proxy as a backend, and no program of it.
    #[error("SWITCHYARD_BACKENDS names kube-proxy, and KUBE_PROXY no program")]
    NoKubeProxy,
    /// The stand-in for the API server ended, or did not write that it serves.
    #[error("the stand-in for the API server did not start: {0}")]
    NoServer(String),
    /// The nft of Debian's next release cannot be had, and `SWITCHYARD_OFFLINE` is set.
    #[error("there is no nft 1.1.3, which the JSON transport needs")]
    NoNft,
    /// A case is malformed.
    #[error("case {case}: {message}")]
    BadCase {
        /// The case, or the file of cases.
        case: String,
        /// The mistake.
        message: String,
    },
}

/// Shorthand for results of the rig.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_every_cause_once() {
        let source = io::Error::other("no space");
        let error = RigError::File { action: "write", path: "/x".into(), source };
        assert_eq!(chain(&error), "cannot write /x: no space");
    }
}
