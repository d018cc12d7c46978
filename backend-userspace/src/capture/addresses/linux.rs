//! Owned addresses on Linux: those of a device that sends and receives nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use switchyard_core::error::ErrorChain;
use switchyard_netlink::route::{DeviceError, DummyDevice, has_link_type};

use super::{OwnedAddresses, SystemError};
use crate::capture::DEVICE;

/// Opens a socket to the kernel.
pub(crate) fn open() -> Result<Box<dyn OwnedAddresses>, SystemError> {
    Ok(Box::new(DummyDevice::open(DEVICE)?.or_bridge()))
}

/// Finds out whether the kernel can make the device, for this process.
pub(crate) fn probe() -> Result<(), SystemError> {
    for kind in ["dummy", "bridge"] {
        if has_link_type(kind)? {
            return Ok(());
        }
    }
    Err("the kernel has devices of the types dummy and bridge neither".into())
}

/// Removes the device.
pub(crate) fn clean_up() -> Result<(), SystemError> {
    DummyDevice::open(DEVICE)?.delete()?;
    Ok(())
}

impl OwnedAddresses for DummyDevice {
    fn ensure(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        DummyDevice::ensure(self)?;
        Ok(self.addresses()?)
    }

    fn others(&mut self) -> Result<BTreeSet<IpAddr>, SystemError> {
        Ok(DummyDevice::others(self)?)
    }

    fn change(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<BTreeMap<IpAddr, String>, SystemError> {
        let refused = self.change_each(add, remove)?.into_iter().filter_map(|error| match error {
            DeviceError::Address { address, .. } => Some((address, ErrorChain(&error).to_string())),
            _ => None,
        });
        Ok(refused.collect())
    }
}
