//! The changes of one virtual server, from what the kernel has or was given to what it should have.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, RandomState},
    net::SocketAddr,
    time::Instant,
};

use switchyard_core::model::Protocol;
use switchyard_kernel::ipvs::{RealServer, Selector, VirtualServer};

use super::{
    commands::{Action, Commands},
    draining::Draining,
    schedulers::Schedulers,
};
use crate::{layout::servers::Server, scheduler::Scheduler};

/// The commands of a sync, in two parts, and the list of what drains.
#[derive(Debug)]
pub(crate) struct ServerChanges<'d> {
    /// Adds and changes. These come before addresses of Services become addresses of the node.
    pub(crate) serve: Commands,
    /// Deletes. These come after addresses of Services that are gone were taken away.
    pub(crate) retire: Commands,
    pub(crate) draining: &'d mut Draining,
    pub(crate) schedulers: &'d mut Schedulers,
    /// The hash that decides the order in which real servers are added.
    order: &'d RandomState,
    now: Instant,
}

impl<'d> ServerChanges<'d> {
    pub(crate) fn new(
        draining: &'d mut Draining,
        schedulers: &'d mut Schedulers,
        order: &'d RandomState,
    ) -> Self {
        let (serve, retire) = <(Commands, Commands)>::default();
        Self { serve, retire, draining, schedulers, order, now: Instant::now() }
    }

    /// Plans a virtual server that the kernel does not have.
    pub(crate) fn add(&mut self, selector: Selector, server: &Server) {
        self.schedulers.forget(&selector);
        if server.pool.is_none() {
            return;
        }
        self.serve.add_server(server.definition(selector));
        self.add_reals(selector, server, server.weights().into_iter().collect());
    }

    /// Plans real servers that the kernel does not have. Most schedulers begin with the one that
    /// is added last: in the order of addresses, all nodes would begin with the same. The virtual
    /// servers of a Service port have one order, so that a client who takes turns at all of them
    /// has the same real server at each. Schedulers that hash get the same order on all nodes.
    fn add_reals(
        &mut self,
        selector: Selector,
        server: &Server,
        mut reals: Vec<(SocketAddr, u32)>,
    ) {
        if !server.scheduler.hashes() {
            let port = &server.port.id;
            reals.sort_by_cached_key(|(address, _)| self.order.hash_one((port, address)));
        }
        for (address, weight) in reals {
            self.serve.push(selector, Action::AddReal(address, weight));
        }
    }

    /// Plans the end of a virtual server.
    pub(crate) fn delete(&mut self, selector: Selector) {
        self.draining.forget(&selector);
        self.schedulers.forget(&selector);
        self.retire.push(selector, Action::DeleteServer);
    }

    /// Plans the changes of a virtual server that the kernel has, and whose real servers were read.
    pub(crate) fn compare(
        &mut self,
        held: &VirtualServer,
        held_reals: &[RealServer],
        server: &Server,
    ) {
        let selector = held.selector;
        let wanted = server.definition(selector);
        let wanted = self.schedulers.settle(held.scheduler.clone(), server, wanted);
        if *held != wanted {
            self.serve.edit_server(wanted);
        }
        self.compare_reals(selector, held_reals, server);
    }

    /// Plans the changes of the real servers of a virtual server that the kernel has, from those
    /// that were read.
    pub(crate) fn compare_reals(
        &mut self,
        selector: Selector,
        held_reals: &[RealServer],
        server: &Server,
    ) {
        let mut weights = server.weights();
        for real in held_reals {
            match weights.remove(&real.address) {
                Some(weight) => {
                    self.draining.end(&selector, &real.address);
                    if real.weight != weight || !real.is_masquerading {
                        self.serve.push(selector, Action::EditReal(real.address, weight));
                    }
                }
                None => self.compare_unwanted(selector, real, server),
            }
        }
        for address in weights.keys() {
            self.draining.end(&selector, address);
        }
        self.add_reals(selector, server, weights.into_iter().collect());
        self.end_without_pool(selector, server);
    }

    fn compare_unwanted(&mut self, selector: Selector, real: &RealServer, server: &Server) {
        let address = real.address;
        // Whether there are connections shows once there can be no new ones.
        let is_over = real.weight == 0 && !real.has_connections();
        if is_over || !keeps_connections(server, address) {
            self.draining.end(&selector, &address);
            self.retire.push(selector, Action::DeleteReal(address));
            return;
        }
        if real.weight != 0 {
            self.serve.push(selector, Action::DrainReal(address));
        }
        self.draining.begin(selector, address, server.port.serves(address), self.now);
    }

    /// Plans the changes of a virtual server that the kernel was given as `before`, of which the
    /// kernel refused these real servers. They are tried again.
    pub(crate) fn change(
        &mut self,
        selector: Selector,
        before: &Server,
        after: &Server,
        refused: &BTreeSet<SocketAddr>,
    ) {
        let mut old = before.weights();
        old.retain(|real, _| !refused.contains(real));
        let is_there = before.pool.is_some() || self.draining.has(&selector);
        if !is_there {
            return self.add(selector, after);
        }
        let (mut was, wanted) = (before.definition(selector), after.definition(selector));
        was.scheduler = self.schedulers.of(&selector, &was);
        let wanted = self.schedulers.settle(was.scheduler.clone(), after, wanted);
        if was != wanted {
            self.serve.edit_server(wanted);
        }
        let new = after.weights();
        self.change_reals(selector, after, &old, &new);
        let draining = self.draining.of(&selector).into_iter();
        let gone: Vec<SocketAddr> =
            old.into_keys().chain(draining).filter(|address| !new.contains_key(address)).collect();
        for address in gone {
            self.take_out(selector, address, after);
        }
        self.end_without_pool(selector, after);
    }

    /// Plans the real servers that come, come back, or have other weights.
    fn change_reals(
        &mut self,
        selector: Selector,
        server: &Server,
        old: &BTreeMap<SocketAddr, u32>,
        new: &BTreeMap<SocketAddr, u32>,
    ) {
        let mut added = Vec::new();
        for (&address, &weight) in new {
            let was_draining = self.draining.end(&selector, &address);
            match old.get(&address) {
                Some(same) if *same == weight => {}
                None if !was_draining => added.push((address, weight)),
                _ => self.serve.push(selector, Action::EditReal(address, weight)),
            }
        }
        self.add_reals(selector, server, added);
    }

    /// Plans the end of a real server that takes no new connections, or has taken none for a while.
    fn take_out(&mut self, selector: Selector, address: SocketAddr, server: &Server) {
        if !keeps_connections(server, address) {
            self.draining.end(&selector, &address);
            self.retire.push(selector, Action::DeleteReal(address));
        } else if self.draining.begin(selector, address, server.port.serves(address), self.now) {
            self.serve.push(selector, Action::DrainReal(address));
        }
    }

    /// Has a virtual server without a pool end with its last real server, now if there is none.
    fn end_without_pool(&mut self, selector: Selector, server: &Server) {
        if server.pool.is_none() && !self.draining.has(&selector) {
            self.delete(selector);
        } else {
            self.draining.set_last(&selector, server.pool.is_none());
        }
    }
}

/// Whether connections of an endpoint that left the pool go on. The flows of UDP end with an
/// endpoint that serves no longer, those of SCTP with one that is gone; TCP connections end
/// themselves. `dh` would refuse the clients of a real server that takes no new connections.
fn keeps_connections(server: &Server, address: SocketAddr) -> bool {
    match server.port.id.name.protocol {
        _ if server.scheduler == Scheduler::DestinationHash => false,
        Protocol::Tcp => true,
        Protocol::Udp | Protocol::Sctp => server.port.serves(address),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{IpAddr, Ipv4Addr},
        time::Duration,
    };

    use switchyard_core::{
        config::NodeConfig,
        state::PoolKind,
        testing::{NODE, web},
        track::Tracker,
    };

    use super::{super::commands::Action, *};
    use crate::scheduler::Scheduler;

    const SELECTOR: Selector =
        Selector::Address { protocol: 6, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), port: 80 };

    /// The virtual server of `web`, which has the endpoints 1, 2 and 3.
    fn server(scheduler: Scheduler) -> Server {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        for event in web() {
            tracker.apply(event);
        }
        tracker.resolve();
        let port = tracker.state().service_ports.values().next().unwrap();
        Server { port: port.clone(), scheduler, pool: Some(PoolKind::Cluster) }
    }

    /// The action for a virtual server that is held as `held` says, with the real servers of
    /// [`server`] after `alter`: what comes, what goes, and what drains.
    fn compared(
        held: &Server,
        alter: impl FnOnce(&mut Vec<RealServer>),
    ) -> (Vec<Action>, Vec<Action>, Vec<SocketAddr>) {
        let wanted = server(Scheduler::WeightedRoundRobin);
        let real = |(address, weight)| RealServer::new(address, weight);
        let mut reals: Vec<RealServer> = wanted.weights().into_iter().map(real).collect();
        alter(&mut reals);
        let mut draining = Draining::new(Duration::from_secs(100));
        let (mut schedulers, order) = <(Schedulers, RandomState)>::default();
        let mut changes = ServerChanges::new(&mut draining, &mut schedulers, &order);
        changes.compare(&held.definition(SELECTOR), &reals, &wanted);
        let actions =
            |commands: &Commands| commands.steps().iter().map(|s| s.action.clone()).collect();
        let (serve, retire) = (actions(&changes.serve), actions(&changes.retire));
        (serve, retire, draining.of(&SELECTOR))
    }

    /// The kernel begins with the real server that was added last. Nodes begin with any of them,
    /// and all virtual servers of a Service port on one node with the same.
    #[test]
    fn nodes_begin_with_different_real_servers() {
        let last_of_each = |scheduler| {
            let server = server(scheduler);
            let added = |changes: &mut ServerChanges<'_>, port| {
                let ip = IpAddr::from([10, 96, 0, 1]);
                changes.add(Selector::Address { protocol: 6, ip, port }, &server);
                changes.serve.steps().last().cloned().unwrap().action
            };
            let node = |_| {
                let mut draining = Draining::new(Duration::from_secs(100));
                let (mut schedulers, order) = <(Schedulers, RandomState)>::default();
                let mut changes = ServerChanges::new(&mut draining, &mut schedulers, &order);
                let last = added(&mut changes, 80);
                assert_eq!(added(&mut changes, 30_080), last);
                let Action::AddReal(address, _) = last else { panic!("{last:?}") };
                address
            };
            (0..100).map(node).collect::<BTreeSet<SocketAddr>>().len()
        };
        assert_eq!(last_of_each(Scheduler::RoundRobin), 3);
        for scheduler in [Scheduler::SourceHash, Scheduler::DestinationHash, Scheduler::Maglev] {
            assert_eq!(last_of_each(scheduler), 1, "{scheduler}");
        }
    }

    #[test]
    fn a_real_server_masquerades_with_the_weight_that_it_should_have() {
        let held = server(Scheduler::WeightedRoundRobin);
        for alter in [
            |real: &mut RealServer| real.is_masquerading = false,
            |real: &mut RealServer| real.weight = 7,
            |real: &mut RealServer| real.weight = 0,
        ] {
            let mut address = None;
            let found = compared(&held, |reals| {
                address = Some(reals[1].address);
                alter(&mut reals[1]);
            });
            assert_eq!(found, (vec![Action::EditReal(address.unwrap(), 1)], vec![], vec![]));
        }
    }

    #[test]
    fn a_real_server_that_nobody_wants_goes_with_its_connections() {
        let held = server(Scheduler::WeightedRoundRobin);
        let other = SocketAddr::from(([10, 244, 0, 9], 80));
        let with = |weight, active, inactive| {
            compared(&held, |reals| {
                reals.push(RealServer { active, inactive, ..RealServer::new(other, weight) });
            })
        };
        assert_eq!(with(1, 0, 0), (vec![Action::DrainReal(other)], vec![], vec![other]));
        assert_eq!(with(0, 1, 0), (vec![], vec![], vec![other]));
        assert_eq!(with(0, 0, 1), (vec![], vec![], vec![other]));
        assert_eq!(with(0, 0, 0), (vec![], vec![Action::DeleteReal(other)], vec![]));
    }
}
