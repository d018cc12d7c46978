//! The backend as one value: probed, opened, and cleaned up after.

use std::sync::{Mutex, PoisonError};

use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::IpFamily,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_interfaces::{SysctlError, can_route_localnet, route_localnet};

use crate::{
    IptablesConfig, IptablesProxier, Tools, find_tools,
    layout::LOOPBACK_V4,
    proxier::{clean_up_beside_ipvs, clean_up_chains, guard_loopback},
};

/// iptables mode with its configuration.
#[derive(Debug, Default)]
pub struct IptablesBackend {
    config: IptablesConfig,
    /// The programs that the last probe found. Finding programs means running them.
    found: Mutex<Option<Tools>>,
}

impl IptablesBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: IptablesConfig) -> Self {
        Self { config, found: Mutex::default() }
    }

    fn tools(&self) -> Result<Tools, ProxierError> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tools) = &*found {
            return Ok(tools.clone());
        }
        let tools = find_tools(&self.config)?;
        Ok(found.insert(tools).clone())
    }
}

impl Backend for IptablesBackend {
    fn mode(&self) -> Mode {
        Mode::IPTABLES
    }

    fn probe(&self) -> Result<Support, Unusable> {
        match self.tools() {
            Ok(tools) => Ok(Support::new(tools.families())),
            Err(ProxierError::Unsupported { reason, .. }) => Err(Unusable::Backend(reason)),
            Err(error) => Err(Unusable::Backend(ErrorChain(&error).to_string())),
        }
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Ok(Box::new(IptablesProxier::with_tools(self.config.clone(), self.tools()?)))
    }

    fn clean_up(&self) -> Result<(), ProxierError> {
        clean_up_chains(self.config.chains.names())
    }

    /// Leaves the chains that ipvs mode has under the same names as long as that mode serves.
    fn clean_up_beside(&self, active: Mode) -> Result<(), ProxierError> {
        match active {
            Mode::IPVS => clean_up_beside_ipvs(self.config.chains.names()),
            _ => self.clean_up(),
        }
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::NFTABLES, Mode::IPVS]
    }

    fn is_prepared(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        match node.serves_localhost() {
            true => can_route_localnet().map_err(not_routed),
            false => Ok(()),
        }
    }

    /// Keeps other hosts from loopback addresses, and then has the kernel route these, if node ports are to
    /// be served on them.
    fn prepare(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        if !node.serves_localhost() {
            return Ok(());
        }
        let tools = self.tools()?;
        let mut programs = tools.iter().filter(|programs| programs.family() == IpFamily::V4);
        programs.try_for_each(|programs| guard_loopback(programs, LOOPBACK_V4)).map_err(
            |error| ProxierError::backend(Mode::IPTABLES, "cannot guard loopback addresses", error),
        )?;
        route_localnet().map_err(not_routed)
    }
}

fn not_routed(error: SysctlError) -> ProxierError {
    ProxierError::backend(Mode::IPTABLES, "cannot have loopback addresses routed", error)
}
