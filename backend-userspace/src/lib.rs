#![doc = include_str!("../README.md")]
//!
//! Follow a sync: the backend (`proxier`) gives the Service ports to the forwarder
//! ([`forwarder`]), which chooses endpoints and moves bytes; a capture mode (`capture`)
//! then makes the traffic of their frontends reach the forwarder's sockets. There are four capture
//! modes, the best of which is chosen when the backend is probed:
//!
//! | Mode of capture | How | Needs |
//! |---|---|---|
//! | `nftables` | its own table redirects traffic to the proxy's sockets | `CAP_NET_ADMIN`, nftables |
//! | `iptables` | chains of its own do the same | `CAP_NET_ADMIN`, iptables |
//! | `addresses` | the Services' addresses are addresses of this node, and listened on | the privilege to add addresses |
//! | `loopback` | loopback addresses are listened on, and listed in a table | nothing |
//!
//! The last two work on any system; the first two are for Linux.
//!
//! Beside another backend, [`LoopbackNodePorts`] serves node ports on `[::1]`.

mod backend;
mod capture;
mod config;
pub mod forwarder;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod kernel_tests;
mod node_ports;
mod proxier;
mod sockets;

pub use self::{
    backend::UserspaceBackend,
    capture::{
        DEVICE,
        loopback::{Reachable, ShowTable},
    },
    config::{CaptureMode, UserspaceConfig},
    node_ports::LoopbackNodePorts,
};
