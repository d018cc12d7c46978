//! Interfaces.

mod bridge;
mod device;
mod link_type;
mod local_delivery;
