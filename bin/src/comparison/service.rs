//! One Service in the kernel, for who asks about that Service.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use switchyard_core::{
    explain::{Explanation, KernelCheck, Known},
    model::{IpFamily, Protocol, ServiceName},
    proxier::Mode,
    state::{NodeState, ResolvedServicePort},
};
use switchyard_netlink::route;
use switchyard_nft::NftConfig;
use switchyard_nft_ruleset::{Family, Table, TransportError};

use super::{objects::Objects, report::Report};
use crate::{Failure, pace::Pace};

/// The time for which tables that change are read again.
const READ_FOR: Duration = Duration::from_secs(1);

/// A Service as it should be in the kernel.
#[derive(Debug, PartialEq)]
pub struct Expected {
    node: NodeState,
    ports: Vec<Arc<ResolvedServicePort>>,
    /// The addresses of the node at which other Services have the numbers of node ports.
    others: Vec<(Protocol, u16, IpAddr)>,
}

impl Expected {
    /// Returns what is known of a Service; `None` if nothing is programmed for the Service, or not
    /// in nftables mode.
    pub fn new(name: &ServiceName, known: &dyn Known) -> Option<Self> {
        let node = known.node();
        if node.mode.as_deref() != Some(Mode::NFTABLES.as_str()) {
            return None;
        }
        let ports = known.service(name)?.ports.into_iter();
        let ports = ports
            .filter(|port| port.refused.is_none() && node.refused.get(port.id.family).is_none());
        let ports: Vec<_> = ports.filter_map(|port| port.resolved).collect();
        let mut others = Vec::new();
        for port in &ports {
            let protocol = port.id.name.protocol;
            for frontend in port.frontends.iter().filter(|frontend| frontend.at.ip().is_none()) {
                let has = |ip: &&IpAddr| {
                    let (ip, family) = (**ip, IpFamily::of(ip));
                    family == port.id.family
                        && known.owner(Some(ip), family, protocol, frontend.port).is_some()
                };
                let taken = node.addresses.iter().filter(has);
                others.extend(taken.map(|ip| (protocol, frontend.port, *ip)));
            }
        }
        (!ports.is_empty()).then_some(Self { node: node.settings, ports, others })
    }
}

/// Compares Services with the kernel's tables, one at a time.
#[derive(Debug)]
pub struct TableReader {
    config: NftConfig,
    pace: Pace,
}

impl TableReader {
    /// Returns a reader of the tables of nftables mode with this configuration.
    pub fn new(config: NftConfig) -> Self {
        Self { config, pace: Pace::default() }
    }

    /// Compares a Service, unless the last comparison took long and was a moment ago. Takes time in
    /// proportion to the tables.
    pub fn compare(&self, expected: &Expected) -> Option<Result<Report, Failure>> {
        self.pace.run(|| Ok(self.compare_at(expected, &route::interface_addresses()?)?))
    }

    /// The same, where the interfaces have these addresses.
    pub(super) fn compare_at(
        &self,
        Expected { node, ports, others }: &Expected,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<Report, TransportError> {
        let mut report = Report::default();
        for family in Family::ALL {
            let is_programmed = *self.config.families.get(family.into());
            if is_programmed && ports.iter().any(|port| Family::from(port.id.family) == family) {
                let objects = Objects::new(family, node, ports, addresses).beside(others);
                report.compare(&Table::new(family, &*self.config.table), &objects, READ_FOR)?;
            }
        }
        Ok(report)
    }
}

/// Shows in an explanation how the kernel's tables compare with it.
pub fn show(report: &Report, explanation: &mut Explanation) {
    let (classes, different) = (report.classes, report.differences.len() + report.more);
    let first = report.differences.first().map(ToString::to_string);
    let check = match different {
        0 => KernelCheck::Same { classes },
        different => KernelCheck::Differs { classes, different },
    };
    explanation.set_kernel(check, first.as_deref());
}
