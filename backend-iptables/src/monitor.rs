//! Reports that another program has changed the tables: the backend's end of [`TableMonitor`].

use std::sync::Arc;

use async_trait::async_trait;
use switchyard_core::proxier::{self, ExternalChange, Mode, ProxierError};
use switchyard_kernel::xtables::{Alteration, TableMonitor, TableRecord, Tools, Watched};

use crate::layout::{Settings, fixed};

#[derive(Debug)]
pub(crate) struct Monitor(TableMonitor);

impl Monitor {
    pub(crate) fn new(tools: Tools, settings: &Settings, record: Arc<TableRecord>) -> Self {
        let watched = Watched { canary: settings.names.canary, jumps: fixed::jumps(settings) };
        Self(TableMonitor::new(tools, watched, record))
    }
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        match self.0.changed().await {
            Ok(Alteration::Missing) => Ok(ExternalChange::Changed { by: None }),
            Ok(Alteration::Altered) => Ok(ExternalChange::Suspected),
            Err(error) => {
                Err(ProxierError::backend(Mode::IPTABLES, "cannot watch the rules", error))
            }
        }
    }
}
