//! Rendering of Services as virtual servers and addresses, by pure functions.
//!
//! The addresses of Services are on `kube-ipvs0`. The rules beneath mark a packet if the client is
//! to be masqueraded, and drop or refuse it; then IPVS translates it. IPVS chooses a virtual server
//! by the destination alone, so one frontend has one pool: where `externalTrafficPolicy: Local`
//! gives clients on this node another pool, the rules beneath translate for these.

pub(crate) mod addresses;
pub(crate) mod servers;

use std::{collections::BTreeSet, net::IpAddr};

use switchyard_core::{
    model::IpFamily,
    state::{NodePortAddresses, NodeState, ResolvedServicePort},
};
use switchyard_kernel::ipvs::Selector;

use crate::scheduler::Scheduler;

/// The input besides a Service port.
#[derive(Clone, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) node: &'a NodeState,
    /// The scheduler of Services that ask for nothing.
    pub(crate) scheduler: Scheduler,
    /// The schedulers that the kernel does not have.
    pub(crate) missing: Vec<Scheduler>,
    /// Virtual servers that Service ports have by addresses of their own, among those of node
    /// ports.
    pub(crate) claimed: &'a BTreeSet<Selector>,
    /// The addresses at which nothing is served but cluster IPs
    /// ([`IpvsConfig::never_bound`](crate::IpvsConfig::never_bound)).
    pub(crate) never_bound: &'a BTreeSet<IpAddr>,
}

impl Context<'_> {
    /// Returns the scheduler of a Service port, and the one that the port asks for if the kernel
    /// does not have that.
    pub(crate) fn scheduler(&self, port: &ResolvedServicePort) -> (Scheduler, Option<Scheduler>) {
        let wanted = Scheduler::choose(self.scheduler, port);
        if !self.missing.contains(&wanted) {
            return (wanted, None);
        }
        let instead = wanted.instead().find(|other| !self.missing.contains(other));
        (instead.unwrap_or_default(), Some(wanted))
    }
}

/// Returns the addresses of the node that serve node ports. Core lists all of them for this backend
/// ([`Capabilities::lists_node_ports`](switchyard_core::proxier::Capabilities::lists_node_ports)).
pub(crate) fn node_addresses(
    node: &NodeState,
    family: IpFamily,
) -> impl Iterator<Item = IpAddr> + use<'_> {
    static NONE: BTreeSet<IpAddr> = BTreeSet::new();
    let listed = match node.node_ports.get(family) {
        NodePortAddresses::Only(ips) => ips,
        NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback => &NONE,
    };
    listed.iter().copied().filter(move |ip| IpFamily::of(ip) == family)
}
