//! The step of a sync in which virtual servers get other schedulers.

use std::{collections::BTreeMap, time::Instant};

use switchyard_core::{
    model::PerFamily,
    proxier::{ProxierError, SyncReport},
    transition::Transition,
};

use super::{
    Done, IpvsProxier, addresses::Addresses, commands::Commands, failed, refused::Refused,
};

impl IpvsProxier {
    /// Changes as many schedulers as may be changed now. The rules translate what is new for their
    /// Service ports in the meantime, without affinity. A scheduler that the kernel has no longer
    /// is replaced, by a comparison.
    ///
    /// # Errors
    /// If the rules refuse anything, or IPVS a virtual server of a Service port, which is named.
    /// All is to be compared then.
    pub(super) async fn change_schedulers(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        seen: &Addresses,
        report: &mut SyncReport,
    ) -> Result<Done, ProxierError> {
        let (mut ports, mut commands) = (Vec::new(), Commands::default());
        let mut owners = BTreeMap::new();
        for (port, server) in self.schedulers.take(families, Instant::now()) {
            ports.extend(change.after().service_ports.get(&port));
            owners.insert(server.selector, port);
            commands.edit_server(server);
        }
        if ports.is_empty() {
            return Ok(Done::All);
        }
        let never_bound = self.basis.never_bound.clone();
        let delivery = seen.delivery(self.delivered, &never_bound);
        self.rules.translate(&ports, delivery, report).await?;
        // A packet that met the rules of before would find a virtual server without a scheduler.
        self.kernel.pass_packets();
        let mut refused = Refused::default();
        for (step, refusal) in self.commit(report, &commands).map_err(failed)? {
            self.note_refusal(owners.get(&step.selector), step, refusal, &mut refused);
        }
        self.rules.resume(&ports, delivery, report).await?;
        let done = if refused.is_stale { Done::Differs } else { Done::All };
        match refused.into_error(families) {
            Some((error, parts)) => Err(failed(error).of_parts(parts)),
            None => Ok(done),
        }
    }
}
