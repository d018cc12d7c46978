//! Systems without a packet filter that this mode knows.

use switchyard_core::{
    config::NodeConfig,
    proxier::{Mode, ProxierError},
};

use super::Rules;
use crate::{UserspaceConfig, intake::Intake};

const WHY: &str = "this system is not Linux";

/// No backend redirects traffic here.
#[derive(Debug)]
pub(crate) struct Redirects;

impl Redirects {
    pub(crate) fn new(_config: &UserspaceConfig) -> Self {
        Self
    }

    /// Returns the reason.
    pub(crate) fn probe(&self, _rules: Rules) -> Result<(), String> {
        Err(WHY.to_owned())
    }

    /// Returns the reason.
    pub(crate) fn open(&self, _rules: Rules) -> Result<Box<dyn Intake>, ProxierError> {
        Err(ProxierError::unsupported(Mode::USERSPACE, WHY))
    }

    /// Needs nothing.
    pub(crate) fn is_prepared(&self, _: Rules, _: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Has nothing to prepare.
    pub(crate) fn prepare(&self, _rules: Rules, _node: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Finds nothing to remove.
    pub(crate) fn clean_up(&self) -> Result<(), ProxierError> {
        Ok(())
    }
}
