//! The Kubernetes source against the API server's stand-in and its faults.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod access;
mod lists;
mod malformed;
mod rig;
#[path = "../rig/mod.rs"]
mod source;
mod watches;
mod ways;
