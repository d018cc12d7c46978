//! The iptables backend, for nodes whose kernel or policies rule nftables out.
//!
//! It will program the chains that kube-proxy's iptables mode uses (`KUBE-SERVICES`,
//! `KUBE-NODEPORTS`, one `KUBE-SVC-*` for each Service port ...), under the same names, through
//! `iptables-restore --noflush`, so that either proxy can take over from the other. None of that
//! is built: until it is, this crate says so to whoever selects the mode.

use async_trait::async_trait;
use proxy_core::{
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
};

/// The `mode` that selects this backend.
pub const MODE: &str = "iptables";

/// Whether this node can run the backend; it changes nothing.
pub fn probe() -> Result<(), ProxierError> {
    Err(not_built())
}

fn not_built() -> ProxierError {
    ProxierError::Unsupported {
        mode: MODE,
        reason: "the iptables backend is not built yet; use nftables".into(),
    }
}

/// The iptables backend. There is no value of it yet: [`IptablesProxier::new`] always fails.
#[derive(Debug)]
pub enum IptablesProxier {}

impl IptablesProxier {
    /// Makes the backend, if the node can run it.
    pub fn new() -> Result<Self, ProxierError> {
        Err(not_built())
    }
}

#[async_trait]
impl Proxier for IptablesProxier {
    fn mode(&self) -> &'static str {
        match *self {}
    }

    async fn sync(&mut self, _: &State, _: &Delta) -> Result<SyncReport, ProxierError> {
        match *self {}
    }

    async fn cleanup(&mut self) -> Result<(), ProxierError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_that_it_is_not_built() {
        let sentence = "iptables cannot be used on this node: \
                        the iptables backend is not built yet; use nftables";
        assert_eq!(probe().unwrap_err().to_string(), sentence);
        assert_eq!(IptablesProxier::new().unwrap_err().to_string(), sentence);
    }
}
