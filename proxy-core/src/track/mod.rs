//! Accepts objects, in any order and repeatedly, and keeps the resolved [`State`] and the
//! [`Transition`] to that state from the one that was synced last.
//!
//! [`Tracker::apply`] parses an object (`crate::parsed`) and notes which Services are touched;
//! [`Tracker::resolve`] decides which Service port has an address that several Services have
//! (`conflicts`), resolves the touched Services again (`crate::resolve`), and compares the result
//! with the state so far (`update`).

mod conflicts;
mod known;
mod known_problems;
mod missing;
mod node;
mod service_problems;
mod slices;
mod unsupported;
mod update;
mod withheld;

use std::{mem, net::IpAddr, sync::Arc, time::Instant};

pub use self::missing::Missing;
pub(crate) use self::missing::RequiredFacts;
use self::{
    conflicts::Listeners, known_problems::KnownProblems, node::NodeInputs, slices::Slices,
    unsupported::Unsupported, update::AllSurroundings, withheld::Withheld,
};
pub use crate::parsed::{
    node::NodeFacts,
    problem::{Problem, Reason},
};
use crate::{
    config::NodeConfig,
    model::{HashMap, HashSet, IpFamily, LbAlgorithm, PerFamily, ServiceName, shrink_table},
    objects::{self, Event, Kind, Object, ObjectKey},
    parsed::{node::parse_cidrs, problem::Problems, service::Service, slice},
    proxier::{Capabilities, DegradedPort, Mode},
    resolve::{lb_algorithm, slow_start::SlowStarts},
    state::{HealthCheck, State},
    transition::{Transition, Unsynced},
};

/// The annotation with the time of the change that a slice reflects.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Trigger times kept at most, of all Services: they only feed a histogram, and must not pile up
/// while a backend fails.
const MOST_TRIGGER_TIMES: usize = 10_000;

/// Service ports whose policy is `Local`, that have endpoints elsewhere, and none here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// With `internalTrafficPolicy: Local`.
    pub internal: usize,
    /// With `externalTrafficPolicy: Local`.
    pub external: usize,
}

/// The time of a change that an EndpointSlice reflects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerTime {
    /// The Service of the slice.
    pub service: ServiceName,
    /// The family of the slice.
    pub family: IpFamily,
    /// The time, as annotated (RFC 3339).
    pub time: String,
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Tracker {
    config: NodeConfig,
    /// The capabilities of the backend, and its mode.
    capabilities: Capabilities,
    mode: Option<Mode>,
    services: HashMap<ServiceName, Arc<Service>>,
    slices: Slices,
    node_inputs: NodeInputs,
    listeners: Listeners,
    /// Problems within an object.
    problems: KnownProblems,
    /// Problems between objects: listeners that belong to another Service, and too many endpoints.
    conflicts: KnownProblems,
    /// Features that Services ask for and the backend cannot program.
    unsupported: Unsupported,
    /// The parts that the kernel refuses.
    withheld: Withheld,
    /// The endpoints that do not have their full shares yet.
    slow_starts: SlowStarts,
    /// The kinds that have been listed whole.
    listed: HashSet<Kind>,
    /// The facts that the Node must state before the first sync.
    required: RequiredFacts,

    /// Services to resolve again.
    touched: HashSet<ServiceName>,
    /// Whether something changed that every Service may depend on.
    touched_node: bool,
    /// The surroundings that the Services in `state` were resolved against.
    around: Option<AllSurroundings>,
    /// The Services whose ports are in `listeners` and `state`, and whether with external IPs.
    listening: HashMap<ServiceName, (Arc<Service>, bool)>,
    /// The health checks, with the endpoints of what the kernel refuses.
    health_checks: HashMap<ServiceName, HealthCheck>,

    state: State,
    unsynced: Unsynced,
    no_local: PerFamily<NoLocalEndpoints>,
    /// Trigger times of slices that changed since the last resolve.
    pending_triggers: HashMap<ServiceName, Vec<(IpFamily, String)>>,
    /// The number of trigger times that came since the last resolve.
    pending_times: usize,
    /// The trigger times of slices that changed something to be programmed.
    trigger_times: Vec<TriggerTime>,
}

impl Tracker {
    /// Creates a tracker that knows nothing yet about the cluster.
    pub fn new(config: NodeConfig) -> Self {
        Self {
            config,
            capabilities: Capabilities::KUBE_PROXY,
            mode: None,
            services: HashMap::default(),
            slices: Slices::default(),
            node_inputs: NodeInputs::default(),
            listeners: Listeners::default(),
            problems: KnownProblems::default(),
            conflicts: KnownProblems::default(),
            unsupported: Unsupported::default(),
            withheld: Withheld::default(),
            slow_starts: SlowStarts::default(),
            listed: HashSet::default(),
            required: RequiredFacts::default(),
            touched: HashSet::default(),
            touched_node: true,
            around: None,
            listening: HashMap::default(),
            health_checks: HashMap::default(),
            state: State::default(),
            unsynced: Unsynced::default(),
            no_local: PerFamily::default(),
            pending_triggers: HashMap::default(),
            pending_times: 0,
            trigger_times: Vec::new(),
        }
    }

    /// The problems that objects have now, in any order.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let known = [
            &self.problems,
            &self.conflicts,
            self.unsupported.problems(),
            self.withheld.problems(),
        ];
        known.into_iter().flat_map(KnownProblems::all)
    }

    /// Applies an event. Returns the problems of its objects that were not returned before.
    pub fn apply(&mut self, event: Event) -> Vec<Problem> {
        match event {
            Event::Apply(object) => self.apply_object(&object),
            Event::Delete(key) => {
                self.remove(&key);
                Vec::new()
            }
            Event::Listed(kind) => {
                self.listed.insert(kind);
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

    /// Sets another configuration of the same node: the changes are in the next transition. The
    /// node's name stays, whatever `config` names: which endpoints are local was decided by the
    /// name. So do [`NodeConfig::loopback_endpoints`] and [`NodeConfig::service_proxy_name`].
    pub fn set_config(&mut self, config: NodeConfig) {
        let NodeConfig { node_name, loopback_endpoints, service_proxy_name, .. } =
            mem::replace(&mut self.config, config);
        self.config.node_name = node_name;
        self.config.loopback_endpoints = loopback_endpoints;
        self.config.service_proxy_name = service_proxy_name;
        self.touched_node = true;
    }

    /// Sets what the backend can program, which is [`Capabilities::KUBE_PROXY`] until then, and the
    /// backend's mode, which is named in problems. Services that ask for more get the nearest thing
    /// that the backend can program. Endpoints have loopback addresses only if the backend and
    /// [`NodeConfig::loopback_endpoints`] allow it.
    pub fn set_capabilities(&mut self, capabilities: Capabilities, mode: Mode) {
        self.config.loopback_endpoints &= capabilities.has_loopback_endpoints();
        if (self.capabilities, self.mode) != (capabilities, Some(mode)) {
            (self.capabilities, self.mode) = (capabilities, Some(mode));
            self.touched_node = true;
            // All Services are resolved again.
            self.around = None;
        }
    }

    /// The node's default algorithm ([`NodeConfig::lb_algorithm`]) and the one that takes its
    /// place, if the configuration names one that the backend cannot program for any Service.
    pub fn replaced_default_algorithm(&self) -> Option<(LbAlgorithm, LbAlgorithm)> {
        let (used, replaced) =
            lb_algorithm::nearest(self.config.lb_algorithm?, 1, &self.capabilities, |_| true);
        replaced.map(|replaced| (replaced.asked, used))
    }

    /// Sets the time. New endpoints of Services that ask for slow start get their shares step by
    /// step: [`Tracker::resolve`] has the steps until the time that was set last. Without a time,
    /// endpoints get their full shares at once. What the kernel has refused ([`Tracker::withhold`])
    /// is tried again when it is time.
    pub fn advance(&mut self, now: Instant) {
        self.try_withheld(now);
        self.touched.extend(self.slow_starts.advance(now));
    }

    /// The time when an endpoint of a Service with slow start takes its next step, or what the
    /// kernel has refused is tried again; `None` if neither will be.
    pub fn next_step(&self) -> Option<Instant> {
        self.slow_starts.next_step().into_iter().chain(self.withheld.next_attempt()).min()
    }

    /// Sets all addresses of the node's interfaces: node ports are served on the addresses that
    /// `nodePortAddresses` allows.
    pub fn set_interface_addresses(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses = Some(addresses.into_iter().collect());
        if self.node_inputs.interface_addresses != addresses {
            self.node_inputs.interface_addresses = addresses;
            self.touched_node = true;
        }
    }

    /// Whether everything is known that a sync needs: [`Tracker::waits_for`] is `None`.
    pub fn is_synced(&self) -> bool {
        self.waits_for().is_none()
    }

    /// The facts that the Node states; `None` if there is no Node. In a family that the Node has
    /// no address or pod network in, the last known ones stay.
    pub fn node(&self) -> Option<&NodeFacts> {
        self.node_inputs.node.as_ref().filter(|_| self.node_inputs.node_exists)
    }

    /// Whether load balancers may send to this node: the last version of its Node, which counts
    /// after a deletion, too, is not about to be deleted. Without any Node so far, the answer is
    /// [`NodeConfig::eligible_without_node`].
    pub fn is_node_eligible(&self) -> bool {
        let node = self.node_inputs.node.as_ref();
        node.map_or(self.config.eligible_without_node, |node| node.is_eligible)
    }

    /// Brings [`Tracker::state`] and [`Tracker::transition`] up to date. Returns new problems
    /// between objects (addresses that two Services have), and new problems with the backend (what
    /// a Service asks for and the backend cannot program).
    pub fn resolve(&mut self) -> Vec<Problem> {
        if mem::take(&mut self.touched_node) {
            let node = self.node_inputs.resolve(&self.config, &self.capabilities);
            if node != self.state.node {
                self.unsynced.note_node(mem::replace(&mut self.state.node, node));
            }
        }
        // Zone, node address and local detection decide every Service's routes.
        let around = self.surroundings();
        if self.around.as_ref() != Some(&around) {
            self.touched.extend(self.services.keys().cloned());
        }
        let mut to_resolve = mem::take(&mut self.touched);
        let mut displaced = HashSet::default();
        for name in &to_resolve {
            self.update_listeners(name, &mut displaced);
        }
        to_resolve.extend(displaced);
        let mut problems = Vec::new();
        for name in &to_resolve {
            self.resolve_service(name, &around, &mut problems);
        }
        self.around = Some(around);
        // Slices that changed nothing on this node need no programming: there is no latency to
        // report.
        self.pending_triggers.clear();
        self.pending_times = 0;
        problems
    }

    /// Whether something has changed since the last [`Tracker::resolve`].
    #[cfg(feature = "runner")]
    pub(crate) fn is_touched(&self) -> bool {
        self.touched_node || !self.touched.is_empty()
    }

    /// The state that this node should program, as of the last [`Tracker::resolve`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The step from the state that was synced last to [`Tracker::state`].
    pub fn transition(&self) -> Transition<'_> {
        Transition::new(&self.state, &self.unsynced)
    }

    /// Asks for a full resync at the next sync.
    pub fn request_resync(&mut self) {
        self.unsynced.request_resync();
    }

    /// Asks for a repair at the next sync ([`Transition::is_repair`]), but for what else it does.
    pub fn request_repair(&mut self) {
        self.unsynced.request_repair();
    }

    /// Asks for a look at what no monitor watches ([`Transition::is_checkup`]).
    pub fn request_checkup(&mut self) {
        self.unsynced.request_checkup();
    }

    /// Notes that a sync has failed: everything is compared at the next one, and nothing that was
    /// refused is tried again before a sync succeeds.
    #[cfg(feature = "runner")]
    pub(crate) fn sync_failed(&mut self, now: Instant) {
        self.request_resync();
        self.fail_tried(now);
    }

    /// Counts the changes of [`Tracker::state`] since the last success. A growing number means that
    /// there is something new to program.
    #[cfg(feature = "runner")]
    pub(crate) fn changes(&self) -> u64 {
        self.unsynced.changes()
    }

    /// The trigger times of the EndpointSlice changes in [`Tracker::transition`].
    pub fn trigger_times(&self) -> &[TriggerTime] {
        &self.trigger_times
    }

    /// Notes that the kernel holds [`Tracker::state`] now.
    pub fn mark_synced(&mut self) {
        self.shrink();
        self.forget_tried();
        self.unsynced.mark_synced();
        self.trigger_times.clear();
    }

    /// Forgets that anything was synced: the next transition is a first one.
    #[cfg(feature = "testing")]
    pub fn forget_synced(&mut self) {
        self.unsynced = Unsynced::default();
        for id in self.state.service_ports.keys() {
            self.unsynced.note_port(id.clone(), None);
        }
    }

    /// Counts of Service ports that have endpoints only elsewhere.
    pub fn no_local_endpoints(&self) -> PerFamily<NoLocalEndpoints> {
        self.no_local
    }

    /// Counts of Service ports that are served otherwise than they ask, because the backend cannot
    /// program it.
    pub fn unsupported(&self) -> PerFamily<usize> {
        self.unsupported.counts()
    }

    /// The Service ports in [`Tracker::transition`] that are served otherwise than they ask,
    /// because the backend cannot program it; all such Service ports, if the transition asks for a
    /// comparison. And all Service ports that are left out because the kernel refuses them.
    pub fn degraded(&self) -> Vec<DegradedPort> {
        let mut degraded = self.unsupported.covered_by(&self.transition());
        degraded.extend(self.withheld.degraded());
        degraded
    }

    /// Counts of Service ports that are left out because the kernel refuses them.
    pub fn refused(&self) -> PerFamily<usize> {
        self.withheld.counts()
    }

    fn apply_object(&mut self, object: &Object) -> Vec<Problem> {
        let key = object.key();
        let mut problems = Problems::new(key.clone());
        match object {
            Object::Service(object) => self.apply_service(object, &key, &mut problems),
            Object::EndpointSlice(object) => {
                let changed =
                    self.slices.apply(object, &key, &self.config, &self.services, &mut problems);
                // The changes in the first list happened before this program was there.
                if self.is_synced()
                    && let Some(service) = changed.first()
                    && let Some(time) = object.metadata.annotations.get(TRIGGER_TIME)
                    && let Some(family) = slice::family(object)
                    && self.pending_times < MOST_TRIGGER_TIMES
                {
                    let pending = self.pending_triggers.entry(service.clone()).or_default();
                    pending.push((family, time.clone()));
                    self.pending_times += 1;
                }
                self.touched.extend(changed);
            }
            Object::Node(object) if key.name == self.config.node_name => {
                let facts = NodeFacts::parse(object, &mut problems);
                self.touched_node |= self.node_inputs.set_node(facts);
            }
            // The Node of another node.
            Object::Node(_) => {}
            Object::ServiceCidr(object) => {
                let nets = parse_cidrs("spec.cidrs", &object.spec.cidrs, &mut problems);
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
        match Service::parse(object, self.config.service_proxy_name.as_deref(), problems) {
            Some(mut service) => {
                if let Some(name) = self.slices.name(&service.name) {
                    service.name = name.clone();
                }
                let before = self.services.get(&service.name);
                if before.is_none_or(|before| **before != service) {
                    self.touched.insert(service.name.clone());
                    self.services.insert(service.name.clone(), Arc::new(service));
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

    fn remove(&mut self, key: &ObjectKey) {
        self.problems.replace(key, Vec::new());
        match key.kind {
            Kind::Service => self.remove_service(&ServiceName::new(&key.namespace, &key.name)),
            Kind::EndpointSlice => {
                self.touched.extend(self.slices.remove(&key.namespace, &key.name));
            }
            Kind::Node if key.name == self.config.node_name => self.node_inputs.remove_node(),
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
        let listed: HashSet<ObjectKey> = objects.iter().map(Object::key).chain(malformed).collect();
        self.unlisted(kind, |key| listed.contains(key)).iter().for_each(|key| self.remove(key));
        let mut problems = Vec::new();
        for object in objects {
            problems.extend(self.apply_object(&object));
        }
        self.listed.insert(kind);
        problems
    }

    /// The known objects of a kind that are not listed.
    pub(crate) fn unlisted(
        &self,
        kind: Kind,
        is_listed: impl Fn(&ObjectKey) -> bool,
    ) -> HashSet<ObjectKey> {
        // Objects that could not be used at all may still have problems to be forgotten. Those that
        // are used in part are in both.
        let known = self.keys(kind).chain(self.problems.objects(kind).cloned());
        known.filter(|key| !is_listed(key)).collect()
    }

    /// The number of known objects of a kind, which is 0 for kinds of which there are few.
    #[cfg_attr(not(feature = "runner"), expect(dead_code))]
    pub(crate) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Service => self.services.len(),
            Kind::EndpointSlice => self.slices.len(),
            _ => 0,
        }
    }

    /// The Service that an object is of: the owner of a slice. `None` for other kinds.
    #[cfg_attr(not(feature = "runner"), expect(dead_code))]
    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<&ServiceName> {
        match key.kind {
            Kind::EndpointSlice => self.slices.owner(&key.namespace, &key.name),
            _ => None,
        }
    }

    /// Gives back the room that objects had which are gone.
    fn shrink(&mut self) {
        shrink_table(&mut self.services);
        self.slices.shrink();
        self.listeners.shrink();
        shrink_table(&mut self.listening);
        shrink_table(&mut self.state.service_ports);
    }

    /// Moves a Service's pending trigger times to those of the transition: its ports changed.
    fn confirm_triggers(&mut self, service: &ServiceName) {
        if let Some(times) = self.pending_triggers.remove(service) {
            let room = MOST_TRIGGER_TIMES.saturating_sub(self.trigger_times.len());
            let times = times.into_iter().take(room);
            let service = || service.clone();
            self.trigger_times.extend(times.map(|(family, time)| TriggerTime {
                service: service(),
                family,
                time,
            }));
        }
    }

    fn keys(&self, kind: Kind) -> Box<dyn Iterator<Item = ObjectKey> + '_> {
        match kind {
            Kind::Service => Box::new(self.services.keys().map(service_key)),
            Kind::EndpointSlice => Box::new(self.slices.keys()),
            Kind::Node => {
                let node = self.node_inputs.node.iter();
                Box::new(node.map(move |_| ObjectKey::of_cluster(kind, &self.config.node_name)))
            }
            Kind::ServiceCidr => {
                let names = self.node_inputs.service_cidrs.keys();
                Box::new(names.map(move |name| ObjectKey::of_cluster(kind, name)))
            }
        }
    }
}

fn service_key(name: &ServiceName) -> ObjectKey {
    ObjectKey {
        kind: Kind::Service,
        namespace: name.namespace().to_owned(),
        name: name.name().to_owned(),
    }
}
