//! The backends whose rules redirect traffic on Linux.

use switchyard_core::{
    config::NodeConfig,
    model::PerFamily,
    proxier::{Backend, ProxierError},
};
use switchyard_iptables::{ChainNaming, IptablesBackend, IptablesConfig};
use switchyard_nft::{NftBackend, NftConfig};

use super::{Rules, predecessor, sockets::Redirect};
use crate::{
    UserspaceConfig,
    intake::{Intake, addresses},
};

/// The table of the nftables backend, in each family.
const TABLE: &str = "switchyard-userspace";

/// The backends, configured for a table and for chains of their own.
#[derive(Debug)]
pub(crate) struct Redirects {
    nftables: NftBackend,
    iptables: IptablesBackend,
    families: PerFamily<bool>,
}

impl Redirects {
    pub(crate) fn new(config: &UserspaceConfig) -> Self {
        let mut nftables = NftConfig::default();
        nftables.table = TABLE;
        nftables.families = config.families;
        nftables.masquerade_bit = config.masquerade_bit;
        let mut iptables = IptablesConfig::default();
        iptables.chains = ChainNaming::Switchyard;
        iptables.families = config.families;
        iptables.masquerade_bit = config.masquerade_bit;
        Self {
            nftables: NftBackend::new(nftables),
            iptables: IptablesBackend::new(iptables),
            families: config.families,
        }
    }

    fn backend(&self, rules: Rules) -> &dyn Backend {
        match rules {
            Rules::Nftables => &self.nftables,
            Rules::Iptables => &self.iptables,
        }
    }

    /// Finds out whether a backend can redirect traffic on this node, and whether the proxy's sockets can
    /// have addresses that traffic can be redirected to.
    pub(crate) fn probe(&self, rules: Rules) -> Result<(), String> {
        addresses::probe()?;
        self.backend(rules).probe().map(drop).map_err(|unusable| unusable.to_string())
    }

    /// Opens the intake that redirects by these rules.
    pub(crate) fn open(&self, rules: Rules) -> Result<Box<dyn Intake>, ProxierError> {
        Ok(Box::new(Redirect::open(self.backend(rules).open()?, self.families)?))
    }

    /// Finds out whether the backend's syncs can do what the node asks.
    pub(crate) fn is_prepared(&self, rules: Rules, node: &NodeConfig) -> Result<(), ProxierError> {
        self.backend(rules).is_prepared(node)
    }

    /// Prepares the node as the backend does.
    pub(crate) fn prepare(&self, rules: Rules, node: &NodeConfig) -> Result<(), ProxierError> {
        self.backend(rules).prepare(node)
    }

    /// Removes the rules of both backends, and those of kube-proxy's own userspace mode.
    pub(crate) fn clean_up(&self) -> Result<(), ProxierError> {
        // Everything is tried before the first error is returned.
        let results = [Rules::Nftables, Rules::Iptables].map(|rules| {
            match self.backend(rules).clean_up() {
                // A node that cannot hold the rules of a backend has none.
                Err(ProxierError::Unsupported { .. }) => Ok(()),
                other => other,
            }
        });
        let all = results.into_iter().chain([predecessor::clean_up()]);
        all.collect::<Vec<_>>().into_iter().collect()
    }
}
