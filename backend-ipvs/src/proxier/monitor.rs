//! Notices that another program changes the rules, or the addresses of `kube-ipvs0`.

use async_trait::async_trait;
use switchyard_core::proxier::{ExternalChange, Mode, Monitor, ProxierError};
use switchyard_netlink::route::{AddressAnnouncements, Bound};

use crate::config::DEVICE;

/// The monitor of the rules beneath, and of the addresses of the device.
pub(crate) struct DeviceMonitor {
    rules: Option<Box<dyn Monitor>>,
    device: AddressAnnouncements,
}

impl DeviceMonitor {
    pub(crate) fn new(rules: Option<Box<dyn Monitor>>, bound: Bound) -> Self {
        Self { rules, device: AddressAnnouncements::new(DEVICE, bound) }
    }
}

#[async_trait]
impl Monitor for DeviceMonitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let Self { rules, device } = self;
        let of_rules = async {
            match rules {
                Some(rules) => rules.externally_changed().await,
                None => std::future::pending().await,
            }
        };
        // A change of the rules that is forgotten with its future is found by the comparison.
        tokio::select! {
            changed = of_rules => changed,
            differs = device.differs() => match differs {
                Ok(()) => Ok(ExternalChange::Changed { by: None }),
                Err(error) => Err(ProxierError::backend(
                    Mode::IPVS,
                    "cannot watch the addresses of Services",
                    error,
                )),
            },
        }
    }
}
