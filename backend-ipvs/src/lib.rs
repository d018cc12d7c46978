//! The IPVS backend: Services as virtual servers of the kernel's own load balancer.
//!
//! It will speak generic netlink to IPVS, keep Service addresses on `kube-ipvs0`, and use the
//! ipsets and the few iptables chains of kube-proxy's ipvs mode under the same names. None of that
//! is built: until it is, this crate says so to whoever selects the mode.

use async_trait::async_trait;
use proxy_core::{
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
};

/// The `mode` that selects this backend.
pub const MODE: &str = "ipvs";

/// Whether this node can run the backend; it changes nothing.
pub fn probe() -> Result<(), ProxierError> {
    Err(not_built())
}

fn not_built() -> ProxierError {
    ProxierError::Unsupported {
        mode: MODE,
        reason: "the ipvs backend is not built yet; use nftables".into(),
    }
}

/// The ipvs backend. There is no value of it yet: [`IpvsProxier::new`] always fails.
#[derive(Debug)]
pub enum IpvsProxier {}

impl IpvsProxier {
    /// Makes the backend, if the node can run it.
    pub fn new() -> Result<Self, ProxierError> {
        Err(not_built())
    }
}

#[async_trait]
impl Proxier for IpvsProxier {
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
        let sentence = "ipvs cannot be used on this node: \
                        the ipvs backend is not built yet; use nftables";
        assert_eq!(probe().unwrap_err().to_string(), sentence);
        assert_eq!(IpvsProxier::new().unwrap_err().to_string(), sentence);
    }
}
