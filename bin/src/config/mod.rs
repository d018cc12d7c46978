//! The configuration: defaults, then the file, then the flags.
//!
//! ```text
//! file (or nothing) -> defaults for what it leaves unset -> flags -> checks -> Settings
//! ```
//!
//! Which flags there are beside a file depends on the name that the program is called by; see
//! [`Flags`].
//!
//! Flags come after the defaults because a flag that was given counts even where its value is
//! zero, which in a file means "unset".

pub mod duration;
pub mod file;
pub mod gates;
pub mod quantity;
pub mod settings;
pub mod text;
pub mod v1alpha1;
pub mod validate;
pub mod write;

use std::{io, path::Path};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::Serialized,
    value::{Dict, Map},
};

use crate::{
    flags::{FlagValue, Flags},
    version,
};

use self::{
    duration::GoDuration,
    file::FileError,
    gates::GateError,
    settings::{Beside, ConfigFile, LogSettings, Mode, NftTransport, Settings},
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
    /// A feature gate cannot have the value that it is given.
    #[error("failed complete")]
    Gate(#[from] GateError),
    /// The host's name could not be read.
    #[error("cannot read the host's name")]
    Hostname(#[source] io::Error),
    /// `hostnameOverride` is nothing but white space.
    #[error("failed complete: empty hostname-override is invalid")]
    EmptyHostname,
    /// `logging` makes no sense.
    #[error("initialize logging")]
    Logging(#[source] Invalid),
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

/// A configuration that has all its values, sensible or not; but those of `logging` are.
#[derive(Debug)]
pub struct Completed {
    /// How to log.
    pub log: LogSettings,
    config: KubeProxyConfiguration,
    warnings: Vec<String>,
    beside: Beside,
}

/// A configuration that makes sense.
#[derive(Debug)]
pub struct Loaded {
    /// What the program uses. If the configuration leaves the mode to us, this is nftables mode's.
    pub settings: Settings,
    /// What it was made from, with all defaults.
    pub config: KubeProxyConfiguration,
    /// What the operator should know, although it is no error.
    pub warnings: Vec<String>,
    beside: Beside,
}

impl Loaded {
    /// The mode that the configuration names, if it does.
    pub fn named_mode(&self) -> Option<Mode> {
        Some(self.settings.backend.mode).filter(|_| !self.config.mode.is_empty())
    }

    /// The settings if this is the mode that is used.
    pub fn with_mode(&self, mode: Mode) -> Result<Settings, ConfigError> {
        Settings::new(&self.config, &self.beside, mode)
    }
}

/// Puts the layers together, checks the result and parses it.
pub fn load(flags: &Flags) -> Result<Loaded, ConfigError> {
    complete(flags)?.validate()
}

/// Puts the layers together, and checks as much as is needed to start logging: what is wrong with
/// the rest is logged as the configuration asks.
pub fn complete(flags: &Flags) -> Result<Completed, ConfigError> {
    let Layered { config, beside, mut warnings } = layered(flags)?;
    warnings.extend(gates::check(&config.feature_gates)?);
    validate::validate_logging(&config).map_err(ConfigError::Logging)?;
    Ok(Completed { log: settings::log(&config.logging), config, warnings, beside })
}

impl Completed {
    /// Checks the configuration and parses it.
    pub fn validate(self) -> Result<Loaded, ConfigError> {
        let Self { config, beside, warnings, .. } = self;
        let mode = Mode::selected_by(&config.mode);
        validate::validate(&config, mode)?;
        // What was let through has a mode.
        let settings = Settings::new(&config, &beside, mode.unwrap_or(Mode::Nftables))?;
        Ok(Loaded { settings, config, warnings, beside })
    }
}

/// What the flags alone say about logging: for messages about a configuration that is not good.
pub fn log_flags(flags: &Flags) -> LogSettings {
    let logging = v1alpha1::Logging {
        format: flags.text("logging-format").unwrap_or_default().to_owned(),
        verbosity: flags.number("v").and_then(|v| v.try_into().ok()).unwrap_or(0),
        ..Default::default()
    };
    settings::log(&logging)
}

/// The layers, put together.
struct Layered {
    config: KubeProxyConfiguration,
    beside: Beside,
    warnings: Vec<String>,
}

fn layered(flags: &Flags) -> Result<Layered, ConfigError> {
    let mut warnings = flags.warnings();
    let mut beside = beside(flags);
    let mut config = match flags.text("config") {
        Some(path) => {
            let (config, file) = from_file(Path::new(path), &mut warnings)?;
            beside.config_file = Some(file);
            config
        }
        None => KubeProxyConfiguration {
            // A file that does not say this leaves it at zero, the flag's default does not.
            ipvs: v1alpha1::Ipvs {
                min_sync_period: GoDuration::from_secs(1),
                ..Default::default()
            },
            ..Default::default()
        },
    };
    beside.conntrack_was_named =
        config.conntrack != v1alpha1::Conntrack::default() || flags.any_below("conntrack");
    config.apply_defaults();
    let given = flags.values(&config.mode);
    let file_levels = config.logging.vmodule.clone();
    let levels_were_given = given.iter().any(|flag| flag.path == "logging.vmodule");
    let mut config: KubeProxyConfiguration = Figment::from(Serialized::defaults(config))
        .merge(FlagLayer(given))
        .extract()
        .map_err(|error| ConfigError::Flags(Box::new(error)))?;
    if levels_were_given {
        config.logging.vmodule.extend(file_levels);
    }
    // A flag may hold a bare address too.
    config.complete_listen_addresses();
    port_flags(flags, &mut config);
    Ok(Layered { config, beside, warnings })
}

/// What the flags say that a KubeProxyConfiguration has no field for.
fn beside(flags: &Flags) -> Beside {
    Beside {
        manifests: flags.text("manifests").map(Into::into),
        master: flags.text("master").map(Into::into),
        nft_transport: match flags.text("nft-transport") {
            Some("json") => NftTransport::Json,
            _ => NftTransport::Netlink,
        },
        user_agent: version::user_agent(flags.precedence),
        config_file: None,
        conntrack_was_named: false,
    }
}

/// The deprecated flags for ports. 0 makes an address empty, which switches health off and is no
/// address for metrics. Any other number counts only where the address has no port; those were
/// completed with the usual one, so it replaces that.
fn port_flags(flags: &Flags, config: &mut KubeProxyConfiguration) {
    for (field, flag, address, usual) in [
        (
            "healthzBindAddress",
            "healthz-bind-address",
            &mut config.healthz_bind_address,
            v1alpha1::HEALTHZ_PORT,
        ),
        (
            "metricsBindAddress",
            "metrics-bind-address",
            &mut config.metrics_bind_address,
            v1alpha1::METRICS_PORT,
        ),
    ] {
        let suffix = format!(":{usual}");
        let names_port = flags.text(flag).is_some_and(|text| text.ends_with(&suffix));
        match flags.port_of(field) {
            Some(0) => address.clear(),
            Some(port) if !names_port => {
                if let Some(host) = address.strip_suffix(&suffix) {
                    *address = format!("{host}:{port}");
                }
            }
            _ => {}
        }
    }
}

fn from_file(
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<(KubeProxyConfiguration, ConfigFile), ConfigError> {
    let (file::Decoded { config, warnings: found }, text) = file::read(path)?;
    warnings.extend(found.into_iter().map(|text| format!("{}: {text}", path.display())));
    Ok((config, ConfigFile { path: path.to_owned(), text }))
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
