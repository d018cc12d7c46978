#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod address;
mod backoff;
mod code;
pub mod error;
mod family;
mod interface_addresses;
mod lb_algorithm;
mod local_pods;
mod names;
mod proxy_protocol;
mod tables;
#[cfg(feature = "testing")]
pub mod testing;
mod words;

pub use self::{
    address::{AddressError, aggregated, parse_cidr, parse_ip},
    backoff::Backoff,
    code::Code,
    error::ErrorChain,
    family::{IpFamily, PerFamily},
    interface_addresses::InterfaceAddresses,
    lb_algorithm::LbAlgorithm,
    local_pods::LocalPods,
    names::{Protocol, ServiceName, ServicePortId, ServicePortName},
    proxy_protocol::ProxyProtocol,
    tables::{HashMap, HashSet, shrink_table},
};
