//! The Kubernetes source against the API server's stand-in and its faults.

mod access;
mod lists;
mod malformed;
mod rig;
#[path = "../../rig/mod.rs"]
mod source;
mod watches;
mod ways;
