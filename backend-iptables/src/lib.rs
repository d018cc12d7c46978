#![doc = include_str!("../README.md")]
//!
//! - [`IptablesBackend`]: probes, opens, and cleans up.
//! - [`IptablesConfig`]: the settings.
//! - [`IptablesProxier`]: the backend, which compares what should be with what is.
//! - [`render`]: the rules as text.
//!
//! Programs, tables and their surveillance are those of [`switchyard_kernel::xtables`].

#![forbid(unsafe_code)]

mod backend;
mod config;
mod dump;
mod layout;
mod monitor;
mod proxier;

pub use switchyard_kernel::xtables::{
    Flavour, LeftoverError, ProgramOptions, TimeLimits, ToolError, Tools, legacy_tables,
};

pub use self::{
    backend::IptablesBackend,
    config::{ChainNaming, IptablesConfig},
    proxier::{IptablesProxier, legacy_service_chains, render},
};
