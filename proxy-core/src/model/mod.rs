//! The words of the model: address families, protocols, names, addresses and spreads.

mod address;
mod family;
mod names;
mod spread;

pub(crate) use self::address::aggregated;
pub use self::{
    address::{AddressError, parse_cidr, parse_ip},
    family::{IpFamily, PerFamily},
    names::{Protocol, ServiceName, ServicePortId, ServicePortName},
    spread::Spread,
};
