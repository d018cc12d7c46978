//! A model of IPVS, of the device, and of the rules beneath.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    model::{HashMap, IpFamily, PerFamily, ServicePortId},
    proxier::{Mode, Profile, Proxier, ProxierError, RefusedParts, SyncReport},
    state::ResolvedServicePort,
    testing::Stepped,
    transition::Transition,
};
use switchyard_kernel::{
    ipvs::{RealServer, Refusal, Selector, Timeouts, VirtualServer},
    netlink::{Error, KernelError},
    route::DeviceError,
};

use super::super::{IpvsProxier, commands::*, kernel::Kernel};
use crate::{
    DEVICE, IpvsConfig, Scheduler,
    kernel_settings::{self, Unset},
    rules::Rules,
};

type Reals = BTreeMap<SocketAddr, u32>;
type Ports = HashMap<ServicePortId, Arc<ResolvedServicePort>>;

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) servers: BTreeMap<Selector, (VirtualServer, Reals)>,
    pub(super) bound: BTreeSet<IpAddr>,
    /// The addresses that were ever bound.
    pub(super) ever_bound: BTreeSet<IpAddr>,
    pub(super) elsewhere: BTreeSet<IpAddr>,
    /// The Service ports as the rules know them, after each sync of the rules.
    pub(super) rules: Vec<Ports>,
    /// Whether the rules can remember no clients.
    pub(super) lacks_affinity: bool,
    /// The addresses whose routes do not come, and the times that these were waited for.
    pub(super) unrouted: BTreeSet<IpAddr>,
    pub(super) waited: usize,
    /// The schedulers that the kernel does not have.
    pub(super) missing: BTreeSet<Scheduler>,
    /// The directory of parameters; all are as they should be without.
    pub(super) parameters: Option<PathBuf>,
    /// The times that a scheduler was tried, and that one took the place of another.
    pub(super) tried: usize,
    pub(super) rescheduled: usize,
    /// The number of the command or address that is refused, counted down.
    pub(super) refuse: Option<usize>,
    /// The number of the list of real servers that is refused, counted down.
    pub(super) refuse_list: Option<usize>,
    /// The number of the command about a virtual server that another program has just deleted, or
    /// added, counted down.
    pub(super) race: Option<usize>,
    /// Whether timeouts are refused, and virtual servers of IPv6.
    pub(super) refuse_timeouts: bool,
    pub(super) refuse_ipv6: bool,
    /// Endpoints that are refused, and whether deleting virtual servers and draining are.
    pub(super) bad: BTreeSet<IpAddr>,
    pub(super) refuse_deletion: bool,
    pub(super) refuse_draining: bool,
    /// Whether the order of commands may be another, as some are refused.
    pub(super) is_loose: bool,
    /// The times that virtual servers were listed.
    pub(super) listed: usize,
    /// The times that real servers were listed.
    pub(super) listed_reals: usize,
    /// Whether kube-proxy's rules and sets are there.
    pub(super) is_of_kube_proxy: bool,
    /// The attempts to remove rules of other kinds, and whether they fail.
    pub(super) removals: usize,
    pub(super) refuse_removal: bool,
    /// Whether packets may be under way that met the rules of before.
    pub(super) has_packets_of_before: bool,
    /// The number of syncs of the rules, counted down, after which they are refused, and the family
    /// if the refusal names one.
    pub(super) refuse_rules: Option<(usize, Option<IpFamily>)>,
}

/// A kernel, which several proxies have one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Model(Arc<Mutex<Contents>>);

impl Model {
    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().unwrap()
    }

    pub(super) fn open(&self, config: IpvsConfig) -> IpvsProxier {
        let scheduler = config.scheduler.parse().unwrap();
        let rules = Rules::new(Box::new(self.clone()));
        let both = PerFamily { v4: true, v6: true };
        IpvsProxier::new(config, both, scheduler, Box::new(self.clone()), rules)
    }

    /// A node that has synced nothing, with this kernel.
    pub(super) fn node(&self, config: IpvsConfig) -> Stepped<IpvsProxier> {
        Stepped::new(NodeConfig::new(switchyard_core::testing::NODE), self.open(config))
    }

    /// Everything but real servers that drain, and virtual servers that are there for these.
    pub(super) fn dump(&self) -> BTreeSet<String> {
        let held = self.lock();
        let mut lines = BTreeSet::new();
        for (selector, (server, reals)) in &held.servers {
            let reals: Reals =
                reals.iter().filter(|(_, w)| **w > 0).map(|(a, w)| (*a, *w)).collect();
            if !reals.is_empty() {
                lines.insert(format!("{} {server:?} {reals:?}", Named(selector)));
            }
        }
        lines.extend(held.bound.iter().map(|ip| format!("address {ip}")));
        let rules = held.rules.last().into_iter().flatten();
        lines.extend(rules.map(|(id, port)| format!("rules {id} {port:?}")));
        lines
    }
}

impl Contents {
    pub(super) fn server(&self, ip: [u8; 4], port: u16) -> Option<&(VirtualServer, Reals)> {
        self.servers.get(&Selector::Address { protocol: 6, ip: ip.into(), port })
    }

    fn is_refused(&mut self) -> bool {
        let is_now = self.refuse == Some(0);
        self.refuse = self.refuse.and_then(|left| left.checked_sub(1));
        is_now
    }

    /// Deletes the virtual server of a command, or adds another in its place.
    fn play_race(&mut self, step: &Step) {
        let is_played = step.action != Action::DeleteServer;
        if !is_played || self.race.take_if(|left| *left == 0).is_none() {
            self.race = self.race.map(|left| left.saturating_sub(usize::from(is_played)));
            return;
        }
        if let Action::AddServer(server) = &step.action {
            let other = VirtualServer { flags: server.flags ^ 1, ..server.clone() };
            self.servers.insert(step.selector, (other, Reals::new()));
        } else {
            self.servers.remove(&step.selector);
        }
        // The virtual server may be missing at an address.
        self.is_loose = true;
    }

    /// The frontends in the rules at an address.
    fn ruled(&self, ip: IpAddr) -> impl Iterator<Item = (Selector, bool)> {
        let ports = self.rules.last().into_iter().flat_map(HashMap::values);
        ports.flat_map(move |port| {
            let protocol = port.id.name.protocol.number().into();
            let at = port.frontends.iter().filter(move |f| f.at.ip() == Some(ip));
            at.map(move |frontend| {
                let selector = Selector::Address { protocol, ip, port: frontend.port };
                let is_delivered = matches!(
                    frontend.action,
                    switchyard_core::state::Action::Delivered { .. }
                        | switchyard_core::state::Action::DeliveredLocal
                );
                (selector, is_delivered)
            })
        })
    }

    /// A virtual server to which rules lead is deleted after its address, and no other scheduler
    /// takes the place of its own.
    fn assert_order(&self, step: &Step) {
        let Selector::Address { ip, .. } = step.selector else { return };
        let refuses_for_a_while = match &step.action {
            Action::DeleteServer => true,
            Action::EditServer(wanted) => self
                .servers
                .get(&step.selector)
                .is_some_and(|(server, _)| server.scheduler != wanted.scheduler),
            _ => false,
        };
        if refuses_for_a_while && self.bound.contains(&ip) && !self.is_loose {
            let leads =
                self.ruled(ip).any(|(at, is_delivered)| is_delivered && at == step.selector);
            assert!(!leads, "{step}");
            let is_edit = matches!(step.action, Action::EditServer(_));
            assert!(!(is_edit && self.has_packets_of_before), "{step}");
        }
    }

    /// Rules go on to masquerade what an endpoint sends to itself as long as IPVS chooses it.
    fn assert_hairpins(&self, after: &Ports) {
        let known = |ports: &Ports, id: &ServicePortId| -> BTreeSet<SocketAddr> {
            let port = ports.get(id).into_iter();
            let pools = port.flat_map(|port| [&port.cluster, &port.local, &port.draining]);
            let here = pools.flat_map(|pool| pool.iter()).filter(|e| e.may_be_local);
            here.map(|endpoint| endpoint.address).collect()
        };
        for (id, before) in self.rules.last().into_iter().flatten() {
            let (had, has) = (self.rules.last().map(|ports| known(ports, id)), known(after, id));
            let gone: BTreeSet<_> =
                had.into_iter().flatten().filter(|a| !has.contains(a)).collect();
            let protocol = id.name.protocol.number().into();
            for frontend in before.frontends.iter().filter(|_| after.contains_key(id)) {
                let Some(ip) = frontend.at.ip() else { continue };
                let at = Selector::Address { protocol, ip, port: frontend.port };
                let reals = self.servers.get(&at).into_iter().flat_map(|(_, reals)| reals);
                let mut chosen = reals.filter(|(_, weight)| **weight > 0);
                assert!(!chosen.any(|(real, _)| gone.contains(real)), "{id}");
            }
        }
    }

    /// An address that is added has rules, and each virtual server to which they lead.
    fn assert_served(&self, ip: IpAddr) {
        if !self.is_loose {
            assert!(self.ruled(ip).next().is_some(), "{ip} has no rules");
            let mut led = self.ruled(ip).filter(|(_, is_delivered)| *is_delivered);
            assert!(led.all(|(selector, _)| self.servers.contains_key(&selector)), "{ip}");
        }
    }

    fn carry_out(&mut self, step: &Step) -> Result<(), i32> {
        if self.is_refused() {
            return Err(libc::ENOMEM);
        }
        self.play_race(step);
        match &step.action {
            Action::AddServer(_)
                if self.refuse_ipv6
                    && matches!(step.selector, Selector::Address { ip, .. } if ip.is_ipv6()) =>
            {
                return Err(libc::EAFNOSUPPORT);
            }
            Action::AddReal(real, _) if self.bad.contains(&real.ip()) => return Err(libc::EINVAL),
            Action::DeleteServer if self.refuse_deletion => return Err(libc::EBUSY),
            Action::DrainReal(_) if self.refuse_draining => return Err(libc::ENOMEM),
            _ => {}
        }
        self.assert_order(step);
        let scheduler = match &step.action {
            Action::AddServer(server) | Action::EditServer(server) => server.scheduler.parse().ok(),
            _ => None,
        };
        if scheduler.is_some_and(|scheduler| self.missing.contains(&scheduler)) {
            return Err(libc::ENOENT);
        }
        if let Action::AddServer(server) = &step.action {
            let Entry::Vacant(entry) = self.servers.entry(step.selector) else {
                return Err(libc::EEXIST);
            };
            entry.insert((server.clone(), Reals::new()));
            return Ok(());
        }
        let Some((server, reals)) = self.servers.get_mut(&step.selector) else {
            return Err(libc::ESRCH);
        };
        match step.action.clone() {
            Action::AddServer(_) => {}
            Action::EditServer(wanted) => {
                self.rescheduled += usize::from(server.scheduler != wanted.scheduler);
                *server = wanted;
            }
            Action::DeleteServer => drop(self.servers.remove(&step.selector)),
            Action::AddReal(real, weight) => {
                return reals.insert(real, weight).map_or(Ok(()), |_| Err(libc::EEXIST));
            }
            Action::EditReal(real, weight) => *reals.get_mut(&real).ok_or(libc::ENOENT)? = weight,
            Action::DrainReal(real) => *reals.get_mut(&real).ok_or(libc::ENOENT)? = 0,
            Action::DeleteReal(real) => drop(reals.remove(&real).ok_or(libc::ENOENT)?),
        }
        Ok(())
    }
}

impl Kernel for Model {
    fn set_parameters(&mut self, config: &IpvsConfig) -> Unset {
        let root = self.lock().parameters.clone();
        root.map_or_else(Unset::default, |root| kernel_settings::apply(&root, config, None))
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        Ok(Timeouts { tcp: 900, tcp_fin: 120, udp: 300 })
    }

    fn set_timeouts(&mut self, _: Timeouts) -> Result<(), Error> {
        match self.lock().refuse_timeouts {
            true => Err(Error::Kernel(refusal(libc::EINVAL))),
            false => Ok(()),
        }
    }

    fn has_scheduler(&mut self, scheduler: Scheduler) -> Result<bool, Error> {
        let mut held = self.lock();
        held.tried += 1;
        Ok(!held.missing.contains(&scheduler))
    }

    fn virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        let mut held = self.lock();
        held.listed += 1;
        Ok(held.servers.values().map(|(server, _)| server.clone()).collect())
    }

    fn read_virtual_servers(&mut self) -> Result<Vec<VirtualServer>, Error> {
        Ok(self.lock().servers.values().map(|(server, _)| server.clone()).collect())
    }

    /// Real servers with odd addresses have connections.
    fn real_servers(&mut self, of: &Selector) -> Result<Vec<RealServer>, Error> {
        let is_busy = |address: &SocketAddr| match address.ip() {
            IpAddr::V4(ip) => ip.octets()[3] % 2 == 1,
            IpAddr::V6(ip) => ip.octets()[15] % 2 == 1,
        };
        let real = |(address, weight): (&SocketAddr, &u32)| RealServer {
            active: is_busy(address).into(),
            ..RealServer::new(*address, *weight)
        };
        let mut held = self.lock();
        held.listed_reals += 1;
        if held.refuse_list.take_if(|left| *left == 0).is_some() {
            return Err(Error::Kernel(refusal(libc::ENOBUFS)));
        }
        held.refuse_list = held.refuse_list.map(|left| left - 1);
        let found = held.servers.get(of);
        Ok(found.map_or_else(Vec::new, |(_, reals)| reals.iter().map(real).collect()))
    }

    fn commit(&mut self, commands: &Commands) -> Result<(Vec<Refusal>, usize), Error> {
        let mut held = self.lock();
        let mut refused = Vec::new();
        for (index, step) in commands.steps().iter().enumerate() {
            if let Err(errno) = held.carry_out(step) {
                refused.push(Refusal { index, errno });
            }
        }
        Ok((refused, 1))
    }

    fn pass_packets(&mut self) {
        self.lock().has_packets_of_before = false;
    }

    fn ensure_device(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        Ok(self.lock().bound.clone())
    }

    fn other_addresses(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        Ok(self.lock().elsewhere.clone())
    }

    fn change_addresses(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError> {
        let mut held = self.lock();
        let mut errors = Vec::new();
        let all = add.iter().map(|ip| (ip, true)).chain(remove.iter().map(|ip| (ip, false)));
        for (&address, is_added) in all {
            if held.is_refused() {
                let (source, action) = (refusal(libc::ENOBUFS), "change an address of");
                errors.push(DeviceError::Address { device: DEVICE, action, address, source });
            } else if is_added {
                if !held.bound.contains(&address) {
                    held.assert_served(address);
                }
                held.bound.insert(address);
                held.ever_bound.insert(address);
            } else {
                held.bound.remove(&address);
            }
        }
        Ok(errors)
    }

    fn await_local(
        &mut self,
        ips: &[IpAddr],
        patience: Duration,
    ) -> Result<Vec<IpAddr>, DeviceError> {
        let mut held = self.lock();
        assert!(ips.iter().all(|ip| ip.is_ipv6() && held.bound.contains(ip)));
        let left: Vec<_> = ips.iter().copied().filter(|ip| held.unrouted.contains(ip)).collect();
        held.waited += usize::from(!left.is_empty() && !patience.is_zero());
        Ok(left)
    }

    fn remove_other_rules(&mut self, _: Mode) -> Result<bool, ProxierError> {
        let mut held = self.lock();
        held.removals += 1;
        match held.refuse_removal {
            true => Err(ProxierError::backend(Mode::IPVS, "refused", "a test")),
            false => Ok(std::mem::take(&mut held.is_of_kube_proxy)),
        }
    }

    fn remove_all(&mut self, _: &[ipnet::IpNet]) -> Result<(), ProxierError> {
        let mut held = self.lock();
        (held.servers, held.bound) = Default::default();
        Ok(())
    }
}

fn refusal(errno: i32) -> KernelError {
    KernelError { errno, sequence: 0, message: None, offset: None }
}

/// The rules beneath.
#[async_trait]
impl Proxier for Model {
    fn profile(&self) -> Profile {
        let profile = Profile::new(Mode::NFTABLES);
        match self.lock().lacks_affinity {
            true => Profile { capabilities: profile.capabilities.without_affinity(), ..profile },
            false => profile,
        }
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut held = self.lock();
        let refusal = held.refuse_rules;
        held.refuse_rules = refusal.map(|(left, family)| (left.saturating_sub(1), family));
        if let Some((0, family)) = refusal {
            let mut parts = RefusedParts::default();
            if let Some(family) = family {
                *parts.families.get_mut(family) = Some("refused by a test".to_owned());
            }
            let error = ProxierError::backend(Mode::NFTABLES, "refused", "by a test");
            return Err(error.of_parts(parts));
        }
        let before = held.rules.last().cloned().unwrap_or_default();
        let keeps = |id: &ServicePortId| !change.programs(id.family);
        let kept = before.into_iter().filter(|(id, _)| keeps(id));
        let after = change.after().service_ports.iter().filter(|(id, _)| !keeps(id));
        let after = after.map(|(id, port)| (id.clone(), port.clone()));
        let ports = kept.chain(after).collect();
        if !held.is_loose && !held.refuse_draining {
            held.assert_hairpins(&ports);
        }
        held.rules.push(ports);
        held.has_packets_of_before = true;
        if !held.is_loose {
            let is_unruled = |ip: &&IpAddr| held.ruled(**ip).next().is_none();
            assert_eq!(held.bound.iter().find(is_unruled), None, "addresses go before rules");
        }
        Ok(SyncReport::default())
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.lock().rules.clear();
        Ok(())
    }
}
