//! The limit of open file descriptors.
//!
//! Container runtimes start programs with a soft limit of 1024 and a much larger hard limit. Go's
//! runtime, and so kube-proxy, raises the soft limit to the hard limit at the start; Rust's does
//! not.
//!
//! Go sets the original limit again for the programs that it starts, for the sake of programs that
//! use select(2), which cannot have descriptors from 1024 on. Programs that switchyard starts have
//! the raised limit: they inherit no descriptor but the standard streams, and none of iptables, nft
//! and modprobe opens more than a few. To set the limit again, each place that starts a program, in
//! several crates and in the client of the API server, would need code between fork and exec.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use switchyard_core::error::ErrorChain;

/// Raises the soft limit to the hard limit, which needs no privilege.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let (from, to) = (text(limit.current), text(limit.maximum));
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => tracing::debug!(from, to, "Raised RLIMIT_NOFILE"),
        Err(error) => {
            let err = ErrorChain(&error);
            tracing::warn!(%err, from, to, "Failed to raise RLIMIT_NOFILE");
        }
    }
}

fn text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string())
}
