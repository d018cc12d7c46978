//! The kernel's answers, in network namespaces.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod bridge;
mod device;
mod ipset;
mod ipvs;
mod link_type;
mod local_delivery;
