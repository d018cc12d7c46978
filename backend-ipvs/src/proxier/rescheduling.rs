//! The step of a sync in which virtual servers get other schedulers.

use std::time::Instant;

use switchyard_core::{
    model::PerFamily,
    proxier::{ProxierError, SyncReport},
    transition::Transition,
};

use super::{IpvsProxier, commands::Commands, failed, full::Addresses};
use crate::rules::Delivery;

impl IpvsProxier {
    /// Changes as many schedulers as may be changed now. The rules translate what is new for their
    /// Service ports in the meantime, without affinity.
    ///
    /// # Errors
    /// If the rules or the kernel refuse anything. All is to be compared then.
    pub(super) async fn change_schedulers(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        seen: &Addresses,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        let (mut ports, mut commands) = (Vec::new(), Commands::default());
        for (port, server) in self.schedulers.take(families, Instant::now()) {
            ports.extend(change.after().service_ports.get(&port));
            commands.edit_server(server);
        }
        if ports.is_empty() {
            return Ok(());
        }
        let never_bound = self.basis.never_bound.clone();
        let delivery = Delivery {
            families: self.delivered,
            bound: &seen.bound,
            elsewhere: &seen.elsewhere,
            never_bound: &never_bound,
        };
        self.rules.translate(&ports, delivery, report).await?;
        // A packet that met the rules of before would find a virtual server without a scheduler.
        self.kernel.pass_packets();
        self.commit_all(report, &commands).map_err(failed)?;
        self.rules.resume(&ports, delivery, report).await
    }
}
