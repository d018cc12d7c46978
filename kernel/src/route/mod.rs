//! Interfaces and their addresses, by rtnetlink.
//!
//! - [`AddressFollower`]: the addresses of all interfaces, as they come and go. Node ports are
//!   served on them.
//! - [`AddressAnnouncements`]: what is announced of the addresses of one device, which should have
//!   those of [`SharedAddresses`].
//! - [`DummyDevice`]: a device whose addresses are the node's.
//! - [`bridges_of_veths`]: the bridges that connect containers.
//! - [`interface_addresses`]: the addresses of all interfaces, once; [`interface_networks`]: with
//!   their networks.
//! - [`LocalDelivery`]: a rule that has marked packets delivered to this host;
//!   [`DeliveryAnnouncements`]: what is announced of both.
//! - [`DeviceFollower`]: the names of all devices, as they come and go.
//! - [`interface_name`]: the name of an interface; [`next_hop`]: the gateway behind it.
//! - [`has_link_type`]: whether the kernel can make interfaces of a type.

mod announcements;
mod bridge;
mod device;
mod devices;
mod follower;
mod link_name;
mod link_type;
mod list;
mod local_delivery;
mod next_hop;

#[cfg(feature = "conntrack")]
pub(crate) use self::list::addresses;
pub use self::{
    announcements::{AddressAnnouncements, SharedAddresses},
    bridge::{Bridge, bridges_of_veths},
    device::{DeviceError, DummyDevice},
    devices::DeviceFollower,
    follower::{AddressError, AddressFollower},
    link_name::interface_name,
    link_type::has_link_type,
    list::{interface_addresses, interface_networks},
    local_delivery::{DeliveryAnnouncements, LocalDelivery},
    next_hop::next_hop,
};
