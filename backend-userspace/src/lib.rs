//! The userspace backend: a real TCP and UDP proxy, with rules that redirect traffic into it.
//!
//! It will accept connections itself, so that it can try another endpoint when one refuses, and
//! can run where no netfilter is to be had. None of that is built: until it is, this crate says so
//! to whoever selects the mode.

use async_trait::async_trait;
use proxy_core::{
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
};

/// The `mode` that selects this backend.
pub const MODE: &str = "userspace";

/// Whether this node can run the backend; it changes nothing.
pub fn probe() -> Result<(), ProxierError> {
    Err(not_built())
}

fn not_built() -> ProxierError {
    ProxierError::Unsupported {
        mode: MODE,
        reason: "the userspace backend is not built yet; use nftables".into(),
    }
}

/// The userspace backend. There is no value of it yet: [`UserspaceProxier::new`] always fails.
#[derive(Debug)]
pub enum UserspaceProxier {}

impl UserspaceProxier {
    /// Makes the backend, if the node can run it.
    pub fn new() -> Result<Self, ProxierError> {
        Err(not_built())
    }
}

#[async_trait]
impl Proxier for UserspaceProxier {
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
        let sentence = "userspace cannot be used on this node: \
                        the userspace backend is not built yet; use nftables";
        assert_eq!(probe().unwrap_err().to_string(), sentence);
        assert_eq!(UserspaceProxier::new().unwrap_err().to_string(), sentence);
    }
}
