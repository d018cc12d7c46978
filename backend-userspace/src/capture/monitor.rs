//! Notices that another program changes what a capture mode programs: rules, or the addresses of
//! the device.

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Monitor, ProxierError, changed_beneath_or};
use switchyard_netlink::route::{AddressAnnouncements, SharedAddresses};

use super::{DEVICE, failed};

/// The monitor of the rules beneath, if there are any, and of the addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: &SharedAddresses) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound.clone()) }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let of_device = async {
            let differs = self.device.differs().await;
            differs.map_err(failed("cannot watch the addresses of the device"))
        };
        changed_beneath_or(&mut self.rules, of_device).await
    }
}
