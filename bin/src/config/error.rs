//! The error of a configuration.

use std::io;

use crate::config::{file::FileError, gates::GateError, validate::Invalid};

/// Why a configuration was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed complete")]
    File(#[from] FileError),
    /// A flag has a value that the flag's field cannot have.
    #[error("failed complete: flags")]
    Flags(#[source] Box<figment::Error>),
    /// A feature gate cannot have its configured value.
    #[error("failed complete")]
    Gate(#[from] GateError),
    #[error("cannot read the host's name")]
    Hostname(#[source] io::Error),
    #[error("failed complete: empty hostname-override is invalid")]
    EmptyHostname,
    #[error("initialize logging")]
    Logging(#[source] Invalid),
    #[error("failed validate")]
    Invalid(#[from] Invalid),
    /// A proxy of this name cannot stand beside the cluster's.
    #[error("failed validate: --service-proxy-name={name}: {why}")]
    ProxyName {
        name: String,
        /// The problem with the name, or with the mode.
        why: &'static str,
    },
    #[error("failed validate: objects come from --manifests or --objects-socket, not from both")]
    Sources,
    /// An address that passed validation could not be parsed.
    #[error("failed validate: {text:?}: {why}")]
    Address {
        text: String,
        /// The problem with the address.
        why: &'static str,
    },
}

impl ConfigError {
    pub(crate) fn address(text: &str, why: &'static str) -> Self {
        Self::Address { text: text.to_owned(), why }
    }
}
