//! The comparison of nftables mode's tables in the kernel with what objects ask for.
//!
//! [`switchyard_kernel::nftables::bytecode`] reads the tables and finds out what they do, [`objects`] what
//! they should do. [`clients`] compares what becomes of clients that are remembered. None knows the layout
//! of the tables.

mod asked;
pub mod clients;
pub mod kube_proxy;
pub mod objects;
pub mod report;
pub mod service;

#[cfg(test)]
mod kernel_tests;
