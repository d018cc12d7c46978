//! Syncs against a model of the kernel, and the packets that pass meanwhile.

mod exhaustive;
mod judge;
mod kernel_tests;
mod parts;
mod simulation;

use switchyard_kernel::nftables::Transport;

use super::{NftProxier, STALE_FOR, sweeper::Sweeper};
use crate::NftConfig;

/// The backend on a transport to a model, which divides more changes of elements than `undivided`.
/// Clients stay remembered at endpoints that left.
fn proxier(transport: impl Transport + 'static, undivided: usize) -> NftProxier {
    NftProxier {
        config: NftConfig::default(),
        transport: Box::new(transport),
        sweeper: Sweeper::without_threads(),
        own_ports: Vec::new(),
        listener: Default::default(),
        last: None,
        mending: Default::default(),
        swept: Default::default(),
        stale_for: STALE_FOR,
        hashes: true,
        undivided,
    }
}
