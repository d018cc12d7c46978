//! Refusals of the kernel in a sync, and the parts concerned: the Service port that needs what is
//! refused, or all of a family. What belongs to no Service port, such as what is to be deleted, is
//! tried again later.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily, ServicePortId},
    proxier::{DegradedPort, ProxierError, RefusedParts, SyncReport},
    state::State,
};
use switchyard_kernel::{
    ipvs::{Refusal, Selector},
    route::DeviceError,
};

use super::{
    IpvsProxier, RETRY, SyncError,
    commands::{Action, Step},
    warn_of_new,
};
use crate::layout::addresses;

/// The time after which everything is compared again if another program changed something during a
/// comparison, or if new connections go on to a real server that takes none. Doubles up to `RETRY`.
const SOON: Duration = Duration::from_secs(1);
/// The refused parts in a sync of which everything else was done.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    ports: BTreeMap<ServicePortId, String>,
    families: PerFamily<Option<String>>,
    /// Objects that could not be deleted, and what belongs to no Service port.
    pub(crate) leftovers: BTreeSet<String>,
    /// The Service ports of which an endpoint is left out, and why.
    pub(crate) endpoints: BTreeMap<ServicePortId, String>,
    /// The virtual servers and the addresses of all these.
    pub(crate) servers: BTreeSet<Selector>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The real servers that could not be added, by virtual server.
    pub(crate) reals: BTreeMap<Selector, BTreeSet<SocketAddr>>,
    /// Whether another program has changed something since the kernel was read.
    pub(crate) is_stale: bool,
    /// Whether the next comparison is to follow soon.
    pub(crate) is_soon: bool,
    pub(crate) is_compared: bool,
    /// The first error that concerns a Service port or a family.
    first: Option<SyncError>,
}

impl Refused {
    /// Notes that a Service port is refused.
    pub(crate) fn port(&mut self, id: &ServicePortId, error: SyncError) {
        self.ports.entry(id.clone()).or_insert_with(|| ErrorChain(&error).to_string());
        self.first.get_or_insert(error);
    }

    /// Notes that all of a family is refused.
    pub(crate) fn family(&mut self, family: IpFamily, error: SyncError) {
        self.families.get_mut(family).get_or_insert_with(|| ErrorChain(&error).to_string());
        self.first.get_or_insert(error);
    }

    /// Notes that something was refused that belongs to no Service port.
    pub(crate) fn leftover(&mut self, error: &SyncError) {
        self.leftovers.insert(ErrorChain(error).to_string());
    }

    /// Notes that rules could not be changed that serve as they are.
    pub(crate) fn unsettled(&mut self, error: &ProxierError) {
        self.is_soon = true;
        self.leftovers.insert(ErrorChain(error).to_string());
    }

    /// Notes that the kernel may send packets to addresses of the device elsewhere.
    pub(crate) fn unrouted(&mut self, error: &SyncError) {
        self.is_soon = true;
        self.leftover(error);
    }

    /// Whether a Service port or a family is refused.
    pub(crate) fn is_error(&self) -> bool {
        self.first.is_some()
    }

    /// Notes that the real servers of a virtual server could not be read.
    pub(crate) fn unread(&mut self, of: Selector, error: &SyncError) {
        self.servers.insert(of);
        self.is_soon = true;
        self.leftover(error);
    }

    /// Notes that IPVS refused a command about a virtual server of a Service port.
    pub(crate) fn command(&mut self, owner: Option<&ServicePortId>, step: Step, refusal: Refusal) {
        let selector = step.selector;
        let is_stale = step.is_stale(&refusal);
        let action = step.action.clone();
        let error = refused(step, refusal);
        match (action, selector, owner) {
            _ if is_stale => {
                self.is_stale = true;
                self.leftover(&error);
            }
            (Action::AddServer(_), Selector::Address { ip, .. }, _)
                if lacks_ipv6(ip, refusal.errno) =>
            {
                self.family(IpFamily::V6, error);
            }
            (Action::AddServer(_) | Action::EditServer(_), _, Some(owner)) => {
                self.port(owner, error);
            }
            (action @ (Action::AddReal(..) | Action::EditReal(..)), _, Some(owner)) => {
                self.servers.insert(selector);
                if let Action::AddReal(real, _) = action {
                    self.reals.entry(selector).or_default().insert(real);
                }
                let reason = || ErrorChain(&error).to_string();
                self.endpoints.entry(owner.clone()).or_insert_with(reason);
            }
            (action, ..) => {
                // New connections go on to an endpoint that is gone.
                self.is_soon |= matches!(action, Action::DrainReal(_));
                self.servers.insert(selector);
                self.leftover(&error);
            }
        }
    }

    /// Notes that IPVS refused the last real server of a virtual server.
    pub(crate) fn all_endpoints(
        &mut self,
        owner: Option<&ServicePortId>,
        step: Step,
        refusal: Refusal,
    ) {
        if let Some(owner) = owner {
            self.port(owner, refused(step, refusal));
        }
    }

    /// Notes that addresses could not be added to the device, which concerns the Service ports that
    /// have them.
    pub(crate) fn refused_addresses(
        &mut self,
        refused: Vec<DeviceError>,
        wanted: &BTreeSet<IpAddr>,
        state: &State,
        elsewhere: &BTreeSet<IpAddr>,
    ) {
        let mut errors = BTreeMap::new();
        for error in refused {
            match &error {
                DeviceError::Address { address, source, .. } if wanted.contains(address) => {
                    match lacks_ipv6(*address, source.errno) {
                        true => self.family(IpFamily::V6, error.into()),
                        false => drop(errors.insert(*address, SyncError::from(error))),
                    }
                }
                _ => {
                    if let DeviceError::Address { address, .. } = &error {
                        self.addresses.insert(*address);
                    }
                    self.leftover(&error.into());
                }
            }
        }
        let ips: BTreeSet<IpAddr> = errors.keys().copied().collect();
        for (ip, id) in addresses::owners(&state.service_ports, &ips, elsewhere) {
            let Some(error) = errors.get(&ip) else { continue };
            self.ports.entry(id.clone()).or_insert_with(|| ErrorChain(error).to_string());
        }
        self.first = self.first.take().or_else(|| errors.into_values().next());
    }

    /// Returns the first error, and the parts that all of them concern, if there are any. If it is
    /// all of these families, something else is wrong, and no part is named.
    pub(crate) fn into_error(
        self,
        families: &PerFamily<bool>,
    ) -> Option<(SyncError, RefusedParts)> {
        let first = self.first?;
        let is_whole = |family: &IpFamily| self.families.get(*family).is_some();
        let mut programmed = IpFamily::ALL.into_iter().filter(|family| *families.get(*family));
        if programmed.all(|family| is_whole(&family)) {
            return Some((first, RefusedParts::default()));
        }
        let named = self.ports.into_iter().filter(|(id, _)| !is_whole(&id.family));
        let ports = named.map(|(port, reason)| DegradedPort { port, reason }).collect();
        Some((first, RefusedParts { ports, families: self.families }))
    }
}

impl IpvsProxier {
    /// Takes down what was refused and belongs to no Service port, and returns the time until
    /// everything is compared again because of that.
    pub(super) fn note_leftovers(
        &mut self,
        refused: &mut Refused,
        report: &mut SyncReport,
    ) -> Option<Duration> {
        let mut left = mem::take(&mut refused.leftovers);
        let (servers, addresses) = &mut self.held.refused;
        if refused.is_compared {
            servers.clear();
            addresses.clear();
            self.held.refused_reals.clear();
            self.degraded.endpoints = mem::take(&mut refused.endpoints);
        } else {
            left.extend(self.left.iter().cloned());
            self.degraded.endpoints.append(&mut refused.endpoints);
        }
        servers.append(&mut refused.servers);
        addresses.append(&mut refused.addresses);
        for (selector, reals) in mem::take(&mut refused.reals) {
            self.held.refused_reals.entry(selector).or_default().extend(reals);
        }
        let now = Instant::now();
        if left.is_empty() {
            (self.retry, self.soon) = (None, None);
        } else if refused.is_compared || self.retry.is_none() {
            let is_soon = refused.is_soon || refused.is_stale;
            self.soon = is_soon.then(|| self.soon.map_or(SOON, |last| (2 * last).min(RETRY)));
            self.retry = Some(now + self.soon.unwrap_or(RETRY));
        }
        report.cleanup_failed |= !left.is_empty();
        warn_of_new(&mut self.left, left, "A part of a sync was refused, which is tried again");
        let other = report.cleanup_failed.then_some(RETRY);
        let wait = self.retry.map(|due| due.saturating_duration_since(now));
        wait.into_iter().chain(other).min()
    }
}

fn refused(step: Step, refusal: Refusal) -> SyncError {
    match step.missing_scheduler(&refusal) {
        Some(scheduler) => SyncError::NoScheduler(scheduler.to_owned()),
        None => SyncError::Refused { step, refusal, count: 1 },
    }
}

/// Whether the kernel refuses the address, or a virtual server there, as it would any other of
/// IPv6: IPv6 is missing or switched off, in IPVS or on the device.
fn lacks_ipv6(ip: IpAddr, errno: i32) -> bool {
    ip.is_ipv6() && [libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EACCES].contains(&errno)
}

#[cfg(test)]
mod tests {
    use switchyard_core::{
        config::NodeConfig,
        testing::{NODE, conformance::cluster, endpoint, service, slice},
        track::Tracker,
    };
    use switchyard_kernel::netlink::KernelError;

    use super::*;
    use crate::{
        layout::{
            Context,
            servers::{self, Server},
        },
        scheduler::Scheduler,
    };

    static NONE: BTreeSet<Selector> = BTreeSet::new();
    static NOWHERE: BTreeSet<IpAddr> = BTreeSet::new();
    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    fn tracker() -> Tracker {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        let local = service("local", "10.96.0.7")
            .set("spec.type", "LoadBalancer")
            .set("spec.externalTrafficPolicy", "Local")
            .set("spec.healthCheckNodePort", 30_000)
            .port("http", "TCP", 80)
            .ingress("192.0.2.7");
        let endpoints =
            slice("local", "a").port("http", "TCP", 80).endpoint(endpoint("10.244.0.7", NODE));
        for event in cluster().into_iter().chain([local.apply(), endpoints.apply()]) {
            assert_eq!(tracker.apply(event), []);
        }
        tracker.resolve();
        tracker
    }

    fn context(state: &State) -> Context<'_> {
        Context {
            node: &state.node,
            scheduler: Scheduler::RoundRobin,
            missing: Vec::new(),
            claimed: &NONE,
            never_bound: &NOWHERE,
        }
    }

    fn ports(parts: &RefusedParts) -> Vec<String> {
        parts.ports.iter().map(|skipped| skipped.port.to_string()).collect()
    }

    /// The answer of the kernel to the addition of a virtual server of `dual`.
    fn added(family: IpFamily, errno: i32) -> Refused {
        let tracker = tracker();
        let state = tracker.state();
        let is_dual = |port: &&ResolvedPort| {
            port.id.family == family && port.id.name.service.name() == "dual"
        };
        let port = state.service_ports.values().find(is_dual).unwrap();
        let mut found: Option<(Selector, Server)> = None;
        servers::of_port(port, &context(state), |selector, server| {
            found = Some((selector, server))
        });
        let (selector, server) = found.unwrap();
        let step = Step { selector, action: Action::AddServer(server.definition(selector)) };
        let mut refused = Refused::default();
        refused.command(Some(&port.id), step, Refusal { index: 0, errno });
        refused
    }

    type ResolvedPort = std::sync::Arc<switchyard_core::state::ResolvedServicePort>;

    #[test]
    fn a_virtual_server_is_a_service_ports_unless_all_of_ipv6_is_missing() {
        let (_, parts) = added(IpFamily::V6, libc::EINVAL).into_error(&BOTH).unwrap();
        assert_eq!(ports(&parts), ["ns/dual:dns (UDP, IPv6)"]);
        assert_eq!(parts.families, PerFamily::default());
        for errno in [libc::EAFNOSUPPORT, libc::EACCES] {
            let (_, parts) = added(IpFamily::V6, errno).into_error(&BOTH).unwrap();
            assert!(ports(&parts).is_empty() && parts.families.v6.is_some(), "{parts:?}");
            // Nothing else is programmed.
            let v6 = PerFamily { v4: false, v6: true };
            assert!(added(IpFamily::V6, errno).into_error(&v6).unwrap().1.is_empty());
            let (_, parts) = added(IpFamily::V4, errno).into_error(&BOTH).unwrap();
            assert_eq!(ports(&parts), ["ns/dual:dns (UDP, IPv4)"]);
        }
    }

    #[test]
    fn a_missing_scheduler_is_named() {
        let (error, parts) = added(IpFamily::V4, libc::ENOENT).into_error(&BOTH).unwrap();
        assert!(error.to_string().contains("ip_vs_rr "), "{error}");
        assert_eq!(ports(&parts), ["ns/dual:dns (UDP, IPv4)"]);
    }

    #[test]
    fn addresses_are_those_of_service_ports() {
        let tracker = tracker();
        let ip = |last| IpAddr::from([10, 96, 0, last]);
        let error = |address| {
            let source =
                KernelError { errno: libc::EINVAL, sequence: 0, message: None, offset: None };
            DeviceError::Address { device: "kube-ipvs0", action: "add", address, source }
        };
        let mut refused = Refused::default();
        let wanted = [ip(1), ip(5)].into();
        let errors = vec![error(ip(1)), error(ip(5)), error(ip(99))];
        refused.refused_addresses(errors, &wanted, tracker.state(), &BTreeSet::new());
        assert_eq!(refused.leftovers.len(), 1, "nobody has the last one");
        let (_, parts) = refused.into_error(&BOTH).unwrap();
        assert_eq!(ports(&parts), ["ns/idle:http (TCP, IPv4)", "ns/web:http (TCP, IPv4)"]);
    }
}
