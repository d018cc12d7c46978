//! Facts about the node's network interfaces and of the running kernel.
//!
//! - [`AddressFollower`]: the addresses of all interfaces, as they come and go. Node ports are
//!   served on them. An engine takes the follower as it is:
//!
//!   ```no_run
//!   # use switchyard_core::{config::NodeConfig, engine::Engine, proxier::Proxier};
//!   # fn start(backend: Box<dyn Proxier>) -> Result<(), Box<dyn std::error::Error>> {
//!   use switchyard_interfaces::AddressFollower;
//!
//!   let node = NodeConfig::new("node-1");
//!   let engine = Engine::builder(node).addresses(AddressFollower::new()).start(backend)?;
//!   # Ok(())
//!   # }
//!   ```
//!
//! - [`DummyDevice`]: a device of the type dummy, whose addresses are the node's.
//! - [`bridges_of_veths`]: the bridges that connect containers.
//! - [`families`]: the IP families that the kernel has.
//! - [`KernelVersion`]: the version of the kernel.
//! - [`has_link_type`]: whether the kernel can make interfaces of a type.
//! - [`set_sysctl`]: sets a parameter of the kernel, if it differs; [`route_localnet`] has the kernel route
//!   loopback addresses, [`can_route_localnet`] finds out whether that can succeed, and [`routes_localnet`]
//!   whether the kernel does so.

mod bridge;
mod device;
mod families;
mod follower;
mod kernel_version;
mod link_type;
mod localnet;
mod route;
mod sysctl;

pub use self::{
    bridge::{Bridge, bridges_of_veths},
    device::{DeviceError, DummyDevice},
    families::families,
    follower::{AddressError, AddressFollower},
    kernel_version::KernelVersion,
    link_type::has_link_type,
    localnet::{can_route_localnet, route_localnet, routes_localnet},
    sysctl::{SysctlError, set_sysctl},
};
