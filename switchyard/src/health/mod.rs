//! The health of a proxy, by which load balancers choose nodes: of the proxy itself, and of each
//! Service with a `healthCheckNodePort`.
//!
//! - [`ProxyHealth`]: whether the proxy programs what it is asked to. An observer of the engine.
//! - [`ServiceHealthServers`]: the servers of the health check node ports, with the Services that
//!   [`HealthCheckUpdates`] sends, an observer as well.
//! - [`http`]: the servers, with limits of connections.

pub mod http;
mod proxy;
mod services;

pub use self::{
    proxy::{FamilyReport, HealthReport, ProxyHealth},
    services::{HealthCheckUpdates, HealthChecks, NotServed, ServiceHealthServers},
};
