//! Errors of the stand-in.

use packet_rig::RigError;

/// A failure of the stand-in: a command failed, or its output could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    /// A command in the node's namespace failed.
    #[error("a command on the node failed")]
    Command(#[from] RigError),
    /// `nft --json` printed something other than JSON.
    #[error("{command} did not print JSON")]
    Json {
        /// The command line.
        command: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// `nft --json` printed JSON that lists no objects.
    #[error("{command} printed no list of objects: {output}")]
    NoObjects {
        /// The command line.
        command: String,
        /// The whole output.
        output: String,
    },
    /// Genuine kube-proxy logged errors.
    #[error("kube-proxy logged: {0}")]
    Log(String),
    /// The kernel did not answer about IPVS.
    #[error("cannot reach IPVS")]
    Ipvs(#[from] switchyard_kernel::netlink::Error),
    /// IPVS refused a command.
    #[error("IPVS refused a command")]
    Refused(#[source] switchyard_kernel::ipvs::Refusal),
}

/// Shorthand for results of the stand-in.
pub type Result<T, E = StandInError> = std::result::Result<T, E>;
