//! Kubernetes Services programmed with IPVS, the kernel's own load balancer, for clusters that chose it
//! for its schedulers.
//!
//! A Service address is an address of the node (on the device `kube-ipvs0`), where a virtual server takes
//! its traffic. A few rules of iptables, which match sets, decide beforehand whom to masquerade and what
//! to drop. Sets, chains and the device have the names of kube-proxy's ipvs mode, so that either proxy can
//! take over from the other.
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
mod existing_sets;
mod filter;
mod kernel_settings;
#[cfg(test)]
mod kernel_tests;
mod layout;
mod leftovers;
mod packet_filter;
mod probe;
mod proxier;
mod scheduler;
mod sets;

pub use self::{
    backend::IpvsBackend,
    config::{DEVICE, IpvsConfig, IpvsTimeouts},
    scheduler::{Scheduler, UnknownScheduler},
};
