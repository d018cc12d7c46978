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
