//! Takes objects in, in any order and repeatedly, and keeps the resolved [`State`] and the
//! [`Delta`] since the last successful sync.
//!
//! [`Tracker::apply`] parses (`service`, `slice`, `node`) and notes which Services are
//! touched; [`Tracker::resolve`] settles who has an address that several Services claim
//! (`claims`), resolves the Services again (`crate::resolve`), and compares with what there was
//! (`update`).

mod claims;
mod names;
pub(crate) mod node;
mod problem;
pub(crate) mod service;
pub(crate) mod slice;
mod update;

use std::{
    collections::{HashMap, HashSet},
    mem,
    net::IpAddr,
};

pub use self::problem::{Problem, Reason};
use self::{
    claims::Claims,
    node::{Node, NodeInputs},
    problem::{KnownProblems, Problems},
    service::Service,
    slice::Slices,
    update::{AllSurroundings, Programmed},
};
use crate::{
    config::NodeConfig,
    model::{PerFamily, ServiceName},
    objects::{self, Event, Kind, Object, ObjectKey},
    state::{Delta, State},
};

/// The annotation with the time of the change that a slice reflects.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Trigger times kept for one sync at most: they only feed a histogram, and must not pile up while
/// a backend fails.
const MOST_TRIGGER_TIMES: usize = 10_000;

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
    /// Whether something changed that every Service may depend on.
    touched_node: bool,
    /// What the Services in `state` were resolved against.
    around: Option<AllSurroundings>,
    /// The ports of each Service, as they are in `claims` and `state`.
    resolved: HashMap<ServiceName, Box<[Programmed]>>,

    state: State,
    delta: Delta,
    no_local: PerFamily<NoLocalEndpoints>,
    /// Trigger times of slices that changed since the last resolve.
    pending_triggers: HashMap<ServiceName, Vec<String>>,
    /// Those of them that changed something to be programmed.
    trigger_times: Vec<String>,
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
            around: None,
            resolved: HashMap::new(),
            state: State::default(),
            delta: Delta { full: true, ..Delta::default() },
            no_local: PerFamily::default(),
            pending_triggers: HashMap::new(),
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
                    reason: Reason::Malformed,
                };
                self.problems.replace(&object, vec![problem])
            }
        }
    }

    /// Another configuration of the same node: what it changes is in the next delta. Its name stays
    /// as it was, whatever `config` says: which endpoints are local has been decided by it.
    pub fn set_config(&mut self, config: NodeConfig) {
        let node_name = mem::take(&mut self.config.node_name);
        self.config = NodeConfig { node_name, ..config };
        self.touched_node = true;
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

    /// Whether Services and EndpointSlices have been listed whole, and the Node if the
    /// configuration takes something from it. Before that, nothing must be programmed: what the
    /// kernel still holds is better than a part of the truth.
    pub fn is_synced(&self) -> bool {
        let needed = [Kind::Service, Kind::EndpointSlice]
            .into_iter()
            .chain(self.config.asks_the_node().then_some(Kind::Node));
        needed.into_iter().all(|kind| self.synced.contains(&kind))
    }

    /// Whether this node's Node is neither being deleted nor about to be. A node that is not known
    /// is eligible only if it need not be.
    pub fn is_node_eligible(&self) -> bool {
        let node = self.node_inputs.node.as_ref();
        node.map_or(self.config.eligible_without_node, |node| node.is_eligible)
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
        }
        // Zone, node address and local detection decide every Service's routes.
        let around = self.surroundings();
        if self.around.as_ref() != Some(&around) {
            self.touched.extend(self.services.keys().cloned());
        }
        let mut to_resolve = mem::take(&mut self.touched);
        let mut displaced = HashSet::new();
        for name in &to_resolve {
            self.renew_claims(name, &mut displaced);
        }
        to_resolve.extend(displaced);
        let mut problems = Vec::new();
        for name in &to_resolve {
            self.resolve_service(name, &around, &mut problems);
        }
        self.around = Some(around);
        // What changed nothing here was not programmed late.
        self.pending_triggers.clear();
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
                    && let Some(service) = changed.first()
                    && let Some(time) = object.metadata.annotations.get(TRIGGER_TIME)
                {
                    let pending = self.pending_triggers.entry(service.clone()).or_default();
                    if pending.len() < MOST_TRIGGER_TIMES {
                        pending.push(time.clone());
                    }
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
        // Objects of which nothing could be used may still have problems to be forgotten.
        gone.extend(self.problems.objects(kind).cloned());
        for key in objects.iter().map(Object::key).chain(malformed) {
            gone.remove(&key);
        }
        for key in &gone {
            self.remove(key);
        }
        let mut problems = Vec::new();
        for object in objects {
            problems.extend(self.apply_object(&object));
        }
        self.synced.insert(kind);
        problems
    }

    /// Those of a Service's pending trigger times count: its ports changed.
    fn confirm_triggers(&mut self, service: &ServiceName) {
        if let Some(times) = self.pending_triggers.remove(service) {
            let room = MOST_TRIGGER_TIMES.saturating_sub(self.trigger_times.len());
            self.trigger_times.extend(times.into_iter().take(room));
        }
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
}

fn service_key(name: &ServiceName) -> ObjectKey {
    ObjectKey {
        kind: Kind::Service,
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
    }
}
