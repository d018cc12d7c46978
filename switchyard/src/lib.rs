#![doc = include_str!("../README.md")]
//!
//! - [`Proxy`] and its [`Builder`]; [`Handle`] for async programs and changes of the configuration.
//! - [`health`]: the health of the proxy, and the servers of health check node ports.
//! - [`objects`]: the objects of Kubernetes, as far as a proxy reads them.
//! - [`proxier`]: the interface of backends.
//! - [`Observer`] and [`EngineEvent`]: everything that happens in a proxy.

#![forbid(unsafe_code)]

mod backends;
mod bridges;
mod builder;
mod engine_observer;
mod flows;
pub mod health;
#[cfg(feature = "userspace")]
mod ipv6_localhost;
mod localhost;
mod namespace;
mod proxy;

pub use switchyard_core::{
    config::{self, NodeConfig},
    engine::{Engine, EngineError},
    error::ErrorChain,
    model, objects,
    proxier::{self, SyncReport},
    runner::{EngineEvent, Input, NodePatience, Observer, RunnerConfig},
    state, track, transition,
};
pub use switchyard_kernel::{conntrack, families};
#[cfg(feature = "kube")]
pub use switchyard_sources::kube;
#[cfg(feature = "manifests")]
pub use switchyard_sources::manifests;

#[cfg(any(
    feature = "nftables",
    feature = "iptables",
    feature = "ipvs",
    feature = "userspace"
))]
pub use self::backends::*;
pub use self::{
    bridges::bypassing_bridges,
    builder::{Builder, StartError},
    engine_observer::Log,
    localhost::prepare,
    proxy::{Handle, Proxy, Reports},
};
