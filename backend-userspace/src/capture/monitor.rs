//! Notices that another program changes what a capture mode programs: rules, the addresses of the
//! device, or its own rules for answers to clients; of their rule of the routing policy and their
//! route only that they are deleted, not that others go before them or replace them.

use std::future::pending;

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Monitor, ProxierError, changed_beneath_or};
use switchyard_kernel::{
    nftables::netlink::Listener,
    route::{AddressAnnouncements, DeliveryAnnouncements, SharedAddresses},
};

use super::{DEVICE, failed};

/// The monitor of the rules beneath and of those for answers, if there are any, and of the
/// addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
    answers: Option<(Option<Listener>, DeliveryAnnouncements)>,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: &SharedAddresses) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound.clone()), answers: None }
    }

    /// Watches the rules for answers as well.
    pub(crate) fn with_answers(self, answers: (Option<Listener>, DeliveryAnnouncements)) -> Self {
        Self { answers: Some(answers), ..self }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let of_answers = async {
            let Some((table, delivery)) = &mut self.answers else { return pending().await };
            let table = async {
                match table {
                    Some(table) => table.changed().await.map(drop),
                    None => pending().await,
                }
            };
            tokio::select! {
                changed = table => changed,
                is_deleted = delivery.is_deleted() => is_deleted,
            }
        };
        let others = async {
            tokio::select! {
                differs = self.device.differs() => {
                    differs.map_err(failed("cannot watch the addresses of the device"))
                }
                changed = of_answers => {
                    changed.map_err(failed("cannot watch the rules for answers to clients"))
                }
            }
        };
        changed_beneath_or(&mut self.rules, others).await
    }
}
