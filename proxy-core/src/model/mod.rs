//! The words of the model: address families, protocols, names, addresses and spreads.

mod address;
mod family;
mod names;
mod proxy_protocol;
mod spread;

pub(crate) use self::address::aggregated;
pub use self::{
    address::{AddressError, parse_cidr, parse_ip},
    family::{IpFamily, PerFamily},
    names::{Protocol, ServiceName, ServicePortId, ServicePortName},
    proxy_protocol::ProxyProtocol,
    spread::Spread,
};
