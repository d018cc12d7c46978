//! The round trip from a text to settings and back, for fuzzing. Files, flags and this node have no
//! effect.

use std::error::Error;

use switchyard_core::proxier::Mode;

use crate::config::{
    file, gates,
    settings::{self, FlagOnlySettings, MODES, Settings},
    v1alpha1::KubeProxyConfiguration,
    validate, write,
};

/// Decodes, checks and parses a configuration, and returns the text that would be written for it.
///
/// # Panics
///
/// If the text that was written is decoded to another configuration, which is a bug in this crate.
pub fn check(text: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let written = written(text)?;
    let again = match self::written(&written) {
        Ok(again) => again,
        Err(error) => panic!("the written text cannot be read: {error}\n{written}"),
    };
    assert_eq!(written, again, "the written text is read as another configuration");
    Ok(written)
}

fn written(text: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut config: KubeProxyConfiguration = file::decode(text)?.config;
    config.apply_defaults();
    // The result must not depend on the host's name.
    if config.hostname_override.is_empty() {
        config.hostname_override = "node".into();
    }
    gates::check(&config.feature_gates)?;
    let mode = settings::select_mode(&MODES, &config.mode);
    validate::validate(&config, mode, &MODES)?;
    Settings::new(&config, &FlagOnlySettings::default(), mode.unwrap_or(Mode::NFTABLES))?;
    Ok(write::yaml(&config)?)
}
