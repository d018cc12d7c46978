//! Removal of what ipvs mode leaves on a node: kube-proxy's or an earlier run's.
//!
//! The order is that of dependence. Rules go first, because they hold the sets. The device goes
//! after the virtual servers, because it alone shows that they are those of ipvs mode: a removal
//! that could not delete them must still see that, and one that is repeated because of a set must
//! not delete what another program has made since.

use std::{
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use switchyard_core::proxier::{Backend, Mode, ProxierError};
use switchyard_iptables::IptablesBackend;
use switchyard_kernel::{
    ipset::{DestroyError, IpSets},
    ipvs::Ipvs,
    netlink::Error,
    route::{DeviceError, DummyDevice},
    xtables::{Jump, OwnedChains, RuleText, Table},
};
use switchyard_nft::{NftBackend, NftConfig};

use crate::{config::DEVICE, layout::servers::is_excluded, probe, sets};

/// The chains that iptables mode has, too, under the same names.
const SHARED_WITH_IPTABLES: [(Table, &str); 6] = [
    (Table::Nat, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-POSTROUTING"),
    (Table::Nat, "KUBE-MARK-MASQ"),
    (Table::Filter, "KUBE-FORWARD"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    // Of the rules beneath, where these are those of iptables mode.
    (Table::Filter, "KUBE-IPVS-FILTER"),
];

/// The chains that only kube-proxy's ipvs mode has.
const OWN: [(Table, &str); 6] = [
    // Of kube-proxy up to 1.24; the kubelet's chain of that name is in the filter table.
    (Table::Nat, "KUBE-FIREWALL"),
    (Table::Nat, "KUBE-LOAD-BALANCER"),
    (Table::Nat, "KUBE-NODE-PORT"),
    (Table::Filter, "KUBE-NODE-PORT"),
    (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
    (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
];

/// The chains that the rules beneath have besides those of iptables mode, and that kube-proxy has
/// not.
const BENEATH: [(Table, &str); 2] =
    [(Table::Nat, "KUBE-IPVS-HAIRPINS"), (Table::Filter, "KUBE-IPVS-OTHERS")];

/// The time that rules that were deleted may take to let go of their sets.
const PATIENCE: Duration = Duration::from_secs(3);

/// The interval at which a set that is in use is tried again.
const INTERVAL: Duration = Duration::from_millis(10);

/// Returns all chains of ipvs mode, and the jumps to them.
fn owned() -> OwnedChains {
    let jumps = [
        (Table::Nat, "OUTPUT", "KUBE-SERVICES"),
        (Table::Nat, "PREROUTING", "KUBE-SERVICES"),
        (Table::Nat, "POSTROUTING", "KUBE-POSTROUTING"),
        (Table::Nat, "POSTROUTING", "KUBE-IPVS-HAIRPINS"),
        (Table::Filter, "FORWARD", "KUBE-FORWARD"),
        (Table::Filter, "INPUT", "KUBE-NODE-PORT"),
        (Table::Filter, "INPUT", "KUBE-PROXY-FIREWALL"),
        (Table::Filter, "FORWARD", "KUBE-PROXY-FIREWALL"),
        (Table::Filter, "INPUT", "KUBE-IPVS-FILTER"),
        (Table::Filter, "OUTPUT", "KUBE-IPVS-OUT-FILTER"),
    ];
    let jump = |(table, from, to)| Jump { table, from, to, rule: RuleText::new().jump(to) };
    OwnedChains {
        names: [&SHARED_WITH_IPTABLES[..], &OWN, &BENEATH].concat(),
        prefixes: Vec::new(),
        jumps: jumps.map(jump).into(),
    }
}

/// Why something of ipvs mode could not be removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LeftoverError {
    #[error("cannot remove all rules")]
    Rules(#[source] switchyard_kernel::xtables::LeftoverError),
    #[error("cannot delete the virtual servers")]
    VirtualServers(#[source] Error),
    #[error("cannot list the ipsets")]
    Sets(#[source] Error),
    #[error("cannot destroy the ipset {name}")]
    Set {
        name: String,
        #[source]
        source: DestroyError,
    },
    #[error(transparent)]
    Device(DeviceError),
}

/// Removes everything of ipvs mode, but for the rules beneath of the names of another mode, and for
/// virtual servers within `excluded`.
pub(crate) fn remove_all(excluded: &[IpNet]) -> Result<(), ProxierError> {
    remove_with(&owned(), excluded)
}

/// Does the same, but for the chains that iptables mode has under the same names.
pub(crate) fn remove_beside_iptables(excluded: &[IpNet]) -> Result<(), ProxierError> {
    let shared = SHARED_WITH_IPTABLES.into_iter().filter(|(_, name)| *name != "KUBE-IPVS-FILTER");
    remove_with(&owned().without(&shared.collect::<Vec<_>>()), excluded)
}

fn remove_with(chains: &OwnedChains, excluded: &[IpNet]) -> Result<(), ProxierError> {
    removed(remove(chains, excluded))
}

/// Removes the rules of other kinds than those of the mode `beneath`, which serve: those of
/// kube-proxy's ipvs mode, and those that were beneath before. Returns whether nftables takes the
/// place of iptables: there were IP sets, or the chains beneath.
pub(crate) fn remove_other_rules(beneath: Mode) -> Result<bool, ProxierError> {
    if beneath == Mode::IPTABLES {
        let kept = [&SHARED_WITH_IPTABLES[..], &BENEATH].concat();
        let others = NftBackend::new(NftConfig::default()).clean_up(None);
        let removed = removed(remove_chains_and_sets(&owned().without(&kept)));
        return removed.and(others).map(|()| false);
    }
    let names = BENEATH.to_vec();
    let of_iptables = OwnedChains { names, prefixes: Vec::new(), jumps: Vec::new() };
    let had_rules =
        removed(switchyard_kernel::xtables::remove(&of_iptables).map_err(LeftoverError::Rules));
    let had_sets = removed(remove_chains_and_sets(&owned()));
    let others = IptablesBackend::default().clean_up(None);
    let (had_rules, had_sets) = (had_rules?, had_sets?);
    others.map(|()| had_rules || had_sets)
}

fn removed<T>(result: Result<T, LeftoverError>) -> Result<T, ProxierError> {
    result.map_err(|error| {
        ProxierError::backend(Mode::IPVS, "cannot remove everything of ipvs mode", error)
    })
}

/// Removes these chains, and the virtual servers, sets and the device of ipvs mode. A second call
/// finds nothing.
///
/// # Errors
/// The first error, after everything else was removed; but the device stays as long as there are
/// virtual servers that cannot be deleted.
fn remove(chains: &OwnedChains, excluded: &[IpNet]) -> Result<(), LeftoverError> {
    let rules = switchyard_kernel::xtables::remove(chains).map(drop).map_err(LeftoverError::Rules);
    let device = remove_device(excluded);
    let sets = destroy_sets();
    rules?;
    let ((servers, device), sets) = (device?, sets?);
    if device || sets > 0 {
        tracing::info!(
            virtual_servers = servers,
            ipsets = sets,
            device,
            "Removed leftovers of ipvs mode"
        );
    }
    Ok(())
}

/// Deletes the device, whatever its type, after the virtual servers. Returns the number of these,
/// and whether there was a device: without one, the virtual servers are another program's.
fn remove_device(excluded: &[IpNet]) -> Result<(usize, bool), LeftoverError> {
    let Some(mut device) = find_device().map_err(LeftoverError::Device)? else {
        return Ok((0, false));
    };
    let servers = delete_virtual_servers(excluded).map_err(LeftoverError::VirtualServers)?;
    Ok((servers, device.delete().map_err(LeftoverError::Device)?))
}

/// Destroys the sets, and returns their number.
fn destroy_sets() -> Result<usize, LeftoverError> {
    let sets = ExistingSets::find().map_err(LeftoverError::Sets)?;
    sets.destroy().map_err(|(name, source)| LeftoverError::Set { name, source })
}

/// Removes chains, jumps and sets. Returns whether there were sets.
fn remove_chains_and_sets(chains: &OwnedChains) -> Result<bool, LeftoverError> {
    switchyard_kernel::xtables::remove(chains).map_err(LeftoverError::Rules)?;
    let count = destroy_sets()?;
    if count > 0 {
        tracing::info!(ipsets = count, "Removed the ipsets of ipvs mode, and their rules");
    }
    Ok(count > 0)
}

/// Returns the device; `None` if it does not exist.
fn find_device() -> Result<Option<DummyDevice>, DeviceError> {
    let mut device = DummyDevice::open(DEVICE)?;
    Ok(device.exists()?.then_some(device))
}

/// Deletes the virtual servers that ipvs mode can have made, and returns their number; 0 if the
/// kernel has no IPVS.
///
/// kube-proxy's ipvs mode selects packets by address and port, and deletes all other virtual
/// servers that do so at each sync. Those that serve marks are never kube-proxy's, and those within
/// `excluded` are another program's.
fn delete_virtual_servers(excluded: &[IpNet]) -> Result<usize, Error> {
    // A module that is not loaded has no virtual servers, and the question would load it.
    if !probe::is_loaded() {
        return Ok(0);
    }
    let Some(mut ipvs) = Ipvs::open()? else { return Ok(0) };
    let mut count = 0;
    for server in ipvs.virtual_servers()? {
        if !is_excluded(&server.selector, excluded) {
            count += usize::from(ipvs.delete(&server.selector)?);
        }
    }
    Ok(count)
}

/// The sets of ipvs mode that exist.
struct ExistingSets {
    connection: IpSets,
    names: Vec<String>,
}

impl ExistingSets {
    /// Lists the sets. kube-router's, which are called `KUBE-` as well, are not among them.
    fn find() -> Result<Self, Error> {
        let mut connection = IpSets::open()?;
        let existing = connection.names()?;
        let names = sets::names().filter(|name| existing.contains(name)).collect();
        Ok(Self { connection, names })
    }

    /// Destroys the sets, and returns their number. Waits for those that are in use.
    ///
    /// # Errors
    /// The first set that could not be destroyed, after all others were.
    fn destroy(mut self) -> Result<usize, (String, DestroyError)> {
        let deadline = Instant::now() + PATIENCE;
        let mut count = 0;
        let mut result = Ok(());
        for name in self.names {
            let destroyed = loop {
                match self.connection.destroy(&name) {
                    Err(DestroyError::InUse) if Instant::now() < deadline => {
                        thread::sleep(INTERVAL)
                    }
                    result => break result,
                }
            };
            match destroyed {
                Ok(existed) => count += usize::from(existed),
                Err(error) => result = result.and(Err((name, error))),
            }
        }
        result.map(|()| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_to_an_owned_chain() {
        let all = owned();
        assert!(all.jumps.iter().all(|jump| all.contains(jump.table, jump.to)));
    }
}
