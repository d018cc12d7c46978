//! The syncs of kube-proxy's ipvs mode.
//!
//! On a kernel without IPVS, the stand-in makes no virtual servers and no rules that ask IPVS, so
//! that what it leaves serves nothing. On a kernel without dummy devices, a bridge takes the place
//! of the device.

mod device;
mod rules;
mod servers;
mod sets;

use std::{collections::BTreeSet, net::IpAddr};

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;
use switchyard_kernel::ipvs::{Ipvs, VirtualServer};

use self::{device::DEVICE, rules::ONLY_IPVS, sets::SETS};
use super::{
    Cluster, Result,
    genuine::Genuine,
    host::Host,
    programs::{restore, save},
};

/// The parameters that kube-proxy sets to 1 at its start.
const PARAMETERS: [&str; 4] = [
    "ipv4/vs/conntrack",
    "ipv4/vs/expire_nodest_conn",
    "ipv4/vs/expire_quiescent_template",
    "ipv4/ip_forward",
];

#[derive(Clone, Copy, Debug)]
pub struct IpvsMode {
    /// The flavour that its image chose.
    pub flavour: Flavour,
}

impl IpvsMode {
    /// Makes a full sync of both families; a second sync changes nothing.
    pub fn sync(&self, node: &NetNs, cluster: Cluster) -> Result<()> {
        let has_ipvs = has_ipvs(node)?;
        if let Some(genuine) = Genuine::find(self.flavour)?.filter(|_| has_ipvs) {
            return genuine.sync_without_errors(node, "ipvs", cluster);
        }
        if has_ipvs {
            node.sysctl(&PARAMETERS.map(|parameter| (parameter, "1")))?;
        }
        for family in IpFamily::ALL {
            let entries = sets::wanted(cluster, family);
            let addresses = entries.get("KUBE-IPVS-IPS").into_iter().flatten();
            let bound: BTreeSet<IpAddr> = addresses.filter_map(|ip| ip.parse().ok()).collect();
            rules::ensure_jumps(&Host { node, family, flavour: self.flavour })?;
            device::ensure(node)?;
            sets::ensure(node, family)?;
            let wanted = match has_ipvs {
                true => servers::wanted(cluster, family, &device::node_addresses(node, family)?),
                false => Vec::new(),
            };
            servers::serve(node, &wanted)?;
            device::bind(node, family, &bound)?;
            sets::sync(node, family, &entries)?;
            let asks_ipvs = |line: &&str| line.contains(" -m ipvs ");
            let lines = cluster.ipvs_rules(family).lines();
            let lines = lines.filter(|line| has_ipvs || !asks_ipvs(line));
            let rules: String = lines.map(|line| format!("{line}\n")).collect();
            restore(self.flavour, node, family, &rules)?;
            device::unbind_others(node, family, &bound)?;
            servers::retire(node, family, &wanted)?;
        }
        Ok(())
    }

    /// The leftovers that are not iptables mode's: sets, the device, lines of rules, virtual
    /// servers; of kube-proxy and of Switchyard.
    pub fn leftovers(&self, node: &NetNs) -> Result<Vec<String>> {
        let existing = node.output("ipset", &["list", "-name"], "")?;
        let is_set = |line: &&str| {
            let of = |family| SETS.iter().any(|(name, _)| sets::name(family, name) == *line);
            IpFamily::ALL.into_iter().any(of)
        };
        let mut found: Vec<String> = existing.lines().filter(is_set).map(str::to_owned).collect();
        let links = node.output("ip", &["-oneline", "link"], "")?;
        found.extend(links.lines().filter(|line| line.contains(DEVICE)).map(str::to_owned));
        for family in IpFamily::ALL {
            let is_ipvs = |line: &String| {
                line.split([' ', ':']).any(|word| ONLY_IPVS.contains(&word))
                    || line.contains("--match-set KUBE-")
            };
            found.extend(save(self.flavour, node, family)?.into_iter().filter(is_ipvs));
        }
        found.extend(Self::servers(node)?.iter().map(|server| format!("{:?}", server.selector)));
        Ok(found)
    }

    pub fn servers(node: &NetNs) -> Result<Vec<VirtualServer>> {
        servers::all(node)
    }

    /// Everything that ipvs mode makes besides rules, in a form that can be compared: sets with
    /// their entries, the addresses on the device, and virtual servers with the real servers that
    /// take new connections.
    pub fn contents(node: &NetNs) -> Result<Vec<String>> {
        let mut contents = sets::list(node)?;
        for family in IpFamily::ALL {
            contents.extend(device::bound(node, family)?.iter().map(|ip| format!("address {ip}")));
        }
        contents.extend(servers::list(node)?);
        Ok(contents)
    }
}

fn has_ipvs(node: &NetNs) -> Result<bool> {
    Ok(node.run(|| Ipvs::open().map(|ipvs| ipvs.is_some()))??)
}
