#![doc = include_str!("../README.md")]
//!
//! - [`IpvsBackend`]: probes, opens, and cleans up.
//! - [`IpvsConfig`]: the settings.
//! - [`DEVICE`]: the device that holds the addresses of Services.
//! - [`Scheduler`]: the kernel's schedulers, and the algorithms that they do.

#![forbid(unsafe_code)]

mod backend;
mod config;
mod dump;
mod kernel_settings;
#[cfg(test)]
mod kernel_tests;
mod layout;
mod leftovers;
mod probe;
mod proxier;
mod rules;
mod scheduler;
mod sets;

pub use self::{
    backend::IpvsBackend,
    config::{DEVICE, IpvsConfig, IpvsTimeouts},
    scheduler::{Scheduler, UnknownScheduler},
};
