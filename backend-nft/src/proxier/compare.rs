//! A comparison that changes nothing: how the tables differ from what was synced, for one Service.

use switchyard_core::{model::ServiceName, proxier::Drift, state::State};
use switchyard_kernel::nftables::TransportError;

use super::{
    NftProxier, drift, now,
    plan::{Have, plan},
};
use crate::layout::NftConfig;

impl NftProxier {
    /// Finds how the tables differ from `state`, which was synced last, as far as that concerns a
    /// Service; `None` if the kernel is not known to hold that.
    pub(super) fn find_drift(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, TransportError> {
        let Some(last) = &self.last else { return Ok(None) };
        // A sync that waits for its pace takes these away.
        if last.earlier.values().any(|(_, until)| *until <= now()) {
            return Ok(None);
        }
        let families = last.families;
        let config = NftConfig { families, ..self.config.clone() };
        let dumps = self.read(&config).map_err(|refused| refused.error);
        self.transport.release();
        let (dumps, is_torn) = dumps?;
        if is_torn {
            return Err(TransportError::Changing(None));
        }
        let last = self.last.as_ref();
        let have = || Have::Read { dumps: &dumps, last, swept: self.swept };
        let (changes, _) = plan(&config, state, have());
        let of_service = state.of_service(service);
        let (of_service, _) = plan(&config, &of_service, have());
        Ok(last.map(|last| drift::find_of_service(&changes, &of_service, last)))
    }
}
