//! Kubernetes Services programmed with IPVS, the kernel's own load balancer, for clusters that
//! chose it for its schedulers.
//!
//! A Service address is an address of the node (on the device `kube-ipvs0`), where a virtual server
//! takes its traffic. The rules of another backend, of nftables or else of iptables, decide
//! beforehand whom to masquerade and what to drop. Rules and the device have kube-proxy's names, so
//! that either proxy can take over from the other.
//!
//! ```no_run
//! use switchyard_core::{config::NodeConfig, engine::Engine, proxier::Backend};
//! use switchyard_ipvs::{IpvsBackend, IpvsConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut config = IpvsConfig::default();
//! config.scheduler = "wlc".into();
//! let backend = IpvsBackend::new(config);
//! let engine = Engine::builder(NodeConfig::new("node-1")).start(backend.probe()?.open()?)?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`IpvsBackend`]: probes, opens, and cleans up.
//! - [`IpvsConfig`]: the settings.
//! - [`DEVICE`]: the device that holds the addresses of Services.
//! - [`Scheduler`]: the kernel's schedulers, and the algorithms that they do.

#![forbid(unsafe_code)]

mod backend;
mod config;
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
