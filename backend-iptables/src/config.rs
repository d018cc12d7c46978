//! The configuration of the backend.

use std::net::IpAddr;

use switchyard_core::model::PerFamily;
use switchyard_kernel::xtables::{Flavour, ProgramOptions};

use crate::layout::names::{self, ChainNames};

/// The names of the backend's chains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChainNaming {
    /// kube-proxy's names, which begin with `KUBE-`: either proxy takes over the other's chains.
    #[default]
    KubeProxy,
    /// Names that begin with `SWYD-`, for rules beside those of kube-proxy's modes.
    Switchyard,
}

impl ChainNaming {
    /// Whether the backend writes a chain of this name. The kubelet's `KUBE-FIREWALL` is not among
    /// them, although the backend has a rule there.
    pub fn has(self, chain: &str) -> bool {
        self.names().has(chain)
    }

    pub(crate) fn names(self) -> &'static ChainNames {
        match self {
            Self::KubeProxy => &names::KUBE_PROXY,
            Self::Switchyard => &names::SWITCHYARD,
        }
    }
}

/// Settings that are fixed for the lifetime of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IptablesConfig {
    /// The bit of the packet mark that has a packet masqueraded, 0 to 31. It must differ from the
    /// bits that the CNI and the kubelet use.
    pub masquerade_bit: u8,
    /// The families that are programmed.
    pub families: PerFamily<bool>,
    /// The flavour to use; `None` for the flavour that the host uses.
    pub flavour: Option<Flavour>,
    /// The programs, and how long they may run.
    pub programs: ProgramOptions,
    /// The names of the chains.
    pub chains: ChainNaming,
    /// Whether IPVS delivers the traffic of Services at addresses of the node, so that the rules
    /// have more to refuse, and less to translate.
    pub beneath_ipvs: bool,
    /// The bits of the packet mark that together exempt what the node itself sends from the rules:
    /// those of a proxy that the rules lead to, and whose connections to endpoints would come back
    /// to it.
    pub exempt_mark: Option<u32>,
    /// Addresses of the node that take only connections whose destination was translated: those of
    /// a proxy that the rules lead to, which would serve any client that asks there directly.
    pub only_translated: PerFamily<Option<IpAddr>>,
}

impl Default for IptablesConfig {
    /// kube-proxy's settings.
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            families: PerFamily { v4: true, v6: true },
            flavour: None,
            programs: ProgramOptions::default(),
            chains: ChainNaming::default(),
            beneath_ipvs: false,
            exempt_mark: None,
            only_translated: PerFamily::default(),
        }
    }
}
