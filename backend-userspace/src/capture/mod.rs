//! The way that the traffic of Services reaches the sockets of the proxy: one small trait, and an
//! implementation for each kind.

pub(crate) mod addresses;
pub(crate) mod loopback;
#[cfg(target_os = "linux")]
mod monitor;
mod ports;
pub(crate) mod redirect;

use std::{error::Error, time::Duration};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    model::ServiceName,
    proxier::{Drift, Mode, Monitor, Profile, ProxierError, SyncReport},
    state::State,
    transition::Transition,
};

use crate::forwarder::Forwarder;

/// The device that has the addresses of this mode: those of Services, or those of the proxy's
/// sockets.
pub const DEVICE: &str = "switchyard0";

/// The time after which a socket is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);

/// The error of a system.
pub(crate) type SystemError = Box<dyn Error + Send + Sync>;

/// Opens a capture mode that this node can run.
pub(crate) type OpenCapture = Box<dyn FnOnce() -> Result<Box<dyn Capture>, ProxierError> + Send>;

/// Makes an error of this mode of a system's.
fn failed<E: Into<SystemError>>(message: &'static str) -> impl Fn(E) -> ProxierError {
    move |error| ProxierError::backend(Mode::USERSPACE, message, error)
}

/// A way for traffic to reach the proxy.
#[async_trait]
pub(crate) trait Capture: Send {
    /// Adds what the capture mode can do and needs to know to the properties of the proxy.
    fn profile(&self, of_proxy: Profile) -> Profile {
        of_proxy
    }

    /// Prepares the node as the backend does whose rules redirect traffic.
    fn prepare(&mut self, _node: &NodeConfig) -> Result<(), ProxierError> {
        Ok(())
    }

    /// Makes the traffic of the state's frontends reach listeners of the forwarder, which knows the
    /// Service ports already.
    ///
    /// # Errors
    /// If the system refuses. The next call covers the same changes.
    async fn sync(
        &mut self,
        change: &Transition<'_>,
        forwarder: &Forwarder,
    ) -> Result<SyncReport, ProxierError>;

    /// Compares what the system holds of a Service of `state` with what was synced, and changes
    /// nothing; `None` if the capture mode does not compare.
    ///
    /// # Errors
    /// If the system does not show what it holds.
    fn compare(
        &mut self,
        _state: &State,
        _service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        Ok(None)
    }

    /// Removes everything but sockets, which end with the program.
    ///
    /// # Errors
    /// If something is left.
    async fn clean_up(&mut self) -> Result<(), ProxierError>;

    /// Returns a function that has new traffic wait for another program, as far as possible, since
    /// the listeners are about to be closed. The end of a full sync ends that, but not of this
    /// capture mode.
    fn pause(&self) -> Box<dyn FnOnce() + Send + Sync> {
        Box::new(|| {})
    }

    /// Whether traffic waits after a [pause](Self::pause) began.
    fn pauses(&self) -> bool {
        false
    }

    /// Opens a monitor of what the capture mode programs, if it programs anything.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        None
    }
}
