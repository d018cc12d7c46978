//! Commands to IPVS, with what each is about, so that a refusal can be explained.

use std::{fmt, net::SocketAddr};

use switchyard_ipvs_netlink::{Batch, RealServer, Refusal, Selector, VirtualServer};

use crate::{layout::servers::Server, scheduler::Scheduler};

/// Commands in the order in which the kernel gets them.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) batch: Batch,
    steps: Vec<Step>,
}

/// What a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) selector: Selector,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    AddServer(Scheduler),
    EditServer(Scheduler),
    DeleteServer,
    AddReal(SocketAddr),
    EditReal(SocketAddr),
    DeleteReal(SocketAddr),
}

impl Commands {
    fn note(&mut self, selector: Selector, action: Action) {
        self.steps.push(Step { selector, action });
    }

    pub(crate) fn add_server(&mut self, selector: Selector, server: &Server) {
        self.batch.add_server(&server.definition(selector));
        self.note(selector, Action::AddServer(server.scheduler));
    }

    pub(crate) fn edit_server(&mut self, definition: &VirtualServer, scheduler: Scheduler) {
        self.batch.edit_server(definition);
        self.note(definition.selector, Action::EditServer(scheduler));
    }

    pub(crate) fn delete_server(&mut self, selector: Selector) {
        self.batch.delete_server(&selector);
        self.note(selector, Action::DeleteServer);
    }

    pub(crate) fn add_real(&mut self, of: Selector, address: SocketAddr, weight: u32) {
        self.batch.add_real(&of, &RealServer::new(address, weight));
        self.note(of, Action::AddReal(address));
    }

    pub(crate) fn edit_real(&mut self, of: Selector, address: SocketAddr, weight: u32) {
        self.batch.edit_real(&of, &RealServer::new(address, weight));
        self.note(of, Action::EditReal(address));
    }

    pub(crate) fn delete_real(&mut self, of: Selector, address: SocketAddr) {
        self.batch.delete_real(&of, address);
        self.note(of, Action::DeleteReal(address));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// What the commands are about.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The number of objects that are added, and the number of those that are deleted.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let is_added =
            |step: &&Step| matches!(step.action, Action::AddServer(_) | Action::AddReal(_));
        let is_deleted =
            |step: &&Step| matches!(step.action, Action::DeleteServer | Action::DeleteReal(_));
        (self.steps.iter().filter(is_added).count(), self.steps.iter().filter(is_deleted).count())
    }

    /// Returns the refusals that matter, with what each is about. What is to be deleted and is gone
    /// already is deleted.
    pub(crate) fn refused(&self, refusals: Vec<Refusal>) -> Vec<(Step, Refusal)> {
        let step = |refusal: Refusal| Some((*self.steps.get(refusal.index)?, refusal));
        let matters = |(step, refusal): &(Step, Refusal)| match step.action {
            Action::DeleteServer | Action::DeleteReal(_) => {
                ![libc::ESRCH, libc::ENOENT].contains(&refusal.errno)
            }
            _ => true,
        };
        refusals.into_iter().filter_map(step).filter(matters).collect()
    }
}

impl Step {
    /// The scheduler that the kernel lacks, if that is the meaning of the refusal.
    pub(crate) fn missing_scheduler(&self, refusal: &Refusal) -> Option<Scheduler> {
        match self.action {
            Action::AddServer(scheduler) | Action::EditServer(scheduler)
                if refusal.errno == libc::ENOENT =>
            {
                Some(scheduler)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = Named(&self.selector);
        match self.action {
            Action::AddServer(_) => write!(f, "add the virtual server {server}"),
            Action::EditServer(_) => write!(f, "change the virtual server {server}"),
            Action::DeleteServer => write!(f, "delete the virtual server {server}"),
            Action::AddReal(real) => write!(f, "add the real server {real} of {server}"),
            Action::EditReal(real) => write!(f, "change the real server {real} of {server}"),
            Action::DeleteReal(real) => write!(f, "delete the real server {real} of {server}"),
        }
    }
}

/// A virtual server, as people name it.
pub(crate) struct Named<'a>(pub(crate) &'a Selector);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.0 {
            Selector::Address { protocol, ip, port } => {
                let protocol = match i32::from(protocol) {
                    libc::IPPROTO_TCP => "TCP",
                    libc::IPPROTO_UDP => "UDP",
                    _ => "SCTP",
                };
                write!(f, "{protocol} {}", SocketAddr::new(ip, port))
            }
            Selector::Mark { mark, .. } => write!(f, "for mark {mark:#x}"),
        }
    }
}

/// A real server that the kernel has.
pub(crate) fn has_connections(real: &RealServer) -> bool {
    real.active > 0 || real.inactive > 0
}
