//! The virtual servers and their real servers.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_kernel::ipvs::{Batch, Ipvs, RealServer, Selector, VirtualServer};

use super::super::{Cluster, Result};

const TCP: u16 = 6;
const UDP: u16 = 17;

/// A virtual server, and its real servers.
pub type Wanted = (VirtualServer, BTreeSet<SocketAddr>);

/// The virtual servers of a sync, on a node with these addresses.
pub fn wanted(
    cluster: Cluster,
    family: IpFamily,
    node_addresses: &BTreeSet<IpAddr>,
) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for words in cluster.ipvs_servers(family) {
        let [protocol, ip, port, timeout, reals @ ..] = &*words else { panic!("{words:?}") };
        let reals: BTreeSet<SocketAddr> = reals.iter().map(|real| real.parse().unwrap()).collect();
        let addresses = match *ip {
            "node" => node_addresses.clone(),
            ip => BTreeSet::from([ip.parse().unwrap()]),
        };
        let timeout = timeout.parse().unwrap();
        for ip in addresses {
            let protocol = if *protocol == "tcp" { TCP } else { UDP };
            let server = VirtualServer {
                selector: Selector::Address { protocol, ip, port: port.parse().unwrap() },
                scheduler: "rr".to_owned(),
                flags: if timeout == 0 { 0 } else { VirtualServer::PERSISTENT },
                timeout,
                netmask: if ip.is_ipv4() { u32::MAX } else { 128 },
            };
            wanted.push((server, reals.clone()));
        }
    }
    wanted
}

/// Adds what is missing, edits what differs, and takes out real servers that are not wanted: those
/// of TCP with connections get the weight 0.
pub fn serve(node: &NetNs, wanted: &[Wanted]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    change(node, |ipvs, batch| {
        let held = ipvs.virtual_servers()?;
        for (server, reals) in wanted {
            let selector = &server.selector;
            match held.iter().find(|held| held.selector == *selector) {
                None => batch.add_server(server),
                Some(same) if same == server => {}
                Some(_) => batch.edit_server(server),
            }
            let held = ipvs.real_servers(selector)?;
            for real in &held {
                let is_tcp = matches!(selector, Selector::Address { protocol: TCP, .. });
                if reals.contains(&real.address) {
                    if real.weight != 1 {
                        batch.edit_real(selector, &RealServer::new(real.address, 1));
                    }
                } else if is_tcp && real.active + real.inactive != 0 {
                    batch.edit_real(selector, &RealServer::new(real.address, 0));
                } else {
                    batch.delete_real(selector, real.address);
                }
            }
            for address in reals {
                if !held.iter().any(|real| real.address == *address) {
                    batch.add_real(selector, &RealServer::new(*address, 1));
                }
            }
        }
        Ok(())
    })
}

/// Deletes the virtual servers of a family that are not wanted, whoever has made them.
pub fn retire(node: &NetNs, family: IpFamily, wanted: &[Wanted]) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    change(node, |ipvs, batch| {
        for held in ipvs.virtual_servers()? {
            let is_of_family = match held.selector {
                Selector::Address { ip, .. } => IpFamily::of(&ip) == family,
                Selector::Mark { .. } => false,
            };
            let is_wanted = wanted.iter().any(|(server, _)| server.selector == held.selector);
            if is_of_family && !is_wanted {
                batch.delete_server(&held.selector);
            }
        }
        Ok(())
    })
}

/// Sends commands to IPVS, of which none may be refused.
fn change(
    node: &NetNs,
    fill: impl FnOnce(&mut Ipvs, &mut Batch) -> Result<(), switchyard_kernel::netlink::Error> + Send,
) -> Result<()> {
    let refused = node.run(|| {
        let Some(mut ipvs) = Ipvs::open()? else { return Ok(Vec::new()) };
        let mut batch = Batch::default();
        fill(&mut ipvs, &mut batch)?;
        ipvs.commit(&batch)
    })??;
    match refused.into_iter().next() {
        Some(refusal) => Err(refusal.into()),
        None => Ok(()),
    }
}

/// All virtual servers, each with the real servers that take new connections; none that is there
/// for earlier connections alone.
pub fn list(node: &NetNs) -> Result<Vec<String>> {
    let found = node.run(|| {
        let Some(mut ipvs) = Ipvs::open()? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for server in ipvs.virtual_servers()? {
            let mut reals = ipvs.real_servers(&server.selector)?;
            let had_some = !reals.is_empty();
            reals.retain(|real| real.weight != 0);
            if had_some && reals.is_empty() {
                continue;
            }
            reals.sort_by_key(|real| real.address);
            let reals: Vec<_> = reals
                .iter()
                .map(|real| (real.address, real.weight, real.is_masquerading))
                .collect();
            found.push(format!("{server:?} {reals:?}"));
        }
        Ok::<_, switchyard_kernel::netlink::Error>(found)
    })??;
    Ok(found)
}

pub fn all(node: &NetNs) -> Result<Vec<VirtualServer>> {
    let found = node.run(|| match Ipvs::open()? {
        Some(mut ipvs) => ipvs.virtual_servers(),
        None => Ok(Vec::new()),
    })??;
    Ok(found)
}
