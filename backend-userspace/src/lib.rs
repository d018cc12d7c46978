//! The userspace backend: a real TCP and UDP proxy, with rules that redirect traffic into it.
//!
//! The backend will accept connections itself, so that it can try another endpoint when one
//! refuses, and can run where there is no netfilter. None of that is built yet:
//! [`UserspaceBackend`] reports so when the mode is selected.

use switchyard_core::proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable};

const NOT_BUILT: &str = "the userspace backend is not built yet; use nftables";

/// userspace mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct UserspaceBackend;

impl Backend for UserspaceBackend {
    fn mode(&self) -> Mode {
        Mode::USERSPACE
    }

    fn probe(&self) -> Result<Support, Unusable> {
        Err(Unusable::Backend(NOT_BUILT.to_owned()))
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Err(ProxierError::unsupported(Mode::USERSPACE, NOT_BUILT))
    }

    fn clean_up(&self) -> Result<(), ProxierError> {
        Err(ProxierError::unsupported(Mode::USERSPACE, NOT_BUILT))
    }

    fn translates_flows(&self) -> bool {
        false
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS]
    }
}
