//! Notices that another program changes what a capture mode programs: rules, the addresses of the
//! device, or the rule of the routing policy for answers.

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Monitor, ProxierError, changed_beneath_or};
use switchyard_netlink::route::{AddressAnnouncements, DeliveryAnnouncements, SharedAddresses};

use super::{DEVICE, failed};

/// The monitor of the rules beneath and of the rule for answers, if there are any, and of the
/// addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
    answers: Option<DeliveryAnnouncements>,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: &SharedAddresses) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound.clone()), answers: None }
    }

    /// Watches the rule for answers as well.
    pub(crate) fn with_answers(self, answers: DeliveryAnnouncements) -> Self {
        Self { answers: Some(answers), ..self }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let of_answers = async {
            match &mut self.answers {
                Some(answers) => answers.is_deleted().await,
                None => std::future::pending().await,
            }
        };
        let others = async {
            tokio::select! {
                differs = self.device.differs() => {
                    differs.map_err(failed("cannot watch the addresses of the device"))
                }
                is_deleted = of_answers => {
                    is_deleted.map_err(failed("cannot watch the rule for answers to clients"))
                }
            }
        };
        changed_beneath_or(&mut self.rules, others).await
    }
}
