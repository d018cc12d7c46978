//! Systems without a packet filter that this mode knows.

use switchyard_core::proxier::{KernelTable, ProxierError};

use super::Rules;
use crate::{
    UserspaceConfig,
    capture::{OpenCapture, SystemError},
};

const WHY: &str = "this system is not Linux";

/// No backend redirects traffic here.
#[derive(Debug)]
pub(crate) struct Redirects;

impl Redirects {
    pub(crate) fn new(_config: &UserspaceConfig) -> Self {
        Self
    }

    /// Returns the reason.
    pub(crate) fn probe(&self, _rules: Rules) -> Result<OpenCapture, SystemError> {
        Err(WHY.into())
    }

    /// Finds nothing to remove.
    pub(crate) fn clean_up(&self, _keep: Option<Rules>) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Finds nothing to read.
    pub(crate) fn dump(&self, _most: usize) -> Vec<KernelTable> {
        Vec::new()
    }
}
