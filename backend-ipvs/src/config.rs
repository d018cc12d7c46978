//! The configuration of the backend.

use std::time::Duration;

use ipnet::IpNet;
use switchyard_core::{model::PerFamily, proxier::Mode};
use switchyard_kernel::route::SharedAddresses;

/// The device that holds the addresses of Services, by kube-proxy's name. Its addresses are no
/// addresses of the node that could serve node ports.
pub const DEVICE: &str = "kube-ipvs0";

/// Settings that are fixed for the lifetime of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpvsConfig {
    /// The bit of the packet mark that requests masquerading, 0 to 31. It must differ from the bits
    /// that the CNI and the kubelet use.
    pub masquerade_bit: u8,
    /// The families that are programmed.
    pub families: PerFamily<bool>,
    /// The kernel's name of the scheduler for Services that ask for no other, such as `wlc`. Empty
    /// is `rr`.
    pub scheduler: String,
    /// Whether the node answers ARP only for addresses of the interface that received the request,
    /// so that it does not answer for the addresses of Services. Needed where other machines in the
    /// node's network answer for these, such as MetalLB in layer-2 mode.
    pub strict_arp: bool,
    /// The networks whose virtual servers are left alone: those of other programs.
    pub excluded: Vec<IpNet>,
    /// The time that the kernel remembers connections.
    pub timeouts: IpvsTimeouts,
    /// The mode whose rules masquerade, refuse and drop; `None` for the better one that the node
    /// can run, which is nftables.
    pub rules: Option<Mode>,
    /// The time that an endpoint that is gone may keep its connections. After that, the endpoint is
    /// removed from the kernel, whether or not connections are left.
    pub drain_limit: Duration,
    /// Addresses that never become the node's, though Services have them as external or load
    /// balancer IPs: those of the API server, to which the node would lose its connections. Those
    /// that become known later count from the next sync on.
    pub never_bound: SharedAddresses,
    /// Whether the kernel computes the rates of virtual servers; `None` leaves that alone.
    pub run_estimation: Option<bool>,
}

impl Default for IpvsConfig {
    /// kube-proxy's settings; and a day for connections of endpoints that are gone, for which
    /// kube-proxy has no limit.
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            families: PerFamily { v4: true, v6: true },
            scheduler: String::new(),
            strict_arp: false,
            excluded: Vec::new(),
            timeouts: IpvsTimeouts::default(),
            rules: None,
            drain_limit: Duration::from_secs(24 * 3600),
            never_bound: SharedAddresses::default(),
            run_estimation: None,
        }
    }
}

/// The time that the kernel remembers connections to virtual servers, in whole seconds. Zero leaves
/// the kernel's value alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// Idle TCP connections.
    pub tcp: Duration,
    /// TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// UDP flows.
    pub udp: Duration,
}
