//! The configuration of the backend.

use std::{borrow::Cow, net::IpAddr};

use switchyard_core::{model::PerFamily, transition::Transition};
use switchyard_kernel::nftables::{Family, Table, TransportKind};

use super::names::{KUBE_PROXY, OF_NAMED_PROXY};

/// The configuration of the backend, which does not change during its life.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NftConfig {
    /// The bit of the packet mark that marks packets to be masqueraded, 0 to 31. The CNI and the
    /// kubelet must use other bits.
    pub masquerade_bit: u8,
    /// The families to program.
    pub families: PerFamily<bool>,
    /// The way to reach the kernel.
    pub transport: TransportKind,
    /// Whether any version of the kernel will do: distributions backport nftables.
    pub any_kernel: bool,
    /// The name of the table of each family: kube-proxy's, unless rules of several proxies are to
    /// stand beside each other.
    pub table: Cow<'static, str>,
    /// Whether the node has another proxy, whose rules drop what is sent to a cluster IP that they
    /// do not have, and which cares for the node's loopback addresses.
    pub is_beside: bool,
    /// Whether IPVS delivers the traffic of Services at addresses of the node, so that the rules
    /// have more to refuse, and less to translate.
    pub beneath_ipvs: bool,
    /// The bits of the packet mark, one of which exempts what the node itself sends from the rules:
    /// those of a proxy that the rules lead to, and whose connections to endpoints would come back
    /// to it.
    pub exempt_mark: Option<u32>,
    /// Addresses of the node that take only connections whose destination was translated: those of
    /// a proxy that the rules lead to, which would serve any client that asks there directly. In
    /// the family of such an address, checks are made where the kernel translates.
    pub only_translated: PerFamily<Option<IpAddr>>,
}

impl Default for NftConfig {
    /// Returns kube-proxy's bit, both families, and the netlink transport.
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            families: PerFamily { v4: true, v6: true },
            transport: TransportKind::default(),
            any_kernel: false,
            table: Cow::Borrowed(KUBE_PROXY),
            is_beside: false,
            beneath_ipvs: false,
            exempt_mark: None,
            only_translated: PerFamily::default(),
        }
    }
}

impl NftConfig {
    /// Returns the same configuration for a proxy with this
    /// [name](switchyard_core::config::NodeConfig::service_proxy_name), beside the cluster's proxy.
    pub fn beside(self, name: &str) -> Self {
        Self { table: format!("{OF_NAMED_PROXY}{name}").into(), is_beside: true, ..self }
    }

    /// The mask of the masquerade bit.
    pub(crate) fn mark(&self) -> u32 {
        1 << self.masquerade_bit
    }

    pub(crate) fn table(&self, family: Family) -> Table {
        Table::new(family, &*self.table)
    }

    /// The same configuration for the families that a sync programs.
    pub(crate) fn programmed(&self, change: &Transition<'_>) -> Self {
        let families =
            PerFamily::from_fn(|family| *self.families.get(family) && change.programs(family));
        Self { families, ..self.clone() }
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = Family> + '_ {
        Family::ALL.into_iter().filter(|&family| *self.families.get(family.into()))
    }
}
