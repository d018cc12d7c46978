//! Systems on which this mode adds no addresses.

use super::{OwnedAddresses, SystemError};

const WHY: &str = "addresses are added on Linux and Windows only";

/// Returns the reason.
pub(crate) fn probe() -> Result<(), SystemError> {
    Err(WHY.into())
}

/// Returns the reason.
pub(crate) fn open() -> Result<Box<dyn OwnedAddresses>, SystemError> {
    Err(WHY.into())
}

/// Finds nothing: an address can be listened on at every port.
pub(crate) fn probe_ports() -> Result<(), SystemError> {
    Ok(())
}

/// Finds nothing to remove.
pub(crate) fn clean_up() -> Result<(), SystemError> {
    Ok(())
}
