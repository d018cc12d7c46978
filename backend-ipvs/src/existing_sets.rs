//! The removal of sets.

use std::{
    thread,
    time::{Duration, Instant},
};

use switchyard_netlink::Error;
use switchyard_netlink::ipset::{DestroyError, IpSets};

use crate::sets;

/// The time that rules that were deleted may take to let go of their sets.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The interval at which a set that is in use is tried again.
const INTERVAL: Duration = Duration::from_millis(10);
/// The sets of ipvs mode that exist.
pub(crate) struct ExistingSets {
    connection: IpSets,
    names: Vec<String>,
}

impl ExistingSets {
    /// Lists the sets. kube-router's, which are called `KUBE-` as well, are not among them.
    pub(crate) fn find() -> Result<Self, Error> {
        let mut connection = IpSets::open()?;
        let existing = connection.names()?;
        let names = sets::names().filter(|name| existing.contains(name)).collect();
        Ok(Self { connection, names })
    }

    /// Whether none exists.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Destroys the sets, and returns their number. Waits for those that are in use.
    ///
    /// # Errors
    /// The first set that could not be destroyed, after all others were.
    pub(crate) fn destroy(mut self) -> Result<usize, (String, DestroyError)> {
        let deadline = Instant::now() + PATIENCE;
        let mut count = 0;
        let mut result = Ok(());
        for name in self.names {
            match destroy(&mut self.connection, &name, deadline) {
                Ok(existed) => count += usize::from(existed),
                Err(error) => result = result.and(Err((name, error))),
            }
        }
        result.map(|()| count)
    }
}

/// Destroys a set, and returns whether it existed. Waits until then for rules to let go of the set.
pub(crate) fn destroy(
    sets: &mut IpSets,
    name: &str,
    deadline: Instant,
) -> Result<bool, DestroyError> {
    loop {
        match sets.destroy(name) {
            Err(DestroyError::InUse) if Instant::now() < deadline => thread::sleep(INTERVAL),
            result => return result,
        }
    }
}
