//! The backends whose rules redirect traffic on Linux.

use switchyard_core::{
    model::PerFamily,
    proxier::{Backend, KernelTable, ProxierError},
};
use switchyard_iptables::{ChainNaming, IptablesBackend, IptablesConfig};
use switchyard_nft::{NftBackend, NftConfig};

use super::{
    Rules, answers, leftovers, pause,
    sockets::{Redirect, own_address},
};
use crate::{
    UserspaceConfig,
    capture::{OpenCapture, SystemError, addresses},
};

/// The table of the nftables backend, in each family.
const TABLE: &str = "switchyard-userspace";

/// The backends, configured for a table and for their own chains.
#[derive(Debug)]
pub(crate) struct Redirects {
    nftables: NftBackend,
    iptables: IptablesBackend,
    families: PerFamily<bool>,
    answer_mark: u32,
}

impl Redirects {
    pub(crate) fn new(config: &UserspaceConfig) -> Self {
        let mut nftables = NftConfig::default();
        nftables.table = TABLE.into();
        nftables.families = config.families;
        nftables.masquerade_bit = config.masquerade_bit;
        nftables.exempt_mark = Some(config.mark());
        nftables.only_translated = PerFamily::from_fn(|family| Some(own_address(family)));
        let mut iptables = IptablesConfig::default();
        iptables.chains = ChainNaming::Switchyard;
        iptables.families = config.families;
        iptables.masquerade_bit = config.masquerade_bit;
        iptables.exempt_mark = Some(config.mark());
        iptables.only_translated = PerFamily::from_fn(|family| Some(own_address(family)));
        Self {
            nftables: NftBackend::new(nftables),
            iptables: IptablesBackend::new(iptables),
            families: config.families,
            answer_mark: config.answer_mark(),
        }
    }

    fn backend(&self, rules: Rules) -> &dyn Backend {
        match rules {
            Rules::Nftables => &self.nftables,
            Rules::Iptables => &self.iptables,
        }
    }

    /// Finds out whether a backend can redirect traffic on this node, and whether the proxy's
    /// sockets can have addresses that traffic can be redirected to. Returns how the capture mode
    /// is opened.
    pub(crate) fn probe(&self, rules: Rules) -> Result<OpenCapture, SystemError> {
        addresses::probe_device()?;
        let backend = self.backend(rules).probe().map_err(|error| match error {
            // It is another mode that cannot be used, for the same reason.
            ProxierError::Unusable { source, .. } => source,
            error => error.into(),
        })?;
        let (families, mark) = (self.families, self.answer_mark);
        Ok(Box::new(move || Ok(Box::new(Redirect::open(backend.open()?, families, mark)?))))
    }

    /// Removes the rules of both backends, except those that are kept, and those of kube-proxy's
    /// own userspace mode.
    pub(crate) fn clean_up(&self, keep: Option<Rules>) -> Result<(), ProxierError> {
        // Everything is tried before the first error is returned.
        let removed =
            [Rules::Nftables, Rules::Iptables].into_iter().filter(|rules| Some(*rules) != keep);
        let all = removed.map(|rules| self.backend(rules).clean_up(None));
        let answers = match keep {
            Some(_) => Ok(()),
            None => answers::clean_up().and(pause::end()),
        };
        let all = all.chain([leftovers::clean_up(), answers]);
        all.collect::<Vec<_>>().into_iter().collect()
    }

    /// Reads the rules of the backend that has some.
    pub(crate) fn dump(&self, most: usize) -> Vec<KernelTable> {
        let tables = self.nftables.dump(most);
        let has_some = tables.iter().any(|table| table.text.is_some());
        if has_some { tables } else { self.iptables.dump(most) }
    }
}
