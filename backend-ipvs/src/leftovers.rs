//! Removal of what ipvs mode leaves on a node: kube-proxy's or an earlier run's.
//!
//! The order is that of dependence. Rules go first, because they hold the sets. The device and the
//! sets go after the virtual servers, because they show that ipvs mode ran here: a removal that
//! fails and is tried again must still see that.

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_netlink::Error;
use switchyard_netlink::ipset::DestroyError;
use switchyard_netlink::ipvs::{Ipvs, Selector};
use switchyard_netlink::route::{DeviceError, DummyDevice};
use switchyard_xtables::OwnedChains;

use crate::{
    config::DEVICE,
    existing_sets::ExistingSets,
    filter::{
        nft::{self, NftError},
        rules,
    },
    probe,
};

/// Why something of ipvs mode could not be removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeftoverError {
    /// The rules.
    #[error("cannot remove all rules")]
    Rules(#[source] switchyard_xtables::LeftoverError),
    /// The rules in tables of nftables.
    #[error(transparent)]
    Tables(NftError),
    /// The virtual servers.
    #[error("cannot delete the virtual servers")]
    VirtualServers(#[source] Error),
    /// The list of sets.
    #[error("cannot list the ipsets")]
    Sets(#[source] Error),
    /// One of the sets.
    #[error("cannot destroy the ipset {name}")]
    Set {
        /// The name of the set.
        name: String,
        /// The kernel's answer.
        #[source]
        source: DestroyError,
    },
    /// The device.
    #[error(transparent)]
    Device(DeviceError),
}

/// Removes everything of ipvs mode, as [`remove`] does.
pub(crate) fn remove_all() -> Result<(), ProxierError> {
    removed(remove(&rules::owned()))
}

/// Removes everything of ipvs mode, but for the chains that iptables mode has under the same names.
pub(crate) fn remove_beside_iptables() -> Result<(), ProxierError> {
    removed(remove(&rules::owned().without(&rules::SHARED_WITH_IPTABLES)))
}

fn removed(result: Result<(), LeftoverError>) -> Result<(), ProxierError> {
    result.map_err(|error| {
        ProxierError::backend(Mode::IPVS, "cannot remove everything of ipvs mode", error)
    })
}

/// Removes these chains, and all virtual servers, sets and the device of ipvs mode. A second call
/// finds nothing.
///
/// # Errors
/// The first error, after everything else was removed; but the sets and the device stay as long as
/// there are virtual servers that cannot be deleted.
fn remove(chains: &OwnedChains) -> Result<(), LeftoverError> {
    let rules = switchyard_xtables::remove(chains).map_err(LeftoverError::Rules);
    let rules = rules.and(remove_tables());
    let sets = ExistingSets::find().map_err(LeftoverError::Sets);
    let device = find_device().map_err(LeftoverError::Device);
    if matches!((&sets, &device), (Ok(sets), Ok(None)) if sets.is_empty()) {
        return rules;
    }
    let servers = match delete_virtual_servers() {
        Ok(count) => count,
        Err(error) => return rules.and(Err(LeftoverError::VirtualServers(error))),
    };
    let sets = sets.and_then(|sets| {
        sets.destroy().map_err(|(name, source)| LeftoverError::Set { name, source })
    });
    let device = device.and_then(|device| match device {
        // Whatever the type of the device.
        Some(mut device) => device.delete().map_err(LeftoverError::Device),
        None => Ok(false),
    });
    rules?;
    let (sets, device) = (sets?, device?);
    tracing::info!(
        virtual_servers = servers,
        ipsets = sets,
        device,
        "Removed leftovers of ipvs mode"
    );
    Ok(())
}

/// Deletes the tables of nftables.
pub(crate) fn remove_tables() -> Result<(), LeftoverError> {
    let count = nft::remove().map_err(LeftoverError::Tables)?;
    if count > 0 {
        tracing::info!(tables = count, "Deleted the nft tables of ipvs mode");
    }
    Ok(())
}

/// Removes chains, jumps and sets.
pub(crate) fn remove_chains_and_sets() -> Result<(), LeftoverError> {
    switchyard_xtables::remove(&rules::owned()).map_err(LeftoverError::Rules)?;
    let sets = ExistingSets::find().map_err(LeftoverError::Sets)?;
    let count = sets.destroy().map_err(|(name, source)| LeftoverError::Set { name, source })?;
    if count > 0 {
        tracing::info!(ipsets = count, "Removed the ipsets of ipvs mode, and their rules");
    }
    Ok(())
}

/// Returns the device; `None` if it does not exist.
fn find_device() -> Result<Option<DummyDevice>, DeviceError> {
    let mut device = DummyDevice::open(DEVICE)?;
    Ok(device.exists()?.then_some(device))
}

/// Deletes the virtual servers that ipvs mode can have made, and returns their number; 0 if the
/// kernel has no IPVS.
///
/// kube-proxy's ipvs mode selects packets by address and port, and deletes all other virtual servers
/// that do so at each sync. Those that serve marks are never kube-proxy's.
fn delete_virtual_servers() -> Result<usize, Error> {
    // A module that is not loaded has no virtual servers, and the question would load it.
    if !probe::is_loaded() {
        return Ok(0);
    }
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(0) };
    let mut count = 0;
    for server in ipvs.virtual_servers()? {
        if matches!(server.selector, Selector::Address { .. }) {
            count += usize::from(ipvs.delete(&server.selector)?);
        }
    }
    Ok(count)
}
