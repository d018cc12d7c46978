//! The changes of one virtual server, from what the kernel has or was given to what it should have.

use std::{collections::BTreeMap, net::SocketAddr, time::Instant};

use switchyard_core::{model::Protocol, state::ResolvedServicePort};
use switchyard_ipvs_netlink::{RealServer, Selector, VirtualServer};

use super::{
    commands::{Commands, has_connections},
    draining::Draining,
};
use crate::layout::servers::Server;

/// The commands of a sync, in two parts, and the list of what drains.
#[derive(Debug)]
pub(crate) struct ServerChanges<'d> {
    /// Adds and changes. These come before addresses of Services become addresses of the node.
    pub(crate) serve: Commands,
    /// Deletes. These come after addresses of Services that are gone were taken away.
    pub(crate) retire: Commands,
    pub(crate) draining: &'d mut Draining,
    pub(crate) now: Instant,
}

impl<'d> ServerChanges<'d> {
    pub(crate) fn new(draining: &'d mut Draining, now: Instant) -> Self {
        Self { serve: Commands::default(), retire: Commands::default(), draining, now }
    }

    /// Plans a virtual server that the kernel does not have.
    pub(crate) fn add(&mut self, selector: Selector, server: &Server) {
        if server.pool.is_none() {
            return;
        }
        self.serve.add_server(selector, server);
        for (address, weight) in server.weights() {
            self.serve.add_real(selector, address, weight);
        }
    }

    /// Plans the end of a virtual server.
    pub(crate) fn delete(&mut self, selector: Selector) {
        self.draining.forget(&selector);
        self.retire.delete_server(selector);
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
        if *held != wanted {
            self.serve.edit_server(&wanted, server.scheduler);
        }
        let mut weights = server.weights();
        for real in held_reals {
            match weights.remove(&real.address) {
                Some(weight) => {
                    self.draining.end(&selector, &real.address);
                    if real.weight != weight || !real.is_masquerading {
                        self.serve.edit_real(selector, real.address, weight);
                    }
                }
                None => self.compare_unwanted(selector, real, &server.port),
            }
        }
        for (address, weight) in weights {
            self.draining.end(&selector, &address);
            self.serve.add_real(selector, address, weight);
        }
        self.end_without_pool(selector, server);
    }

    fn compare_unwanted(
        &mut self,
        selector: Selector,
        real: &RealServer,
        port: &ResolvedServicePort,
    ) {
        if !keeps_connections(port, real.address) {
            self.draining.end(&selector, &real.address);
            self.retire.delete_real(selector, real.address);
        } else if real.weight != 0 {
            // Whether there are connections shows once there can be no new ones.
            self.serve.edit_real(selector, real.address, 0);
            self.draining.begin(selector, real.address, self.now);
        } else if has_connections(real) {
            self.draining.begin(selector, real.address, self.now);
        } else {
            self.draining.end(&selector, &real.address);
            self.retire.delete_real(selector, real.address);
        }
    }

    /// Plans the changes of a virtual server that the kernel was given as `before`.
    pub(crate) fn change(&mut self, selector: Selector, before: &Server, after: &Server) {
        let old = before.weights();
        let is_there = before.pool.is_some() || self.draining.has(&selector);
        if !is_there {
            return self.add(selector, after);
        }
        let (was, wanted) = (before.definition(selector), after.definition(selector));
        if was != wanted {
            self.serve.edit_server(&wanted, after.scheduler);
        }
        let new = after.weights();
        self.change_reals(selector, &old, &new);
        let draining = self.draining.of(&selector).into_iter();
        let gone: Vec<SocketAddr> =
            old.into_keys().chain(draining).filter(|address| !new.contains_key(address)).collect();
        for address in gone {
            self.take_out(selector, address, &after.port);
        }
        self.end_without_pool(selector, after);
    }

    /// Plans the real servers that come, come back, or have other weights.
    fn change_reals(
        &mut self,
        selector: Selector,
        old: &BTreeMap<SocketAddr, u32>,
        new: &BTreeMap<SocketAddr, u32>,
    ) {
        for (&address, &weight) in new {
            let was_draining = self.draining.end(&selector, &address);
            match old.get(&address) {
                Some(same) if *same == weight => {}
                None if !was_draining => self.serve.add_real(selector, address, weight),
                _ => self.serve.edit_real(selector, address, weight),
            }
        }
    }

    /// Plans the end of a real server that takes no new connections, or has taken none for a while.
    fn take_out(&mut self, selector: Selector, address: SocketAddr, port: &ResolvedServicePort) {
        if !keeps_connections(port, address) {
            self.draining.end(&selector, &address);
            self.retire.delete_real(selector, address);
        } else if self.draining.begin(selector, address, self.now) {
            self.serve.edit_real(selector, address, 0);
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

/// Whether connections of an endpoint that left the pool go on. The flows of UDP and SCTP end with an
/// endpoint that serves no longer; TCP connections end themselves.
fn keeps_connections(port: &ResolvedServicePort, address: SocketAddr) -> bool {
    match port.id.name.protocol {
        Protocol::Tcp => true,
        Protocol::Udp | Protocol::Sctp => port.serves(address),
    }
}
