//! Interfaces and their addresses, by rtnetlink.

mod announcements;
mod bridge;
mod device;
mod devices;
mod follower;
mod link_name;
mod link_type;
mod list;
mod local_delivery;
mod local_networks;
mod next_hop;

pub use self::{
    announcements::{AddressAnnouncements, SharedAddresses},
    bridge::{Bridge, bridges_of_veths},
    device::{DeviceError, DummyDevice},
    devices::DeviceFollower,
    follower::AddressFollower,
    link_name::interface_name,
    link_type::has_link_type,
    list::{interface_addresses, interface_networks},
    local_delivery::{DeliveryAnnouncements, LocalDelivery},
    next_hop::{RoutedBy, next_hop},
};
#[cfg(feature = "conntrack")]
pub(crate) use self::{list::addresses, local_networks::local_networks};
