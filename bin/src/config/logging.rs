//! The section `logging`: its checks, and the settings of the log that follow from it.

use crate::{
    config::{
        duration::GoDuration,
        gates, quantity,
        v1alpha1::{KubeProxyConfiguration, Logging},
        validate::Invalid,
    },
    klog::{LogConfig, LogFormat},
};

/// The largest size of the log's buffer in bytes, whatever the configuration asks for.
const LARGEST_BUFFER: f64 = 16_777_216.0;

/// Parses the section, which passed validation.
pub fn settings(logging: &Logging) -> LogConfig {
    let format = if logging.format == "json" { LogFormat::Json } else { LogFormat::Text };
    let vmodule = logging.vmodule.iter().map(|entry| (entry.file_pattern.clone(), entry.verbosity));
    let options = match format {
        LogFormat::Text => &logging.options.text,
        LogFormat::Json => &logging.options.json,
    };
    LogConfig {
        format,
        verbosity: logging.verbosity,
        vmodule: vmodule.collect(),
        split_stream: options.split_stream,
        // Validation passed, so this is a quantity.
        info_buffer_size: quantity::parse(&options.info_buffer_size.0)
            .map_or(0, |size| size.clamp(0.0, LARGEST_BUFFER) as usize),
        flush_frequency: logging.flush_frequency.to_std(),
    }
}

/// Checks the section, which must be valid before the log can be started.
pub fn validate(config: &KubeProxyConfiguration) -> Result<(), Invalid> {
    let mut errors = Vec::new();
    // kube-proxy reports these errors without the prefix of the others.
    let mut push = |path: &str, what: String| errors.push(format!("logging.{path}: {what}"));
    let logging = &config.logging;
    if !matches!(logging.format.as_str(), "text" | "json") {
        push("format", format!("Invalid value: {:?}: Unsupported log format", logging.format));
    }
    if logging.flush_frequency <= GoDuration::ZERO {
        let value = logging.flush_frequency;
        push("flushFrequency", format!("Invalid value: \"{value}\": Must be greater than zero"));
    }
    let too_high = |verbosity: u32| {
        let why = format!("Must be <= {}", i32::MAX);
        (verbosity > i32::MAX as u32).then(|| format!("Invalid value: {verbosity}: {why}"))
    };
    if let Some(what) = too_high(logging.verbosity) {
        push("verbosity", what);
    }
    let gate = |name| gates::is_on(&config.feature_gates, name);
    if logging.format == "json" && !gate(gates::LOGGING_BETA) {
        let why = "Log format json is disabled, see LoggingBetaOptions feature";
        push("format", format!("Forbidden: {why}"));
    }
    for (format, options) in [("text", &logging.options.text), ("json", &logging.options.json)] {
        let size = quantity::parse(&options.info_buffer_size.0);
        if size.is_none() {
            let value = &options.info_buffer_size.0;
            let path = format!("options.{format}.infoBufferSize");
            push(&path, format!("Invalid value: {value:?}: not a quantity"));
        }
        let why = "Forbidden: Feature LoggingAlphaOptions is disabled";
        if options.split_stream && !gate(gates::LOGGING_ALPHA) {
            push(&format!("options.{format}.splitStream"), why.into());
        }
        if size.is_some_and(|size| size != 0.0) && !gate(gates::LOGGING_ALPHA) {
            push(&format!("options.{format}.infoBufferSize"), why.into());
        }
    }
    if logging.format == "json" && !logging.vmodule.is_empty() {
        push("vmodule", "Forbidden: Only supported for text log format".into());
    }
    for (index, entry) in logging.vmodule.iter().enumerate() {
        let pattern = &entry.file_pattern;
        let path = format!("vmodule[{index}]");
        if pattern.is_empty() {
            push(&path, "Required value: File pattern must not be empty".into());
        } else if pattern.contains(['=', ',']) {
            let why = "File pattern must not contain equal sign or comma";
            push(&path, format!("Invalid value: {pattern:?}: {why}"));
        }
        if let Some(what) = too_high(entry.verbosity) {
            push(&path, what);
        }
    }
    Invalid::unless_empty(errors)
}
