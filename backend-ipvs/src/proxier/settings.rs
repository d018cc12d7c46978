//! Parameters and timeouts of the kernel.

use std::{collections::BTreeSet, mem, time::Duration};

use switchyard_core::{error::ErrorChain, proxier::SyncReport};
use switchyard_kernel::ipvs::Timeouts;

use super::{IpvsProxier, SyncError};
use crate::kernel_settings::KernelSettingError;

impl IpvsProxier {
    /// Sets the kernel's parameters for IPVS, and returns why some cannot be set.
    pub(super) fn set_parameters(&mut self) -> Result<BTreeSet<String>, KernelSettingError> {
        let unset = self.kernel.set_parameters(&self.config);
        // A node that was prepared serves on when another program changes a parameter.
        let unset = match self.is_prepared {
            true => unset.all(),
            false => unset.optional()?,
        };
        self.is_prepared = true;
        Ok(unset.iter().map(|error| ErrorChain(error).to_string()).collect())
    }

    /// Sets what IPVS needs of the kernel.
    pub(super) fn set_kernel(&mut self, report: &mut SyncReport) -> Result<(), SyncError> {
        let mut unset = self.set_parameters()?;
        let wanted = self.config.timeouts;
        let wanted = Timeouts {
            tcp: seconds(wanted.tcp),
            tcp_fin: seconds(wanted.tcp_fin),
            udp: seconds(wanted.udp),
        };
        let differs = |wanted: u32, held: u32| wanted != 0 && wanted != held;
        let result = self.kernel.timeouts().and_then(|held| {
            if differs(wanted.tcp, held.tcp)
                || differs(wanted.tcp_fin, held.tcp_fin)
                || differs(wanted.udp, held.udp)
            {
                return self.kernel.set_timeouts(wanted);
            }
            Ok(())
        });
        // Connections work with other timeouts, too.
        if let Err(error) = result {
            unset.insert(format!("cannot set the timeouts of IPVS: {}", ErrorChain(&error)));
        }
        let known = mem::replace(&mut self.unset, unset);
        report.warnings.extend(self.unset.difference(&known).cloned());
        Ok(())
    }
}

/// Returns whole seconds. Less than one is not none.
pub(super) fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
}
