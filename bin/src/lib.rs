//! The parts of the `switchyard` program, as a library so that tests can reach them.

use std::error::Error;

pub mod cli;
pub mod config;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
pub mod source;

/// The text of an error and of everything that caused it.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
