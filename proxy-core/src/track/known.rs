//! The facts that explanations are made of.

use std::net::IpAddr;

use super::{Tracker, conflicts::ListenerKey, service_key, update::families};
use crate::{
    explain::{Known, KnownNode, KnownPort, KnownService},
    model::{IpFamily, PerFamily, Protocol, ServiceName, ServicePortId},
    parsed::{
        service::{Addresses, Service, ServicePort},
        slice::Slice,
    },
    resolve::{self, frontends::listeners, pools},
    state::FrontendAddress,
};

/// Ports of a Service after so many endpoints are known without theirs: an answer has a line for
/// each endpoint of each port.
const MOST_LISTED: usize = 10_000;

impl Known for Tracker {
    fn node(&self) -> KnownNode {
        let inputs = &self.node_inputs;
        let own = || IpFamily::ALL.iter().filter_map(|f| inputs.node_ip(&self.config, *f));
        KnownNode {
            name: self.config.node_name.clone(),
            mode: self.mode.map(|mode| mode.as_str().to_owned()),
            rules_of: self.capabilities.rules_of().map(|mode| mode.as_str().to_owned()),
            waits_for: self.waits_for().map(|missing| missing.as_str().to_owned()),
            addresses: match &inputs.interface_addresses {
                Some(addresses) => addresses.iter().copied().collect(),
                None => own().collect(),
            },
            refused: PerFamily::from_fn(|family| {
                self.withheld.family_reason(family).map(str::to_owned)
            }),
            settings: self.state.node.clone(),
        }
    }

    fn service(
        &self,
        name: &ServiceName,
        is_asked: &dyn Fn(&ServicePortId) -> bool,
    ) -> Option<KnownService> {
        let service = self.services.get(name)?;
        let key = service_key(name);
        let problems = [&self.problems, &self.conflicts, self.unsupported.problems()];
        let problems = problems.into_iter().flat_map(|problems| problems.of(&key));
        // A conflict is a lost frontend.
        let problems = problems.filter(|problem| problem.reason != super::Reason::Conflict);
        let mut problems: Vec<String> =
            problems.map(|problem| format!("{}: {}", problem.field, problem.message)).collect();
        problems.sort_unstable();
        let mut ports = Vec::new();
        let mut left = MOST_LISTED;
        for (family, addresses) in families(service) {
            for port in &service.ports {
                let id = resolve::id(service, port, family);
                if is_asked(&id) {
                    ports.push(self.known_port(id, service, port, addresses, &mut left));
                }
            }
        }
        Some(KnownService {
            name: name.clone(),
            internal_local: service.internal_local,
            external_local: service.external_local,
            health_check: self.state.health_checks.get(name).copied(),
            problems,
            ports,
        })
    }

    fn owner(
        &self,
        ip: Option<IpAddr>,
        family: IpFamily,
        protocol: Protocol,
        port: u16,
    ) -> Option<ServicePortId> {
        let key = ListenerKey { ip, family, protocol, port };
        self.listeners.winner(&key).map(|contender| contender.id().clone())
    }

    fn having(&self, ip: IpAddr) -> Option<(ServiceName, FrontendAddress)> {
        let family = IpFamily::of(&ip);
        let has = |name: &ServiceName, service: &Service| {
            let addresses = service.addresses.get(family).as_deref()?;
            let port = service.ports.first()?;
            let at = listeners(port, addresses, self.config.external_ips)
                .map(|(at, _)| at)
                .filter(|at| at.ip() == Some(ip))
                .min()?;
            Some((name.clone(), at))
        };
        self.services
            .iter()
            .filter_map(|(name, service)| has(name, service))
            .min_by_key(|(_, at)| *at)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &ServiceName> + '_> {
        Box::new(self.services.keys())
    }
}

impl Tracker {
    /// The number of endpoints, used or not, that the slices of a Service have for one of its
    /// ports. One that is in two slices counts twice.
    pub fn slice_endpoints(&self, id: &ServicePortId) -> usize {
        let has_port =
            |slice: &&Slice| slice.family == id.family && !slice.ports_of(&id.name).is_empty();
        let slices = self.slices.get(&id.name.service).filter(has_port);
        slices.map(|slice| slice.endpoints.len()).sum()
    }

    /// The Service ports that the node refuses, with the reasons.
    pub fn refused_ports(&self) -> impl Iterator<Item = (&ServicePortId, &str)> {
        self.withheld.refused()
    }

    /// Returns a port, with its endpoints if some are `left` to be listed.
    fn known_port(
        &self,
        id: ServicePortId,
        service: &Service,
        port: &ServicePort,
        addresses: &Addresses,
        left: &mut usize,
    ) -> KnownPort {
        let resolved =
            self.state.service_ports.get(&id).or_else(|| self.withheld.value(&id)).cloned();
        let wanted = listeners(port, addresses, self.config.external_ips);
        let (_, lost) = self.listeners.divide(&id, wanted);
        let zone = self.node_inputs.node.as_ref().and_then(|node| node.zone.as_deref());
        let uses_cluster = service.uses_cluster(port, addresses, self.config.external_ips);
        let slices = || self.slices.get(&service.name);
        let pools = resolved.as_deref();
        let (mut endpoints, mut unlisted) = (Vec::new(), 0);
        if *left > 0 {
            let has_family = |family| service.addresses.get(family).is_some();
            endpoints = pools::examined(&id, slices(), zone, uses_cluster, pools);
            endpoints.extend(pools::strays(&id, slices(), has_family));
            endpoints.sort_unstable();
            *left = left.saturating_sub(endpoints.len());
        } else {
            // None is looked at, for a Service may have thousands of such ports.
            let of_family = slices().filter(|slice| slice.family == id.family);
            unlisted = of_family.map(|slice| slice.endpoints.len()).sum();
        }
        KnownPort {
            refused: self.withheld.reason(&id).map(str::to_owned),
            resolved,
            endpoints,
            unlisted,
            lost,
            id,
        }
    }
}
