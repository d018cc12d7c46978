//! The log of this process, in the format and with the levels of the configuration.

use std::sync::OnceLock;

use switchyard_config::settings::{self, LogSettings};
use switchyard_klog::{Log, LogConfig, LogError, LogFormat};

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log. Only the program itself may call this function, and once.
pub fn start(settings: &LogSettings) -> Result<(), LogError> {
    let log = switchyard_klog::start(&log_config(settings))?;
    // The log was not set before, or the line above would have failed.
    let _ = LOG.set(log);
    Ok(())
}

/// Writes buffered lines, before the program ends.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.flush();
    }
}

/// Sets the verbosity, as `-v` does; `--vmodule` stays as it is. Returns false if there is no log.
pub fn set_verbosity(verbosity: u32) -> bool {
    LOG.get().is_some_and(|log| log.set_verbosity(verbosity))
}

/// Sets the verbosity and the levels of single files. Returns false if there is no log.
pub fn set_levels(settings: &LogSettings) -> bool {
    LOG.get().is_some_and(|log| log.set_levels(&log_config(settings)))
}

fn log_config(settings: &LogSettings) -> LogConfig {
    LogConfig {
        format: match settings.format {
            settings::LogFormat::Text => LogFormat::Text,
            settings::LogFormat::Json => LogFormat::Json,
        },
        verbosity: settings.verbosity,
        vmodule: settings.vmodule.clone(),
        split_stream: settings.split_stream,
        info_buffer_size: settings.info_buffer_size,
        flush_frequency: settings.flush_frequency,
    }
}
