//! The words of the model: address families, protocols, names, addresses and algorithms.

mod address;
mod backoff;
mod family;
mod lb_algorithm;
mod names;
mod proxy_protocol;

pub(crate) use self::address::aggregated;
pub use self::{
    address::{AddressError, parse_cidr, parse_ip},
    backoff::Backoff,
    family::{IpFamily, PerFamily},
    lb_algorithm::LbAlgorithm,
    names::{Protocol, ServiceName, ServicePortId, ServicePortName},
    proxy_protocol::ProxyProtocol,
};
