//! Notices that another program changes what a capture mode programs: rules, the addresses of the
//! device, or its own rules for answers to clients; of their rule of the routing policy and their
//! route only that they are deleted, not that others go before them or replace them.

use std::future::pending;

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Monitor, ProxierError, changed_beneath_or};
use switchyard_kernel::route::{AddressAnnouncements, SharedAddresses};

use super::{DEVICE, failed};

/// The monitor of the rules beneath and of those for answers, if there are any, and of the
/// addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
    answers: Option<Box<dyn Monitor>>,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: &SharedAddresses) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound.clone()), answers: None }
    }

    /// Watches the rules for answers as well.
    pub(crate) fn with_answers(self, answers: Box<dyn Monitor>) -> Self {
        Self { answers: Some(answers), ..self }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let of_answers = async {
            match &mut self.answers {
                Some(answers) => answers.externally_changed().await.map(drop),
                None => pending().await,
            }
        };
        let others = async {
            tokio::select! {
                differs = self.device.differs() => {
                    differs.map_err(failed("cannot watch the addresses of the device"))
                }
                changed = of_answers => changed,
            }
        };
        changed_beneath_or(&mut self.rules, others).await
    }
}
