#![doc = include_str!("../README.md")]
//!
//! The backend (`proxier`) gives the Service ports to the forwarder ([`forwarder`]), which chooses
//! endpoints and moves bytes; a [capture mode](CaptureMode) then makes the traffic of their
//! frontends reach the forwarder's sockets. Beside another backend, [`LoopbackNodePorts`] serves
//! node ports on `[::1]`.

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
