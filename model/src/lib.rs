//! The words that the crates of Switchyard share: address families, protocols, names, addresses,
//! algorithms, and errors with their causes.
//!
//! ```
//! use switchyard_model::{IpFamily, PerFamily, parse_ip};
//!
//! let address = parse_ip("10.96.0.1")?;
//! let mut counts = PerFamily { v4: 0, v6: 0 };
//! *counts.get_mut(IpFamily::of(&address)) += 1;
//! assert_eq!(counts.v4, 1);
//! # Ok::<(), switchyard_model::AddressError>(())
//! ```
//!
//! The crate knows no kernel, no Kubernetes object and no runtime.

mod address;
mod backoff;
pub mod error;
mod family;
mod interface_addresses;
mod lb_algorithm;
mod local_pods;
mod names;
mod proxy_protocol;

pub use self::{
    address::{AddressError, aggregated, parse_cidr, parse_ip},
    backoff::Backoff,
    error::ErrorChain,
    family::{IpFamily, PerFamily},
    interface_addresses::InterfaceAddresses,
    lb_algorithm::LbAlgorithm,
    local_pods::LocalPods,
    names::{Protocol, ServiceName, ServicePortId, ServicePortName},
    proxy_protocol::ProxyProtocol,
};
