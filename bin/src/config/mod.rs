//! kube-proxy's configuration: the file, the flags, and the settings that follow from the two.
//!
//! [`cli`] parses the command line by the table of [`flags`]. [`load()`] joins the file
//! ([`mod@file`], [`v1alpha1`]) and the flags, checks the result ([`validate`]) and parses the
//! result into [`settings`]. [`watch`] waits until the content of the file changes.

pub mod cli;
pub mod duration;
mod error;
pub mod file;
pub mod flags;
pub mod gates;
mod load;
mod logging;
mod manual;
mod parse;
pub mod quantity;
pub mod release;
pub mod settings;
pub mod text;
pub mod v1alpha1;
pub mod validate;
pub mod version;
pub mod watch;
pub mod write;

pub use self::{
    error::ConfigError,
    load::{Loaded, complete, load, log_flags},
};

/// Configurations from arguments.
#[cfg(test)]
pub mod testing {
    use std::{ffi::OsString, iter};

    use super::{Loaded, cli, flags::Flags, load, settings::MODES};

    pub fn flags(program: &str, arguments: &[impl AsRef<str>]) -> Flags {
        let arguments = arguments.iter().map(AsRef::as_ref);
        let all: Vec<OsString> = iter::once(program).chain(arguments).map(Into::into).collect();
        cli::parse(all).unwrap_or_else(|error| panic!("{error}")).flags
    }

    /// Loads the configuration of the node `node-1`.
    pub fn loaded(arguments: &[&str]) -> Loaded {
        let all = [&["--hostname-override=node-1"], arguments].concat();
        load(&flags("switchyard", &all), &MODES)
            .unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    }
}
