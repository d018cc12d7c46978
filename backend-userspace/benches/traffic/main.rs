//! The traffic that gets through userspace mode, beside the nftables backend, a plain proxy and no
//! Service at all, in one run.
//!
//! `cargo bench -p switchyard-userspace --bench traffic`, as root. The hosts are network namespaces
//! of this program's own: client, node, and endpoints, which vanish with the program. Client,
//! endpoints and proxy are processes, so that each has all the file descriptors of a process, and
//! memory and time of its own: the program runs itself, with a role.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

mod client;
mod comparison;
mod endpoints;
mod hosts;
mod proxy;

use std::env;

use hosts::{CLIENT, ENDPOINTS, PROXY};
use test_netns::in_namespace;

fn main() {
    // Cargo passes flags such as `--bench`.
    let arguments: Vec<String> = env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [CLIENT] => client::run(),
        [ENDPOINTS] => endpoints::run(),
        [PROXY, way] => proxy::run(way),
        [] => in_namespace(comparison::run),
        _ => panic!("unknown arguments: {arguments:?}"),
    }
}
