//! The configuration of the backend.

use std::sync::Arc;

use switchyard_core::model::{PerFamily, words};

use crate::{
    capture::loopback::ShowTable,
    forwarder::{Counters, ForwarderConfig},
};

/// The way that the traffic of Services reaches the proxy, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureMode {
    /// `nftables`: rules in its own table redirect traffic.
    Nftables,
    /// `iptables`: rules in chains of its own redirect traffic.
    Iptables,
    /// `addresses`: the Services' addresses are addresses of this node.
    Addresses,
    /// `loopback`: clients on this machine use loopback addresses that a table lists.
    Loopback,
}

words! {
    CaptureMode: FromStr {
        Nftables = "nftables",
        Iptables = "iptables",
        Addresses = "addresses",
        Loopback = "loopback",
    }
}

/// The settings of the userspace backend.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UserspaceConfig {
    /// The capture mode; `None` for the best that this node can run.
    pub capture: Option<CaptureMode>,
    /// Whether [`CaptureMode::Loopback`] may be the best. Only clients on this machine are served
    /// by it, which a node of a cluster must not end up with unnoticed.
    pub may_use_loopback: bool,
    /// The families that are served.
    pub families: PerFamily<bool>,
    /// The bit of the packet mark that the redirecting rules use, 0 to 31.
    pub masquerade_bit: u8,
    /// The limits and timeouts of connections.
    pub forwarder: ForwarderConfig,
    /// The counters of what is forwarded, which only one open backend should have.
    pub counters: Arc<Counters>,
    /// The receiver of the table of [`CaptureMode::Loopback`].
    pub table: Option<ShowTable>,
}

impl Default for UserspaceConfig {
    fn default() -> Self {
        Self {
            capture: None,
            may_use_loopback: false,
            families: PerFamily { v4: true, v6: true },
            masquerade_bit: 14,
            forwarder: ForwarderConfig::default(),
            counters: Arc::default(),
            table: None,
        }
    }
}

impl UserspaceConfig {
    /// The packet mark of the proxy's own connections, which redirecting rules let pass: neither
    /// the bit for masquerading, nor that of the CNI's port mappings (13), nor that of an older
    /// kubelet's drops (15).
    pub(crate) fn mark(&self) -> u32 {
        if self.masquerade_bit == 12 { 1 << 11 } else { 1 << 12 }
    }

    /// The packet mark of what endpoints send to clients that the proxy's connections come from, as
    /// the lower half of the mark: that of the connections, and one more bit.
    #[cfg(target_os = "linux")]
    pub(crate) fn answer_mark(&self) -> u32 {
        let bit = if matches!(self.masquerade_bit, 11 | 12) { 10 } else { 11 };
        self.mark() | 1 << bit
    }
}
