//! The log of this process, as the configuration says.

use std::sync::OnceLock;

use crate::klog::{self, Log, LogConfig, LogError};

static LOG: OnceLock<Log> = OnceLock::new();

/// Starts the log. Only the program itself may call this function, and once.
pub fn start(config: &LogConfig) -> Result<(), LogError> {
    let log = klog::start(config)?;
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
pub fn set_levels(config: &LogConfig) -> bool {
    LOG.get().is_some_and(|log| log.set_levels(config))
}
