//! The configuration: defaults, then the file, then the flags.
//!
//! ```text
//! file (or nothing) -> defaults for what it leaves unset -> flags -> checks -> Settings
//! ```
//!
//! Flags come after the defaults because a flag that was given counts even where its value is
//! zero, which in a file means "unset".

pub mod duration;
pub mod file;
pub mod settings;
pub mod v1alpha1;
pub mod validate;

use std::{io, path::Path};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::Serialized,
    value::{Dict, Map},
};

use crate::cli::{FlagValue, Flags};

use self::{
    file::FileError,
    settings::{LogSettings, Settings},
    v1alpha1::KubeProxyConfiguration,
    validate::Invalid,
};

/// Why there is no configuration to run with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file.
    #[error("failed complete")]
    File(#[from] FileError),
    /// A flag has a value that its field cannot have.
    #[error("failed complete: flags")]
    Flags(#[source] Box<figment::Error>),
    /// The host's name could not be read.
    #[error("cannot read the host's name")]
    Hostname(#[source] io::Error),
    /// `hostnameOverride` is nothing but white space.
    #[error("failed complete: empty hostname-override is invalid")]
    EmptyHostname,
    /// Fields have values that make no sense.
    #[error("failed validate")]
    Invalid(#[from] Invalid),
    /// An address that passed validation could not be read after all.
    #[error("failed validate: {text:?}: {why}")]
    Address {
        /// The address.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl ConfigError {
    pub(crate) fn address(text: &str, why: &'static str) -> Self {
        Self::Address { text: text.to_owned(), why }
    }
}

/// A configuration that makes sense.
#[derive(Debug)]
pub struct Loaded {
    /// What the program uses.
    pub settings: Settings,
    /// What it was made from, with all defaults.
    pub config: KubeProxyConfiguration,
    /// What the operator should know, although it is no error.
    pub warnings: Vec<String>,
}

/// Puts the layers together, checks the result and parses it.
pub fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    let (config, warnings) = layered(flags)?;
    let settings = Settings::new(&config, &flags.beside())?;
    Ok(Loaded { settings, config, warnings })
}

/// What the flags alone say about logging: for messages about a configuration that is not good.
pub fn log_flags(flags: &Flags) -> LogSettings {
    let logging = v1alpha1::Logging {
        format: flags.logging_format.clone().unwrap_or_default(),
        verbosity: flags.verbosity.unwrap_or(0),
        ..Default::default()
    };
    settings::log(&logging)
}

fn layered(flags: &Flags) -> Result<(KubeProxyConfiguration, Vec<String>), ConfigError> {
    let (mut config, mut warnings) = match &flags.config {
        Some(path) => from_file(path)?,
        None => Default::default(),
    };
    config.apply_defaults();
    let given = flags.values(&config.mode);
    let mut config: KubeProxyConfiguration = Figment::from(Serialized::defaults(config))
        .merge(FlagLayer(given))
        .extract()
        .map_err(|error| ConfigError::Flags(Box::new(error)))?;
    // A flag may hold a bare address too.
    config.complete_listen_addresses();
    if config.feature_gates.get("AllowServiceExternalIPs") == Some(&false) {
        let gate = "featureGates.AllowServiceExternalIPs";
        warnings.push(format!("{gate}: false has no effect yet: externalIPs are programmed"));
    }
    Ok((config, warnings))
}

fn from_file(path: &Path) -> Result<(KubeProxyConfiguration, Vec<String>), ConfigError> {
    let file::Decoded { config, warnings } = file::read(path)?;
    let place = |text: String| format!("{}: {text}", path.display());
    Ok((config, warnings.into_iter().map(place).collect()))
}

/// The flags, as a layer.
struct FlagLayer(Vec<FlagValue>);

impl Provider for FlagLayer {
    fn metadata(&self) -> Metadata {
        Metadata::named("flags")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let layers = self.0.iter().map(|flag| Serialized::default(&flag.path, flag.value.clone()));
        layers.fold(Figment::new(), Figment::merge).data()
    }
}

#[cfg(test)]
mod tests;
