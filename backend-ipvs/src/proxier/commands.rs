//! Commands to IPVS, with what each is about, so that a refusal can be explained.

use std::{fmt, net::SocketAddr};

use switchyard_kernel::ipvs::{Batch, RealServer, Refusal, Selector, VirtualServer};

/// Commands in the order in which the kernel gets them.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    steps: Vec<Step>,
}

/// A command: its subject, and what is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) selector: Selector,
    pub(crate) action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    AddServer(VirtualServer),
    EditServer(VirtualServer),
    DeleteServer,
    AddReal(SocketAddr, u32),
    EditReal(SocketAddr, u32),
    /// Takes new connections from a real server.
    DrainReal(SocketAddr),
    DeleteReal(SocketAddr),
}

impl Commands {
    pub(crate) fn push(&mut self, selector: Selector, action: Action) {
        self.steps.push(Step { selector, action });
    }

    pub(crate) fn add_server(&mut self, server: VirtualServer) {
        self.push(server.selector, Action::AddServer(server));
    }

    pub(crate) fn edit_server(&mut self, server: VirtualServer) {
        self.push(server.selector, Action::EditServer(server));
    }

    /// Returns the commands as the kernel gets them.
    pub(crate) fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        for Step { selector, action } in &self.steps {
            match action {
                Action::AddServer(server) => batch.add_server(server),
                Action::EditServer(server) => batch.edit_server(server),
                Action::DeleteServer => batch.delete_server(selector),
                Action::AddReal(real, weight) => {
                    batch.add_real(selector, &RealServer::new(*real, *weight));
                }
                Action::EditReal(real, weight) => {
                    batch.edit_real(selector, &RealServer::new(*real, *weight));
                }
                Action::DrainReal(real) => batch.edit_real(selector, &RealServer::new(*real, 0)),
                Action::DeleteReal(real) => batch.delete_real(selector, *real),
            }
        }
        batch
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The subject of the commands.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The number of objects that are added, and the number of those that are deleted.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let is_added =
            |step: &&Step| matches!(step.action, Action::AddServer(_) | Action::AddReal(..));
        let is_deleted =
            |step: &&Step| matches!(step.action, Action::DeleteServer | Action::DeleteReal(_));
        (self.steps.iter().filter(is_added).count(), self.steps.iter().filter(is_deleted).count())
    }

    /// Returns the refusals that matter, with what each is about. What is to be taken away and is
    /// gone already is gone.
    pub(crate) fn refused(&self, refusals: Vec<Refusal>) -> Vec<(Step, Refusal)> {
        let step = |refusal: Refusal| Some((self.steps.get(refusal.index)?.clone(), refusal));
        // ESRCH is the virtual server's, ENOENT the real server's.
        let matters = |(step, refusal): &(Step, Refusal)| match step.action {
            Action::DeleteServer => refusal.errno != libc::ESRCH,
            Action::DeleteReal(_) | Action::DrainReal(_) => refusal.errno != libc::ENOENT,
            _ => true,
        };
        refusals.into_iter().filter_map(step).filter(matters).collect()
    }
}

impl Step {
    /// Whether a refusal means that another program has changed the virtual server in the meantime.
    pub(crate) fn is_stale(&self, refusal: &Refusal) -> bool {
        match refusal.errno {
            libc::ESRCH | libc::EEXIST => true,
            libc::ENOENT => matches!(self.action, Action::EditReal(..)),
            _ => false,
        }
    }

    /// The scheduler that the kernel lacks, if that is the meaning of the refusal.
    pub(crate) fn missing_scheduler(&self, refusal: &Refusal) -> Option<&str> {
        match &self.action {
            Action::AddServer(server) | Action::EditServer(server)
                if refusal.errno == libc::ENOENT =>
            {
                Some(&server.scheduler)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = Named(&self.selector);
        match &self.action {
            Action::AddServer(_) => write!(f, "add the virtual server {server}"),
            Action::EditServer(_) => write!(f, "change the virtual server {server}"),
            Action::DeleteServer => write!(f, "delete the virtual server {server}"),
            Action::AddReal(real, _) => write!(f, "add the real server {real} of {server}"),
            Action::DrainReal(real) => {
                write!(f, "take new connections from the real server {real} of {server}")
            }
            Action::EditReal(real, _) => write!(f, "change the real server {real} of {server}"),
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const SELECTOR: Selector =
        Selector::Address { protocol: 6, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), port: 80 };

    /// The actions of commands to which the kernel answers with these errors that matter.
    fn refused(fill: impl FnOnce(&mut Commands), errnos: &[i32]) -> Vec<Action> {
        let mut commands = Commands::default();
        fill(&mut commands);
        let refusals = errnos.iter().enumerate().map(|(index, &errno)| Refusal { index, errno });
        let refused = commands.refused(refusals.collect());
        refused.into_iter().map(|(step, _)| step.action).collect()
    }

    #[test]
    fn what_is_gone_already_need_not_be_deleted() {
        let real = SocketAddr::from(([10, 1, 0, 1], 80));
        let take_away = |commands: &mut Commands| {
            commands.push(SELECTOR, Action::DeleteServer);
            commands.push(SELECTOR, Action::DeleteReal(real));
            commands.push(SELECTOR, Action::DrainReal(real));
        };
        assert_eq!(refused(take_away, &[libc::ESRCH, libc::ENOENT, libc::ENOENT]), []);
        let all = [Action::DeleteServer, Action::DeleteReal(real), Action::DrainReal(real)];
        assert_eq!(refused(take_away, &[libc::EPERM, libc::EBUSY, libc::ENOMEM]), all);
        let serve = |commands: &mut Commands| {
            commands.push(SELECTOR, Action::AddReal(real, 1));
            commands.push(SELECTOR, Action::EditReal(real, 1));
        };
        let all = [Action::AddReal(real, 1), Action::EditReal(real, 1)];
        assert_eq!(refused(serve, &[libc::ESRCH, libc::ENOENT]), all);
    }

    #[test]
    fn a_scheduler_is_missing_where_a_virtual_server_is_refused_for_it() {
        let missing = |action, errno| {
            let step = Step { selector: SELECTOR, action };
            step.missing_scheduler(&Refusal { index: 0, errno }).map(str::to_owned)
        };
        let scheduler = "mh".to_owned();
        let (flags, timeout, netmask) = (0, 0, u32::MAX);
        let server = VirtualServer { selector: SELECTOR, scheduler, flags, timeout, netmask };
        let [add, edit] = [Action::AddServer(server.clone()), Action::EditServer(server)];
        assert_eq!(missing(add.clone(), libc::ENOENT).as_deref(), Some("mh"));
        assert_eq!(missing(edit, libc::ENOENT).as_deref(), Some("mh"));
        assert_eq!(missing(add, libc::EINVAL), None);
        let real = SocketAddr::from(([10, 1, 0, 1], 80));
        let edit = Action::EditReal(real, 1);
        assert_eq!(missing(edit, libc::ENOENT), None, "another thing is missing");
    }
}
