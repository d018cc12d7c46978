//! Kubernetes Services programmed with iptables, for nodes whose kernel or policies rule nftables
//! out.
//!
//! Chains, marks and jumps have kube-proxy's names, so that either proxy can take over from the
//! other; but only endpoints on this node have their own chains, and a sync sends
//! `iptables-restore --noflush` what changed and nothing else.
//!
//! ```no_run
//! use switchyard_core::{config::NodeConfig, engine::Engine};
//! use switchyard_iptables::{IptablesConfig, IptablesProxier};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let proxier = IptablesProxier::new(IptablesConfig::default())?.usable()?;
//! let engine = Engine::builder(NodeConfig::new("node-1")).start(proxier)?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`IptablesConfig`]: the settings.
//! - [`IptablesProxier`]: the backend, which compares what should be with what is.
//! - [`render`]: the rules as text.
//! - [`clean_up`]: removal of everything, without the programs.
//!
//! Programs, tables and their surveillance are those of [`switchyard_xtables`].

#![forbid(unsafe_code)]

mod backend;
mod config;
mod layout;
mod monitor;
mod proxier;

pub use switchyard_xtables::{
    Flavour, LeftoverError, ProgramOptions, TimeLimits, ToolError, Tools,
};

pub use self::{
    backend::IptablesBackend,
    config::{ChainNaming, IptablesConfig},
    proxier::{IptablesProxier, clean_up, find_tools, render},
};
