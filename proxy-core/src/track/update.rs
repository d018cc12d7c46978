//! Resolving the touched Services: first their listeners, then their ports, then the changes.

use std::sync::Arc;

use super::{
    NoLocalEndpoints, Tracker,
    conflicts::{Contender, ListenerKey},
    service_key,
    service_problems::{Limited, MAX_DESTINATIONS, MAX_LOOKS, conflicts, limits},
};
use crate::{
    model::{HashMap, HashSet, IpFamily, PerFamily, ServiceName, ServicePortId},
    objects::{self, Kind, ObjectKey, Timestamp},
    parsed::{
        problem::{Problem, Problems},
        service::{Addresses, Service, ServicePort},
    },
    resolve::{
        self, Endpoints, NodeContext,
        frontends::listeners,
        lb_algorithm::{MAX_SLOTS, UnsupportedFeatures},
    },
    state::{
        Action, Frontend, FrontendAddress, HealthCheck, NodePortAddresses, ResolvedServicePort,
    },
};

/// One Service port in one family, with its listeners.
#[derive(Debug, PartialEq)]
pub(super) struct ListeningPort {
    id: ServicePortId,
    created: Timestamp,
    listeners: Vec<(FrontendAddress, u16)>,
}

impl ListeningPort {
    fn contenders(&self) -> impl Iterator<Item = (ListenerKey, Contender)> {
        self.listeners.iter().map(|&(at, port)| {
            (ListenerKey::new(&self.id, at, port), Contender::new(&self.id, at, self.created))
        })
    }
}

/// The surroundings of Services in each family.
pub(super) type AllSurroundings = PerFamily<NodeContext>;

impl Tracker {
    /// Whether a Service names an address and port, or a node port, that another one has.
    #[cfg_attr(not(feature = "runner"), expect(dead_code))]
    pub(crate) fn names_what_another_has(&self, service: &objects::Service) -> bool {
        if self.services.is_empty() {
            return false;
        }
        let mut problems = Problems::new(ObjectKey::new(Kind::Service, &service.metadata));
        let proxy = self.config.service_proxy_name.as_deref();
        let Some(service) = Service::parse(service, proxy, &mut problems) else { return false };
        let ports = wanted_listeners(&service, self.config.external_ips);
        ports.iter().flat_map(ListeningPort::contenders).any(|(key, _)| {
            let winner = self.listeners.winner(&key);
            winner.is_some_and(|winner| winner.id().name.service != service.name)
        })
    }

    /// Returns what Services are resolved against now.
    pub(super) fn surroundings(&self) -> AllSurroundings {
        PerFamily::from_fn(|family| NodeContext {
            zone: self.node_inputs.node.as_ref().and_then(|node| node.zone.clone()),
            node_ip: self.node_inputs.node_ip(&self.config, family),
            knows_local_pods: self.state.node.local_pods.get(family).is_some(),
            masquerade_all: self.config.masquerade_all,
            external_ips: self.config.external_ips,
            node_port_addresses: self.node_port_addresses(family),
            lb_algorithm: self.config.lb_algorithm.unwrap_or(self.capabilities.default_algorithm()),
            capabilities: self.capabilities,
        })
    }

    /// The number of addresses of a node port that have endpoints of their own.
    fn node_port_addresses(&self, family: IpFamily) -> usize {
        match self.state.node.node_ports.get(family) {
            NodePortAddresses::Only(ips) if self.capabilities.lists_node_ports() => ips.len(),
            _ => 1,
        }
    }

    /// Replaces the listeners of a Service with those of its present ports. Adds to `displaced` every
    /// Service whose listeners, or their winners, changed as a result.
    pub(super) fn update_listeners(
        &mut self,
        name: &ServiceName,
        displaced: &mut HashSet<ServiceName>,
    ) {
        let external_ips = self.config.external_ips;
        let wanted = self.services.get(name).map(|service| (Arc::clone(service), external_ips));
        let before = match (&wanted, self.listening.get(name)) {
            (None, None) => return,
            (Some(is), Some(was)) if Arc::ptr_eq(&is.0, &was.0) && is.1 == was.1 => return,
            (_, before) => before.map(|(service, ips)| wanted_listeners(service, *ips)),
        };
        let before = before.unwrap_or_default();
        let after = wanted.as_ref().map(|(service, ips)| wanted_listeners(service, *ips));
        let after = after.unwrap_or_default();
        match wanted {
            Some(wanted) => self.listening.insert(name.clone(), wanted),
            None => self.listening.remove(name),
        };
        // Neither table has anything where the Service is new, as in a first list.
        let was: HashMap<&ServicePortId, &ListeningPort> =
            before.iter().map(|port| (&port.id, port)).collect();
        let stays = after.iter().filter(|_| !was.is_empty());
        let stays: HashMap<&ServicePortId, &ListeningPort> =
            stays.map(|port| (&port.id, port)).collect();
        for port in before.iter().filter(|port| stays.get(&port.id) != Some(port)) {
            for (key, contender) in port.contenders() {
                self.listeners.remove(&key, &contender, displaced);
            }
        }
        for port in after.iter().filter(|port| was.get(&port.id) != Some(port)) {
            for (key, contender) in port.contenders() {
                self.listeners.add(key, contender, displaced);
            }
        }
        // Ports that are gone leave the state here; those that stay are compared when resolved.
        let gone: Vec<ServicePortId> = before
            .iter()
            .filter(|port| !stays.contains_key(&port.id))
            .map(|port| port.id.clone())
            .collect();
        for id in gone {
            self.set_resolved(id, None);
        }
    }

    /// Resolves a Service, and adds its new conflicts to `problems`, and what it asks for that the
    /// backend cannot program.
    pub(super) fn resolve_service(
        &mut self,
        name: &ServiceName,
        around: &AllSurroundings,
        problems: &mut Vec<Problem>,
    ) {
        let mut resolved = Vec::new();
        let mut lost = Vec::new();
        let mut all_unsupported = Vec::new();
        let mut limited = Vec::new();
        let service = self.services.get(name);
        let window = service.and_then(|service| service.slow_start);
        let growing = match window.filter(|_| self.capabilities.has_weights()) {
            Some(window) => self.slow_starts.update(name, window, self.slices.get(name)),
            None => {
                self.slow_starts.forget(name);
                None
            }
        };
        let mut check = service
            .and_then(|service| service.health_check)
            .map(|port| HealthCheck { port, local_endpoints: PerFamily::default() });
        if let Some(service) = service {
            for (family, addresses) in families(service) {
                let slices = self.slices.get(name).filter(|slice| slice.family == family);
                let around = around.get(family);
                let places = service.ports.iter().map(|port| places(port, addresses, around));
                let of_port = |port| listeners(port, addresses, around.external_ips).count();
                let frontends: usize = service.ports.iter().map(of_port).sum();
                let endpoints = &mut Endpoints {
                    slices: slices.collect(),
                    growing,
                    most: (MAX_DESTINATIONS / places.sum::<usize>().max(1)).max(1),
                    most_slots: MAX_SLOTS / frontends.max(1),
                    is_limited: false,
                    left: MAX_LOOKS,
                    left_out: 0,
                    ready_here: check.map(|_| HashSet::default()),
                    chosen: HashMap::default(),
                };
                for port in &service.ports {
                    let id = resolve::id(service, port, family);
                    let wanted = listeners(port, addresses, self.config.external_ips);
                    let (owned, others) = self.listeners.divide(&id, wanted);
                    lost.extend(others);
                    let owns = |frontend: &Frontend| owned.binary_search(&frontend.at).is_ok();
                    let (port, unsupported) =
                        resolve::resolve(&id, service, port, addresses, endpoints, around, owns);
                    if unsupported != UnsupportedFeatures::default() && !port.frontends.is_empty() {
                        all_unsupported.push((id, unsupported));
                    }
                    resolved.push(port);
                }
                if let Some((check, ready)) = check.as_mut().zip(endpoints.ready_here.as_ref()) {
                    *check.local_endpoints.get_mut(family) = Some(ready.len());
                }
                if endpoints.is_limited || endpoints.left_out > 0 {
                    let most = Some(endpoints.most).filter(|_| endpoints.is_limited);
                    limited.push(Limited { family, most, ports: endpoints.left_out });
                }
            }
        }
        // Hardly any Service has conflicts.
        if !lost.is_empty() || !limited.is_empty() || !self.conflicts.is_empty() {
            let key = service_key(name);
            let each_address = self.capabilities.has_endpoints_at_each_address();
            let found = [conflicts(&key, &lost), limits(&key, &limited, each_address)].concat();
            problems.extend(self.conflicts.replace(&key, found));
        }
        problems.extend(self.unsupported.replace(name, &all_unsupported, self.mode));
        for port in resolved {
            self.set_resolved(port.id.clone(), Some(port));
        }
        match check {
            Some(check) => drop(self.health_checks.insert(name.clone(), check)),
            None => drop(self.health_checks.remove(name)),
        }
        self.update_health_check(name);
    }

    /// Updates the health check of a Service by the ready endpoints on this node. There are none
    /// where the traffic of the Service may find no rules, since the kernel refuses them.
    pub(super) fn update_health_check(&mut self, name: &ServiceName) {
        let mut wanted = self.health_checks.get(name).copied();
        if let Some(wanted) = &mut wanted {
            for family in IpFamily::ALL {
                let count = wanted.local_endpoints.get_mut(family).as_mut();
                if let Some(count) = count.filter(|_| self.withheld.may_lack_rules(name, family)) {
                    *count = 0;
                }
            }
        }
        let known = &mut self.state.health_checks;
        if known.get(name) == wanted.as_ref() {
            return;
        }
        self.unsynced.note_health_checks(known);
        match wanted {
            Some(wanted) => known.insert(name.clone(), wanted),
            None => known.remove(name),
        };
    }

    fn set_resolved(&mut self, id: ServicePortId, port: Option<ResolvedServicePort>) {
        let port = port.filter(|port| !port.frontends.is_empty()).map(Arc::new);
        let withheld = self.withheld.value_mut(&id);
        let before = match &withheld {
            Some(value) => Some(&**value),
            None => self.state.service_ports.get(&id),
        };
        if before == port.as_ref() {
            return;
        }
        let counts = self.no_local.get_mut(id.family);
        if let Some(before) = before {
            let lacking = lacks_local(before);
            counts.internal -= lacking.internal;
            counts.external -= lacking.external;
        }
        if let Some(port) = &port {
            let lacking = lacks_local(port);
            counts.internal += lacking.internal;
            counts.external += lacking.external;
        }
        // What the kernel refuses is not tried again before it is time, however often it changes.
        if let (Some(value), Some(port)) = (withheld, &port) {
            *value = port.clone();
            return;
        }
        let before = match port {
            Some(port) => self.state.service_ports.insert(id.clone(), port),
            None => {
                self.withheld.forget(&id);
                self.state.service_ports.remove(&id)
            }
        };
        self.confirm_triggers(&id.name.service);
        self.unsynced.note_port(id, before);
    }
}

pub(super) fn families(service: &Service) -> impl Iterator<Item = (IpFamily, &Addresses)> {
    IpFamily::ALL
        .into_iter()
        .filter_map(|family| Some((family, service.addresses.get(family).as_deref()?)))
}

/// The number of times that the endpoints of a port count.
fn places(port: &ServicePort, addresses: &Addresses, around: &NodeContext) -> usize {
    if !around.capabilities.has_endpoints_at_each_address() {
        return 1;
    }
    let places = listeners(port, addresses, around.external_ips).map(|(at, _)| match at {
        FrontendAddress::NodePort => around.node_port_addresses,
        _ => 1,
    });
    places.sum()
}

fn wanted_listeners(service: &Service, external_ips: bool) -> Vec<ListeningPort> {
    let mut wanted = Vec::new();
    for (family, addresses) in families(service) {
        for port in &service.ports {
            let id = resolve::id(service, port, family);
            wanted.push(ListeningPort {
                id,
                created: service.created,
                listeners: listeners(port, addresses, external_ips).collect(),
            });
        }
    }
    wanted
}

/// Whether (0 or 1) a port lacks local endpoints for its internal and for its external traffic.
fn lacks_local(port: &ResolvedServicePort) -> NoLocalEndpoints {
    let lacks = |is_internal: bool| {
        let lacks = port.frontends.iter().any(|frontend| {
            matches!(frontend.at, FrontendAddress::ClusterIp(_)) == is_internal
                && match frontend.action {
                    Action::Drop => true,
                    Action::ExternalLocal => port.local.is_empty(),
                    _ => false,
                }
        });
        usize::from(lacks)
    };
    NoLocalEndpoints { internal: lacks(true), external: lacks(false) }
}

#[cfg(test)]
mod tests {
    use crate::{
        config::NodeConfig,
        objects::{Event, Kind},
        testing::{NODE, endpoint, slice},
        track::{MOST_TRIGGER_TIMES, TRIGGER_TIME, Tracker},
    };

    #[test]
    fn trigger_times_do_not_pile_up_while_nothing_is_resolved() {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        for kind in [Kind::Service, Kind::EndpointSlice] {
            tracker.apply(Event::Replace { kind, objects: Vec::new(), malformed: Vec::new() });
        }
        let path = format!("metadata/annotations/{}", TRIGGER_TIME.replace('/', "~1"));
        let changes = [1, 2, 3, 4].map(|n| {
            let service = ["web", "shop"][n % 2];
            let of_service = slice(service, "1").set(&path, "2026-01-01T00:00:00Z");
            of_service.port("", "TCP", 80).endpoint(endpoint(&format!("10.1.0.{n}"), NODE)).object()
        });
        for change in changes.iter().cycle().take(MOST_TRIGGER_TIMES + 10) {
            tracker.apply(Event::Apply(change.clone()));
        }
        let kept: usize = tracker.pending_triggers.values().map(Vec::len).sum();
        assert_eq!(kept, MOST_TRIGGER_TIMES);
    }
}
