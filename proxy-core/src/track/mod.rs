//! Takes objects in, in any order and repeatedly, and keeps the resolved [`State`] and the
//! [`Delta`] since the last successful sync.
//!
//! [`Tracker::apply`] parses ([`service`], [`slice`], [`node`]) and notes which Services are
//! touched; [`Tracker::resolve`] resolves those again ([`crate::resolve`]), settles who has an
//! address that several Services claim ([`claims`]), and compares with what there was.

mod claims;
mod names;
pub(crate) mod node;
mod problem;
pub(crate) mod service;
pub(crate) mod slice;

use std::{
    collections::{HashMap, HashSet},
    mem,
    net::IpAddr,
    sync::Arc,
};

pub use self::problem::Problem;
use self::{
    claims::{Claim, Claims, ListenerKey},
    node::{Node, NodeInputs},
    problem::{KnownProblems, Problems},
    service::Service,
    slice::Slices,
};
use crate::{
    config::NodeConfig,
    model::{IpFamily, PerFamily, ServiceName, ServicePortId},
    objects::{self, Event, Kind, Object, ObjectKey},
    resolve::{self, Surroundings, frontends::listeners},
    state::{Delta, FrontendAddress, ResolvedServicePort, Route, State},
};

/// The annotation with the time of the change that a slice reflects.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Service ports whose policy is `Local`, that have endpoints elsewhere, and none here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// With `internalTrafficPolicy: Local`.
    pub internal: usize,
    /// With `externalTrafficPolicy: Local`.
    pub external: usize,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Tracker {
    config: NodeConfig,
    services: HashMap<ServiceName, Service>,
    slices: Slices,
    node_inputs: NodeInputs,
    claims: Claims,
    /// What is wrong within an object.
    problems: KnownProblems,
    /// What is wrong between objects: listeners that another Service has.
    conflicts: KnownProblems,
    /// Which kinds have been listed whole.
    synced: HashSet<Kind>,

    /// Services to resolve again.
    touched: HashSet<ServiceName>,
    /// Whether something changed that every Service depends on.
    touched_node: bool,
    /// The claims and resolved ports that each Service has in `claims` and `state`.
    resolved: HashMap<ServiceName, Vec<Programmed>>,

    state: State,
    delta: Delta,
    no_local: PerFamily<NoLocalEndpoints>,
    trigger_times: Vec<String>,
}

/// One Service port in one family, as it stands in the claims.
#[derive(Debug)]
struct Programmed {
    id: ServicePortId,
    claims: Vec<(ListenerKey, Claim)>,
}

impl Tracker {
    /// A tracker that knows nothing yet about the cluster.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            services: HashMap::new(),
            slices: Slices::default(),
            node_inputs: NodeInputs::default(),
            claims: Claims::default(),
            problems: KnownProblems::default(),
            conflicts: KnownProblems::default(),
            synced: HashSet::new(),
            touched: HashSet::new(),
            touched_node: true,
            resolved: HashMap::new(),
            state: State::default(),
            delta: Delta { full: true, ..Delta::default() },
            no_local: PerFamily::default(),
            trigger_times: Vec::new(),
        }
    }

    /// Takes an event in. Returns what is wrong with its objects, unless that was said before.
    pub fn apply(&mut self, event: Event) -> Vec<Problem> {
        match event {
            Event::Apply(object) => self.apply_object(&object),
            Event::Delete(key) => {
                self.remove(&key);
                Vec::new()
            }
            Event::Replace { kind, objects, malformed } => self.replace(kind, objects, malformed),
            Event::Malformed { object, field, message } => {
                let problem = Problem {
                    object: object.clone(),
                    field,
                    message: format!("{message}; the object's last good state stays"),
                };
                self.problems.replace(&object, vec![problem])
            }
        }
    }

    /// The addresses of the node's interfaces, all of them: node ports are served on those that
    /// `nodePortAddresses` allows.
    pub fn set_interface_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = Some(addresses.into_iter().collect());
        if self.node_inputs.interface_addresses != addresses {
            self.node_inputs.interface_addresses = addresses;
            self.touched_node = true;
        }
    }

    /// Whether Services and EndpointSlices have been listed whole. Before that, nothing must be
    /// programmed: what the kernel still holds is better than a part of the truth.
    pub fn is_synced(&self) -> bool {
        [Kind::Service, Kind::EndpointSlice].iter().all(|kind| self.synced.contains(kind))
    }

    /// Whether this node's Node is known and neither being deleted nor about to be.
    pub fn is_node_eligible(&self) -> bool {
        self.node_inputs.node.as_ref().is_some_and(|node| node.is_eligible)
    }

    /// Brings [`Tracker::state`] and [`Tracker::delta`] up to date. Returns problems that show
    /// only between objects: addresses that two Services claim.
    pub fn resolve(&mut self) -> Vec<Problem> {
        if mem::take(&mut self.touched_node) {
            let node = self.node_inputs.resolve(&self.config);
            if node != self.state.node {
                self.state.node = node;
                self.delta.node = true;
            }
            // Zone, node address and local detection decide every Service's routes.
            self.touched.extend(self.services.keys().cloned());
        }
        if self.touched.is_empty() {
            return Vec::new();
        }
        let mut to_resolve = mem::take(&mut self.touched);
        let mut displaced = HashSet::new();
        for name in &to_resolve {
            self.renew_claims(name, &mut displaced);
        }
        to_resolve.extend(displaced);
        let mut problems = Vec::new();
        for name in &to_resolve {
            self.resolve_service(name, &mut problems);
        }
        problems
    }

    /// What this node should program, as of the last [`Tracker::resolve`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What changed in [`Tracker::state`] since the last [`Tracker::mark_synced`].
    pub fn delta(&self) -> &Delta {
        &self.delta
    }

    /// Asks for a comparison of everything at the next sync.
    pub fn request_full(&mut self) {
        self.delta.full = true;
    }

    /// The kernel holds [`Tracker::state`] now. Returns the trigger times (RFC 3339, as annotated)
    /// of the EndpointSlice changes since the last time.
    pub fn mark_synced(&mut self) -> Vec<String> {
        self.delta = Delta::default();
        mem::take(&mut self.trigger_times)
    }

    /// Counts of Service ports that have endpoints only elsewhere.
    pub fn no_local_endpoints(&self) -> PerFamily<NoLocalEndpoints> {
        self.no_local
    }

    fn apply_object(&mut self, object: &Object) -> Vec<Problem> {
        let key = object.key();
        let mut problems = Problems::of(key.clone());
        match object {
            Object::Service(object) => self.apply_service(object, &key, &mut problems),
            Object::EndpointSlice(object) => {
                let changed = self.slices.apply(object, &self.config.node_name, &mut problems);
                // What the first list brings happened before we were there.
                if self.is_synced()
                    && !changed.is_empty()
                    && let Some(time) = object.metadata.annotations.get(TRIGGER_TIME)
                {
                    self.trigger_times.push(time.clone());
                }
                self.touched.extend(changed);
            }
            Object::Node(object) if key.name == self.config.node_name => {
                self.set_node(Some(Node::parse(object, &mut problems)));
            }
            // Another node's.
            Object::Node(_) => {}
            Object::ServiceCidr(object) => {
                let nets = node::parse_cidrs("spec.cidrs", &object.spec.cidrs, &mut problems);
                let cidrs = &mut self.node_inputs.service_cidrs;
                if cidrs.insert(key.name.clone(), nets.clone()) != Some(nets) {
                    self.touched_node = true;
                }
            }
        }
        self.problems.replace(&key, problems.into_vec())
    }

    fn apply_service(
        &mut self,
        object: &objects::Service,
        key: &ObjectKey,
        problems: &mut Problems,
    ) {
        match Service::parse(object, problems) {
            Some(service) => {
                let before = self.services.get(&service.name);
                if before != Some(&service) {
                    self.touched.insert(service.name.clone());
                    self.services.insert(service.name.clone(), service);
                }
            }
            None => self.remove_service(&ServiceName::new(&key.namespace, &key.name)),
        }
    }

    fn remove_service(&mut self, name: &ServiceName) {
        if let Some((name, _)) = self.services.remove_entry(name) {
            self.touched.insert(name);
        }
    }

    fn set_node(&mut self, node: Option<Node>) {
        if self.node_inputs.node != node {
            self.node_inputs.node = node;
            self.touched_node = true;
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.problems.replace(key, Vec::new());
        match key.kind {
            Kind::Service => self.remove_service(&ServiceName::new(&key.namespace, &key.name)),
            Kind::EndpointSlice => {
                self.touched.extend(self.slices.remove(&key.namespace, &key.name));
            }
            // The node we run on does not stop having a zone and an address because its object
            // is deleted; it only stops being eligible.
            Kind::Node if key.name == self.config.node_name => {
                if let Some(node) = &mut self.node_inputs.node {
                    node.is_eligible = false;
                }
            }
            Kind::Node => {}
            Kind::ServiceCidr => {
                self.touched_node |= self.node_inputs.service_cidrs.remove(&key.name).is_some();
            }
        }
    }

    fn replace(
        &mut self,
        kind: Kind,
        objects: Vec<Object>,
        malformed: Vec<ObjectKey>,
    ) -> Vec<Problem> {
        let mut gone: HashSet<ObjectKey> = self.keys(kind).collect();
        for key in objects.iter().map(Object::key).chain(malformed) {
            gone.remove(&key);
        }
        for key in &gone {
            self.remove(key);
        }
        self.synced.insert(kind);
        objects.iter().flat_map(|object| self.apply_object(object)).collect()
    }

    fn keys(&self, kind: Kind) -> Box<dyn Iterator<Item = ObjectKey> + '_> {
        match kind {
            Kind::Service => Box::new(self.services.keys().map(service_key)),
            Kind::EndpointSlice => Box::new(self.slices.keys()),
            Kind::Node => Box::new(self.node_inputs.node.iter().map(move |_| ObjectKey {
                kind,
                namespace: String::new(),
                name: self.config.node_name.clone(),
            })),
            Kind::ServiceCidr => {
                Box::new(self.node_inputs.service_cidrs.keys().map(move |name| ObjectKey {
                    kind,
                    namespace: String::new(),
                    name: name.clone(),
                }))
            }
        }
    }

    /// Puts the claims of a Service as it is now in the place of those it had. Adds the Services
    /// that won or lost a listener thereby to `displaced`.
    fn renew_claims(&mut self, name: &ServiceName, displaced: &mut HashSet<ServiceName>) {
        let mut wanted = Vec::new();
        if let Some(service) = self.services.get(name) {
            for (family, addresses) in families(service) {
                for port in &service.ports {
                    let id = resolve::id(service, port, family);
                    let claims = listeners(port, addresses)
                        .map(|(at, port)| {
                            (ListenerKey::new(&id, at, port), Claim::new(&id, at, &service.created))
                        })
                        .collect();
                    wanted.push(Programmed { id, claims });
                }
            }
        }
        let before = self.resolved.remove(name).unwrap_or_default();
        let unchanged =
            |a: &Programmed| wanted.iter().any(|b| a.id == b.id && a.claims == b.claims);
        for programmed in before.iter().filter(|programmed| !unchanged(programmed)) {
            for (key, claim) in &programmed.claims {
                displaced.extend(self.claims.remove(key, claim).map(|id| id.name.service));
            }
        }
        for programmed in &wanted {
            for (key, claim) in &programmed.claims {
                displaced.extend(self.claims.add(*key, claim.clone()).map(|id| id.name.service));
            }
        }
        // Ports that are gone leave the state here; those that stay are compared when resolved.
        for programmed in before {
            if !wanted.iter().any(|w| w.id == programmed.id) {
                self.set_resolved(programmed.id, None);
            }
        }
        if !wanted.is_empty() {
            self.resolved.insert(name.clone(), wanted);
        }
    }

    fn resolve_service(&mut self, name: &ServiceName, problems: &mut Vec<Problem>) {
        let key = service_key(name);
        let mut conflicts = Problems::of(key.clone());
        let Some(service) = self.services.get(name) else {
            self.conflicts.replace(&key, Vec::new());
            return;
        };
        let mut resolved = Vec::new();
        for (family, addresses) in families(service) {
            let around = Surroundings {
                zone: self.node_inputs.node.as_ref().and_then(|node| node.zone.as_deref()),
                node_ip: self.node_inputs.node_ip(&self.config, family),
                knows_local_pods: self.state.node.local_pods.of(family).is_some(),
                masquerade_all: self.config.masquerade_all,
            };
            for port in &service.ports {
                let id = resolve::id(service, port, family);
                for (at, port) in listeners(port, addresses) {
                    if let Some(winner) = self.claims.winner(&ListenerKey::new(&id, at, port))
                        && *winner.id() != id
                    {
                        conflicts.add(field_of(at), format_args!(
                            "{} port {port} ({}) belongs to Service {}; it is not served for this one",
                            at.ip().map_or("node".to_owned(), |ip| ip.to_string()),
                            id.name.protocol,
                            winner.id().name,
                        ));
                    }
                }
                let owns = |frontend: &crate::state::Frontend| {
                    let key = ListenerKey::new(&id, frontend.at, frontend.port);
                    // An address that the Service itself names twice is served as its best kind.
                    self.claims.winner(&key)
                        == Some(&Claim::new(&id, frontend.at, &service.created))
                };
                let slices = self.slices.of(name);
                resolved.push(resolve::resolve(
                    id.clone(),
                    service,
                    port,
                    addresses,
                    slices,
                    &around,
                    owns,
                ));
            }
        }
        for port in resolved {
            let id = port.id.clone();
            self.set_resolved(id, Some(port));
        }
        problems.extend(self.conflicts.replace(&key, conflicts.into_vec()));
    }

    fn set_resolved(&mut self, id: ServicePortId, port: Option<ResolvedServicePort>) {
        let port = port.filter(|port| !port.frontends.is_empty());
        let before = self.state.service_ports.get(&id);
        if before.map(Arc::as_ref) == port.as_ref() {
            return;
        }
        let counts = self.no_local.of_mut(id.family);
        let (internal, external) = before.map_or((false, false), |port| lacks_local(port));
        counts.internal -= usize::from(internal);
        counts.external -= usize::from(external);
        match port {
            Some(port) => {
                let (internal, external) = lacks_local(&port);
                counts.internal += usize::from(internal);
                counts.external += usize::from(external);
                self.state.service_ports.insert(id.clone(), Arc::new(port));
            }
            None => {
                self.state.service_ports.remove(&id);
            }
        }
        self.delta.service_ports.insert(id);
    }
}

/// The families that a Service has addresses in.
fn families(service: &Service) -> impl Iterator<Item = (IpFamily, &service::Addresses)> {
    IpFamily::ALL
        .into_iter()
        .filter_map(|family| Some((family, service.addresses.of(family).as_ref()?)))
}

/// Whether a port lacks local endpoints for its internal and for its external traffic.
fn lacks_local(port: &ResolvedServicePort) -> (bool, bool) {
    let lacks = |is_internal: bool| {
        port.frontends.iter().any(|frontend| {
            matches!(frontend.at, FrontendAddress::ClusterIp(_)) == is_internal
                && match frontend.route {
                    Route::Drop => true,
                    Route::ExternalLocal => port.local.is_empty(),
                    Route::Pool { .. } | Route::Reject => false,
                }
        })
    };
    (lacks(true), lacks(false))
}

fn service_key(name: &ServiceName) -> ObjectKey {
    ObjectKey {
        kind: Kind::Service,
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
    }
}

fn field_of(at: FrontendAddress) -> &'static str {
    match at {
        FrontendAddress::ClusterIp(_) => "spec.clusterIPs",
        FrontendAddress::LoadBalancerIp(_) => "status.loadBalancer.ingress",
        FrontendAddress::ExternalIp(_) => "spec.externalIPs",
        FrontendAddress::NodePort => "spec.ports",
    }
}
