//! From a text to settings and back, without files, flags or this node: what fuzzing and the tests
//! of its corpus do.

use super::{
    ConfigError,
    file::{self, DecodeError},
    gates,
    settings::{Beside, Mode, Settings},
    v1alpha1::KubeProxyConfiguration,
    validate,
    write::{self, WriteError},
};

/// Why a text is no configuration, or does not come back as it went.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Reads, checks and parses a configuration, and returns it as it would be written.
///
/// # Panics
///
/// If what is written does not come back as the same: that is a mistake of ours.
pub fn check(text: &str) -> Result<String, TextError> {
    let written = written(text)?;
    let again = match self::written(&written) {
        Ok(again) => again,
        Err(error) => panic!("what was written cannot be read: {error}\n{written}"),
    };
    assert_eq!(written, again, "what is written is read as something else");
    Ok(written)
}

fn written(text: &str) -> Result<String, TextError> {
    let mut config: KubeProxyConfiguration = file::decode(text)?.config;
    config.apply_defaults();
    // The host's name is none of the text's.
    if config.hostname_override.is_empty() {
        config.hostname_override = "node".into();
    }
    gates::check(&config.feature_gates).map_err(ConfigError::from)?;
    let mode = Mode::selected_by(&config.mode);
    validate::validate(&config, mode).map_err(ConfigError::from)?;
    Settings::new(&config, &Beside::default(), mode.unwrap_or(Mode::Nftables))?;
    Ok(write::yaml(&config)?)
}
