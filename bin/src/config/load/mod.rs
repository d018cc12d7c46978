//! The loader of the configuration, which applies the file, the defaults and the flags.
//!
//! ```text
//! file (or nothing) -> defaults for what it leaves unset -> flags -> checks -> Settings
//! ```
//!
//! The flags with an effect beside a file depend on the name that the program is called by; see
//! [`Flags`].
//!
//! Flags come after the defaults because a flag that was given counts even if the value is zero,
//! which means "unset" in a file.

use std::{mem, path::Path, time::Duration};

use figment::{
    Figment, Metadata, Profile, Provider,
    providers::Serialized,
    value::{Dict, Map},
};

use switchyard_core::proxier::Mode;

use crate::{
    config::{
        duration::GoDuration,
        error::ConfigError,
        file,
        flags::{FlagValue, Flags},
        gates, logging,
        settings::{self, ConfigFile, FlagOnlySettings, NftTransport, Settings, UserspaceSettings},
        v1alpha1::{self, KubeProxyConfiguration},
        validate, version,
    },
    klog::LogConfig,
};

/// The default of `--userspace-drain`, by which the program ends within a pod's grace period.
const DRAIN: Duration = Duration::from_secs(20);

/// A configuration with all values, of which only `logging` is checked.
#[derive(Debug)]
pub struct Completed {
    /// The settings of the log.
    pub log: LogConfig,
    config: KubeProxyConfiguration,
    warnings: Vec<String>,
    flag_only: FlagOnlySettings,
    modes: Vec<Mode>,
}

/// A configuration that passed all checks.
#[derive(Debug)]
pub struct Loaded {
    /// The settings of the run. If the configuration names no mode, these are nftables mode's.
    pub settings: Settings,
    /// The configuration that the settings were made from, with all defaults.
    pub config: KubeProxyConfiguration,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    flag_only: FlagOnlySettings,
}

impl Loaded {
    /// The mode that the configuration names, or `None` if the configuration leaves the choice.
    pub fn named_mode(&self) -> Option<Mode> {
        // A proxy beside the cluster's has but one mode.
        let is_named =
            !self.config.mode.is_empty() || self.settings.node.service_proxy_name.is_some();
        Some(self.settings.backend.mode).filter(|_| is_named)
    }

    /// Returns the settings of a run in this mode.
    pub fn with_mode(&self, mode: Mode) -> Result<Settings, ConfigError> {
        Settings::new(&self.config, &self.flag_only, mode)
    }
}

/// Loads the configuration that the flags name: [`complete`], then [`Completed::validate`].
pub fn load(flags: &Flags, modes: &[Mode]) -> Result<Loaded, ConfigError> {
    complete(flags, modes)?.validate()
}

/// Joins the file, the defaults and the flags, and checks only what is needed to start the log, so
/// that other errors are logged in the configured format.
///
/// `modes` are the modes that `mode` may name.
pub fn complete(flags: &Flags, modes: &[Mode]) -> Result<Completed, ConfigError> {
    let Layered { config, flag_only, mut warnings } = layered(flags)?;
    warnings.extend(gates::check(&config.feature_gates)?);
    logging::validate(&config).map_err(ConfigError::Logging)?;
    let (log, modes) = (logging::settings(&config.logging), modes.to_vec());
    Ok(Completed { log, config, warnings, flag_only, modes })
}

impl Completed {
    /// Checks and parses the configuration.
    pub fn validate(self) -> Result<Loaded, ConfigError> {
        let Self { config, flag_only, warnings, modes, .. } = self;
        if let Some(name) = &flag_only.service_proxy_name {
            proxy_name(name, &config.mode)?;
        }
        if flag_only.manifests.is_some() && flag_only.objects_socket.is_some() {
            return Err(ConfigError::Sources);
        }
        let mode = settings::select_mode(&modes, &config.mode);
        validate::validate(&config, mode, &modes)?;
        // Validation passed, so the mode is known.
        let settings = Settings::new(&config, &flag_only, mode.unwrap_or(Mode::NFTABLES))?;
        Ok(Loaded { settings, config, warnings, flag_only })
    }
}

/// Checks the name of a proxy beside the cluster's, which is the value of a label, and the mode of
/// the proxy.
fn proxy_name(name: &str, mode: &str) -> Result<(), ConfigError> {
    let is_inner = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let has_ends = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric());
    let why = if name.len() > 63 || !has_ends || !name.bytes().all(is_inner) {
        "must be a value of a label: at most 63 letters, digits and `-_.`, a letter or digit first and last"
    } else if !mode.is_empty() && mode != Mode::NFTABLES.as_str() {
        "a proxy beside another one needs tables of its own, which only nftables mode has: add \
         --proxy-mode=nftables"
    } else {
        return Ok(());
    };
    Err(ConfigError::ProxyName { name: name.to_owned(), why })
}

/// The settings of the log by the flags alone, for messages about an invalid configuration.
pub fn log_flags(flags: &Flags) -> LogConfig {
    let logging = v1alpha1::Logging {
        format: flags.text("logging-format").unwrap_or_default().to_owned(),
        verbosity: flags.number("v").and_then(|v| v.try_into().ok()).unwrap_or(0),
        ..Default::default()
    };
    logging::settings(&logging)
}

/// The file, the defaults and the flags, joined.
struct Layered {
    config: KubeProxyConfiguration,
    flag_only: FlagOnlySettings,
    warnings: Vec<String>,
}

fn layered(flags: &Flags) -> Result<Layered, ConfigError> {
    let mut warnings = flags.warnings();
    let mut flag_only = flag_only(flags);
    let mut config = match flags.text("config") {
        Some(path) => {
            let (mut config, file) = from_file(Path::new(path), &mut warnings)?;
            flag_only.config_file = Some(file);
            // kube-proxy writes the default of its flags over these fields.
            let options = &mut config.logging.options;
            for (format, options) in [("text", &mut options.text), ("json", &mut options.json)] {
                if mem::take(&mut options.split_stream) {
                    warnings.push(format!(
                        "logging.options.{format}.splitStream has no effect in a file, as with \
                         kube-proxy; --log-{format}-split-stream has"
                    ));
                }
            }
            config
        }
        None => KubeProxyConfiguration {
            // The flag has this default. A file without the field leaves the period at zero.
            ipvs: v1alpha1::Ipvs {
                min_sync_period: GoDuration::from_secs(1),
                ..Default::default()
            },
            ..Default::default()
        },
    };
    flag_only.conntrack_was_named =
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
    // The address of a flag may lack the port, too.
    port_flags(flags, &mut config, &mut warnings);
    config.complete_listen_addresses();
    Ok(Layered { config, flag_only, warnings })
}

/// Returns the settings by flags for which KubeProxyConfiguration has no field. The parser of the
/// flags has rejected other words and texts of durations.
fn flag_only(flags: &Flags) -> FlagOnlySettings {
    let period = |name| Some(flags.text(name)?.parse::<GoDuration>().ok()?.to_std());
    let not_zero = |period: &Duration| !period.is_zero();
    FlagOnlySettings {
        manifests: flags.text("manifests").map(Into::into),
        objects_socket: flags.text("objects-socket").map(Into::into),
        master: flags.text("master").map(Into::into),
        nft_transport: match flags.text("nft-transport") {
            Some("json") => NftTransport::Json,
            _ => NftTransport::Netlink,
        },
        service_proxy_name: flags.text("service-proxy-name").map(Into::into),
        lb_algorithm: flags.text("lb-algorithm").and_then(|name| name.parse().ok()),
        ipvs_drain_limit: period("ipvs-drain-limit"),
        conntrack_services: period("conntrack-services-period").filter(not_zero),
        flowtable_devices: flags
            .text("flowtable-devices")
            .into_iter()
            .flat_map(|names| names.split(','))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
        ipvs_run_estimation: flags.text("ipvs-run-estimation").and_then(|word| word.parse().ok()),
        userspace: UserspaceSettings {
            capture: flags.text("userspace-capture").map(Into::into),
            is_named: false,
            udp_timeout: period("userspace-udp-timeout").filter(not_zero),
            connections: flags
                .number("userspace-connections")
                .and_then(|n| usize::try_from(n).ok())
                .filter(|n| *n > 0),
            drain: period("userspace-drain").unwrap_or(DRAIN),
            table: flags.text("userspace-table").filter(|path| *path != "-").map(Into::into),
        },
        user_agent: version::user_agent(flags.precedence, version::reported(flags)),
        config_file: None,
        conntrack_was_named: false,
    }
}

/// Applies the deprecated flags for ports. 0 makes an address empty, which disables the health
/// server and is an error for metrics. Any other number completes an address that was given without
/// a port. As in kube-proxy, the defaults have ports.
fn port_flags(flags: &Flags, config: &mut KubeProxyConfiguration, warnings: &mut Vec<String>) {
    for (field, flag, address) in [
        ("healthzBindAddress", "healthz-port", &mut config.healthz_bind_address),
        ("metricsBindAddress", "metrics-port", &mut config.metrics_bind_address),
    ] {
        match flags.port_of(field) {
            None => {}
            Some(0) => address.clear(),
            Some(port) => {
                v1alpha1::with_port(address, port);
                if !address.ends_with(&format!(":{port}")) {
                    warnings.push(format!("--{flag} has no effect, as the address is {address}"));
                }
            }
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

/// The fields that flags set, as a layer of figment.
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
