//! One Service in the kernel, for who asks about that Service.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use switchyard_core::{
    explain::{EndpointState, Explanation, KernelCheck, Known, KnownPort},
    model::{IpFamily, Protocol, ServiceName, ServicePortId},
    proxier::Mode,
    state::{NodeState, ResolvedServicePort},
};
use switchyard_kernel::{
    nftables::{Family, Table, TransportError},
    route,
};
use switchyard_nft::NftConfig;

use super::{objects::Objects, report::Report};
use crate::{Failure, pace::Pace};

/// The time for which tables that change are read again.
const READ_FOR: Duration = Duration::from_secs(1);
/// The time for which each table is evaluated; what takes longer is not understood.
const EVALUATE_FOR: Duration = Duration::from_secs(1);

/// A Service as it should be in the kernel.
#[derive(Debug, PartialEq)]
pub struct Expected {
    node: NodeState,
    ports: Vec<Arc<ResolvedServicePort>>,
    /// The endpoints whose weight is 0.
    drained: Vec<(ServicePortId, SocketAddr)>,
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
        let ports = known.service(name, &|_| true)?.ports.into_iter();
        let ports = ports
            .filter(|port| port.refused.is_none() && node.refused.get(port.id.family).is_none());
        let known_ports: Vec<KnownPort> = ports.collect();
        let zero = known_ports.iter().flat_map(drained);
        let drained = zero.map(|(id, address)| (id.clone(), address)).collect();
        let ports: Vec<_> = known_ports.into_iter().filter_map(|port| port.resolved).collect();
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
        (!ports.is_empty()).then_some(Self { node: node.settings, ports, drained, others })
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
        Expected { node, ports, drained, others }: &Expected,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<Report, TransportError> {
        let mut report = Report::default();
        for family in Family::ALL {
            let is_programmed = *self.config.families.get(family.into());
            if is_programmed && ports.iter().any(|port| Family::from(port.id.family) == family) {
                let zero = drained.iter().map(|(id, address)| (id, *address));
                let objects = Objects::new(family, node, ports, addresses);
                let objects = objects.drained(zero).beside(others);
                let table = Table::new(family, &*self.config.table);
                report.compare(&table, &objects, READ_FOR, EVALUATE_FOR)?;
            }
        }
        Ok(report)
    }
}

/// The endpoints of a port whose weight is 0.
pub fn drained(port: &KnownPort) -> impl Iterator<Item = (&ServicePortId, SocketAddr)> {
    let zero = port.endpoints.iter().filter(|one| one.state == EndpointState::ZeroWeight);
    zero.map(|endpoint| (&port.id, endpoint.address))
}

/// Shows in an explanation how the kernel's tables compare with it.
pub fn show(report: &Report, explanation: &mut Explanation) {
    let (classes, different) = (report.classes, report.different);
    let first_understood = report.unmeant().find(|one| one.understood);
    let first = first_understood.or_else(|| report.unmeant().next());
    let check = match (different, first_understood) {
        (0, _) => KernelCheck::Same { classes },
        (_, Some(_)) => KernelCheck::Differs { classes, different },
        (unknown, None) => KernelCheck::NotUnderstood { classes, unknown },
    };
    explanation.set_kernel(check, first.map(ToString::to_string).as_deref());
}

#[cfg(test)]
mod tests {
    use switchyard_core::{
        config::NodeConfig,
        explain::{Question, explain},
        testing::NODE,
        track::Tracker,
    };

    use super::*;
    use crate::comparison::report::Difference;

    #[test]
    fn a_reason_and_what_is_not_understood_are_no_differences() {
        let one = |understood, reason| Difference {
            service: None,
            to: String::new(),
            from: String::new(),
            example: String::new(),
            asked: String::new(),
            kernel: String::new(),
            understood,
            reason,
        };
        let shown = |differences: Vec<Difference>| {
            let mut report = Report { classes: 9, ..Report::default() };
            differences.into_iter().for_each(|one| report.add(one));
            let question: Question = "ns/web".parse().expect("a question");
            let mut explanation = explain(&question, &Tracker::new(NodeConfig::new(NODE)));
            show(&report, &mut explanation);
            explanation.kernel
        };
        let meant = one(true, Some("kube-proxy knows no weights"));
        let unknown = one(false, None);
        assert_eq!(shown(vec![meant.clone()]), KernelCheck::Same { classes: 9 });
        let not_understood = KernelCheck::NotUnderstood { classes: 9, unknown: 1 };
        assert_eq!(shown(vec![meant, unknown.clone()]), not_understood);
        let differs = KernelCheck::Differs { classes: 9, different: 2 };
        assert_eq!(shown(vec![unknown, one(true, None)]), differs);
    }
}
