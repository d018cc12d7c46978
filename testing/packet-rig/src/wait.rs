//! Waiting for what another program does, in namespaces of this crate.

pub use test_netns::wait::{PATIENCE, PERIOD, scaled, until, until_ok};

use crate::{error::chain, netns::NetNs};

/// Returns what a program prints that lists something, which is run again as long as it fails.
///
/// # Panics
///
/// If it still fails after [`PATIENCE`], [`scaled`]; the message is that of the last run.
#[track_caller]
pub fn listing(namespace: &NetNs, program: &str, arguments: &[&str]) -> String {
    until_ok(|| namespace.output(program, arguments, "").map_err(|error| chain(&error)))
}
