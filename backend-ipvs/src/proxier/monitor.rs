//! Notices that another program changes the rules, or the addresses of `kube-ipvs0`.

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Mode, Monitor, ProxierError, changed_beneath_or};
use switchyard_kernel::route::{AddressAnnouncements, SharedAddresses};

use crate::config::DEVICE;

/// The monitor of the rules beneath, and of the addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: SharedAddresses) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound) }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let of_device = async {
            self.device.differs().await.map_err(|error| {
                ProxierError::backend(Mode::IPVS, "cannot watch the addresses of Services", error)
            })
        };
        changed_beneath_or(&mut self.rules, of_device).await
    }

    /// But for IPVS, which the backend looks at.
    fn misses_nothing(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.misses_nothing())
    }
}
