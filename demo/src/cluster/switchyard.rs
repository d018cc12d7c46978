//! The proxy's process.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use packet_rig::{NetNs, Objects, Proxy, ProxyOptions, RigError};

use crate::{
    error::{DemoError, Result},
    manifests::Manifests,
    stop::Stop,
};

/// The longest time until the proxy is ready.
const READY: Duration = Duration::from_secs(10);

/// The metric that has a value for each family once something has been programmed.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// A running `switchyard`. Dropping the value ends the process; if the demo is killed, the kernel ends
/// the process.
pub struct Switchyard {
    proxy: Proxy,
}

impl Switchyard {
    /// Starts the proxy on a node, and returns the time until it was ready.
    pub fn start(
        node: &NetNs,
        binary: PathBuf,
        manifests: &Manifests,
        stop: &Stop,
    ) -> Result<(Self, Duration)> {
        let mut options =
            ProxyOptions::new(binary, "nftables", manifests.directory(), manifests.log());
        if let Some(kubeconfig) = manifests.kubeconfig() {
            options.objects = Objects::Server(kubeconfig);
        }
        let started = Instant::now();
        let mut switchyard = Self { proxy: Proxy::start(node, options)? };
        switchyard.wait_ready(stop)?;
        Ok((switchyard, started.elapsed()))
    }

    /// Starts the proxy again after [`Self::kill`], and returns the time until it was ready.
    pub fn start_again(&mut self, stop: &Stop) -> Result<Duration> {
        let started = Instant::now();
        self.proxy.start_again()?;
        self.wait_ready(stop)?;
        Ok(started.elapsed())
    }

    /// Ends the process with `SIGKILL`.
    pub fn kill(&mut self) {
        self.proxy.kill();
    }

    /// The number of the process, or 0.
    pub fn pid(&self) -> u32 {
        self.proxy.pid().unwrap_or_default()
    }

    /// Reads the proxy's `/metrics`.
    pub fn metrics(&self) -> Result<String> {
        self.proxy.metrics().map_err(|source| self.failed(source))
    }

    /// Waits until the proxy has programmed both families.
    fn wait_ready(&mut self, stop: &Stop) -> Result<()> {
        let started = Instant::now();
        loop {
            let times = self.proxy.metric(LAST_SYNC);
            if times.is_ok_and(|times| !times.is_empty() && times.iter().all(|time| *time > 0.0)) {
                return Ok(());
            }
            if let Some(status) = self.proxy.ended() {
                stop.check()?;
                return Err(self.failed(RigError::ProxyEnded { status }));
            }
            if started.elapsed() > READY {
                let last = format!("its metric {LAST_SYNC} is not set");
                return Err(self.failed(RigError::ProxyNotReady { waited: READY, last }));
            }
            stop.sleep(Duration::from_millis(2))?;
        }
    }

    fn failed(&self, source: RigError) -> DemoError {
        let log = self.proxy.log();
        DemoError::proxy(source, &log)
    }
}
