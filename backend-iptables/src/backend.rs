//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::proxier::{Backend, KernelTable, Mode, Probed, Profile, ProxierError};

use crate::{
    ChainNaming, IptablesConfig, IptablesProxier, dump,
    proxier::{PROFILE, clean_up_chains, find_tools},
};

/// iptables mode with its configuration.
#[derive(Clone, Debug, Default)]
pub struct IptablesBackend {
    config: IptablesConfig,
}

impl IptablesBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: IptablesConfig) -> Self {
        Self { config }
    }
}

impl Backend for IptablesBackend {
    fn profile(&self) -> Profile {
        PROFILE
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        let (config, tools) = (self.config.clone(), find_tools(&self.config)?);
        let families = tools.families();
        Ok(Probed::new(families, || Ok(Box::new(IptablesProxier::with_tools(config, tools)))))
    }

    /// Leaves the chains that ipvs mode may use as long as that mode serves, which removes them
    /// otherwise.
    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError> {
        match (keep, self.config.chains) {
            (Some(Mode::IPVS), ChainNaming::KubeProxy) => Ok(()),
            _ => clean_up_chains(self.config.chains.names()),
        }
    }

    fn dump(&self, most: usize) -> Vec<KernelTable> {
        dump::dump(&self.config, most)
    }
}
