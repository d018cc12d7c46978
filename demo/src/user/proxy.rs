//! The proxy's process, as the user who started the demo.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use packet_rig::{RigError, Target, spawn};

use super::{LOOPBACK, servers::free_port, table};
use crate::{
    error::{DemoError, Result},
    manifests::Manifests,
    stop::Stop,
};

/// The longest time until the proxy is ready.
const READY: Duration = Duration::from_secs(20);
/// The longest time that a proxy has to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running `switchyard`. Dropping the value ends the process; if the demo is killed, the kernel ends the
/// process.
pub struct Proxy {
    child: Child,
    log: PathBuf,
    table: PathBuf,
}

/// What a proxy uses of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Memory in use (resident set), in KiB.
    pub memory: u64,
}

impl Proxy {
    /// Starts the proxy.
    pub fn start(binary: &Path, manifests: &Manifests) -> Result<Self> {
        let (log, table) = (manifests.log(), manifests.table());
        let port = || free_port().map_err(DemoError::io("find a free port"));
        let errors = File::create(&log).map_err(DemoError::io("write the proxy's log"))?;
        let mut command = spawn::command(binary);
        command
            .args(["--proxy-mode", "userspace", "--userspace-capture", "loopback"])
            .args(["--hostname-override", "node-1"])
            // Each datagram of the demo comes from a new port, as those of resolvers do. A flow that is kept
            // for a minute would be kept for nothing, and a user may have few descriptors.
            .args(["--userspace-udp-timeout", "1s"])
            .arg(format!("--manifests={}", manifests.directory().display()))
            .arg(format!("--userspace-table={}", table.display()))
            .arg(format!("--healthz-bind-address=127.0.0.1:{}", port()?))
            .arg(format!("--metrics-bind-address=127.0.0.1:{}", port()?))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let child = spawn::spawn(command)
            .map_err(|source| RigError::Start { program: binary.display().to_string(), source })?;
        Ok(Self { child, log, table })
    }

    /// Waits until the table has all Services, and returns the addresses to connect to.
    pub fn wait_ready(&mut self, has_v6: bool, stop: &Stop) -> Result<Vec<Vec<Target>>> {
        let started = Instant::now();
        loop {
            let text = fs::read_to_string(&self.table).unwrap_or_default();
            let found = table::read(&text).and_then(|all| table::targets(&all, &LOOPBACK, has_v6));
            if let Some(targets) = found {
                return Ok(targets);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                stop.check()?;
                return Err(self.failed(RigError::ProxyEnded { status }));
            }
            if started.elapsed() > READY {
                let last = format!("its table does not have all Services: {text}");
                return Err(self.failed(RigError::ProxyNotReady { waited: READY, last }));
            }
            stop.sleep(Duration::from_millis(2))?;
        }
    }

    /// The number of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the process uses now; `None` if the kernel does not report it.
    pub fn usage(&self) -> Option<Usage> {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        let descriptors = fs::read_dir(process.join("fd")).ok()?.count();
        let memory = memory(&fs::read_to_string(process.join("status")).ok()?)?;
        Some(Usage { descriptors, memory })
    }

    fn failed(&self, source: RigError) -> DemoError {
        DemoError::proxy(source, &fs::read_to_string(&self.log).unwrap_or_default())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.pid())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The resident set in `/proc/PID/status`.
fn memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status() {
        assert_eq!(memory("Name:\tx\nVmRSS:\t    3320 kB\nRssAnon:\t 1 kB\n"), Some(3320));
        assert_eq!(memory("Name:\tx\n"), None);
    }
}
