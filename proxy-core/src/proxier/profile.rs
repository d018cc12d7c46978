//! The facts about a backend, as data.

use super::{Capabilities, Mode};

/// The properties of a backend. A later version may add fields: begin with [`Profile::new`].
///
/// ```
/// use switchyard_core::proxier::{Mode, Profile};
///
/// const MINE: Profile =
///     Profile { conflicts_with: &[Mode::IPTABLES], ..Profile::new(Mode::new("mine")) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The mode that selects the backend.
    pub mode: Mode,
    /// The modes whose rules disturb or double the rules of this backend, and which must therefore
    /// be cleaned up after on a node that runs this backend.
    pub conflicts_with: &'static [Mode],
    /// The capabilities of the backend. The states that an engine shows it ask for nothing else.
    pub capabilities: Capabilities,
    /// Whether the kernel translates the addresses of flows, so that its conntrack entries name
    /// endpoints. A proxy in user space answers in place of endpoints.
    pub translates_flows: bool,
    /// Whether the rules keep other hosts from loopback addresses of IPv4 where node ports are
    /// served on these, so that the kernel may route them (`route_localnet`).
    pub guards_loopback: bool,
    /// Whether the rules stand beside those of another proxy, in tables of their own, as those of a
    /// proxy with a [name](crate::config::NodeConfig::service_proxy_name) must, and of no other.
    /// The rules of other modes, and the node's loopback addresses, are the other proxy's.
    pub is_beside: bool,
    /// The most objects of a list that are applied before a sync, at least one. Longer lists that
    /// come after the first sync are synced in parts, so that another change waits for a part
    /// alone. It is for backends whose syncs cost in proportion to what changes.
    pub most_listed: usize,
}

impl Profile {
    /// The properties of a backend that conflicts with no other one, translates flows, has the
    /// capabilities of kube-proxy, and syncs any list at once.
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            conflicts_with: &[],
            capabilities: Capabilities::KUBE_PROXY,
            translates_flows: true,
            guards_loopback: false,
            is_beside: false,
            most_listed: usize::MAX,
        }
    }
}
