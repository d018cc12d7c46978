//! The proxy under test: starting, watching, killing and restarting it in a node's namespace.

use std::{
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    address::CLUSTER_CIDR,
    backend,
    error::{Result, RigError, chain},
    expect::Seen,
    http,
    netns::NetNs,
    spawn,
    subject::CommandLine,
    wait::{PERIOD, scaled},
};

/// The address of the health server, inside the proxy's namespace.
pub const HEALTHZ: &str = "127.0.0.1:10256";
/// The address of the metrics server, inside the proxy's namespace.
pub const METRICS: &str = "127.0.0.1:10249";

/// The lines of its log that the failure of a proxy to become ready names.
const LAST_LINES: usize = 30;

/// The time of a proxy to program what is there at its start, if it cannot be asked whether it has.
const UNASKED: Duration = Duration::from_secs(3);

/// The metric that has a value for each family once something has been programmed.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

/// The place that a proxy has the objects of the cluster from.
#[derive(Clone, Debug)]
pub enum Objects {
    /// The directory of manifests that the proxy follows.
    Manifests(PathBuf),
    /// The kubeconfig of the API server.
    Server(PathBuf),
}

impl Objects {
    /// The directory, or the file of the API server.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Manifests(path) | Self::Server(path) => path,
        }
    }
}

/// The options with which a proxy is started.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    pub binary: PathBuf,
    /// The command line, if it is not Switchyard's.
    pub command: Option<CommandLine>,
    pub objects: Objects,
    /// `nftables`, `iptables`, ...
    pub backend: String,
    /// The cluster CIDRs, comma-separated; `None` omits the flag.
    pub cluster_cidr: Option<String>,
    /// The file of a KubeProxyConfiguration, which replaces the flags that have a field in it.
    pub config: Option<PathBuf>,
    pub args: Vec<String>,
    /// The file to which standard error is appended.
    pub log: PathBuf,
}

impl ProxyOptions {
    /// The usual options: node `node-1`, the cluster CIDRs of the address plan, no file.
    pub fn new(binary: PathBuf, backend: &str, manifests: PathBuf, log: PathBuf) -> Self {
        Self {
            binary,
            command: None,
            objects: Objects::Manifests(manifests),
            backend: backend.to_owned(),
            cluster_cidr: Some(CLUSTER_CIDR.to_owned()),
            config: None,
            args: Vec::new(),
            log,
        }
    }

    /// The command line without the program.
    pub fn arguments(&self) -> Vec<String> {
        if let Some(command) = &self.command {
            return command.arguments(self);
        }
        let name = match &self.objects {
            Objects::Manifests(_) => "--manifests",
            Objects::Server(_) => "--kubeconfig",
        };
        let mut arguments =
            vec![name.to_owned(), self.objects.path().to_string_lossy().into_owned()];
        arguments.extend(self.flags());
        arguments
    }

    /// The flags besides those that name the place of the objects.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut flag = |name: &str, value: &str| {
            arguments.extend([format!("--{name}"), value.to_owned()]);
        };
        flag("hostname-override", "node-1");
        match &self.config {
            Some(config) => flag("config", &config.to_string_lossy()),
            None => {
                flag("proxy-mode", &self.backend);
                flag("healthz-bind-address", HEALTHZ);
                flag("metrics-bind-address", METRICS);
                if let Some(cidr) = &self.cluster_cidr {
                    flag("cluster-cidr", cidr);
                }
            }
        }
        arguments.extend(self.args.iter().cloned());
        arguments
    }

    /// A KubeProxyConfiguration with the values that the flags would have, followed by `more`
    /// fields.
    pub fn configuration(&self, more: &str) -> String {
        let cidr = self.cluster_cidr.as_deref().unwrap_or_default();
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
             kind: KubeProxyConfiguration\n\
             mode: {}\n\
             clusterCIDR: \"{cidr}\"\n\
             healthzBindAddress: {HEALTHZ}\n\
             metricsBindAddress: {METRICS}\n\
             {more}",
            self.backend
        )
    }
}

/// A proxy, running or not. Dropping the value ends the process.
#[derive(Debug)]
pub struct Proxy {
    options: ProxyOptions,
    namespace: NetNs,
    child: Option<Child>,
}

impl Proxy {
    pub fn start(namespace: &NetNs, options: ProxyOptions) -> Result<Self> {
        let mut proxy = Self::prepare(namespace, options);
        proxy.start_again()?;
        Ok(proxy)
    }

    /// A proxy for `namespace` that has not been started yet.
    pub fn prepare(namespace: &NetNs, options: ProxyOptions) -> Self {
        Self { options, namespace: namespace.clone(), child: None }
    }

    /// The value of `--proxy-mode`.
    pub fn mode(&self) -> &str {
        &self.options.backend
    }

    /// The clients that servers see.
    pub(crate) fn seen(&self) -> Seen {
        backend::seen(self.mode(), &self.options.args)
    }

    /// Starts the proxy (again) with its options, ending the old process first.
    pub fn start_again(&mut self) -> Result<()> {
        self.stop();
        let ProxyOptions { binary, log, .. } = &self.options;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(RigError::io(format!("open {}", log.display())))?;
        let mut command = self.command(&self.options.arguments());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child =
            spawn::spawn(command).map_err(RigError::io(format!("run {}", binary.display())))?;
        self.child = Some(child);
        Ok(())
    }

    /// The program with other arguments, in the same namespace.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = self.namespace.command(&self.options.binary);
        command.args(arguments);
        command
    }

    /// Ends the process with `SIGTERM`, or with `SIGKILL` two seconds later. Returns the exit
    /// status, or `None` if no process was running.
    pub fn stop(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        terminate(&child);
        let deadline = Instant::now() + scaled(Duration::from_secs(2));
        while Instant::now() < deadline {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        child.wait().ok()
    }

    /// Ends the process with `SIGKILL`, and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The number of the process, if it was started and not ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn options(&self) -> &ProxyOptions {
        &self.options
    }

    /// The options; a change counts from the next start on.
    pub fn options_mut(&mut self) -> &mut ProxyOptions {
        &mut self.options
    }

    /// The exit status, if the process has ended by itself.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.try_wait().ok()?
    }

    /// Waits until the proxy has programmed every family that its metrics name. A proxy that may
    /// have other metrics has some seconds: before it programs anything, each probe fails, as some
    /// should.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        if self.options.command.as_ref().is_some_and(|command| !command.takes_flags()) {
            thread::sleep(scaled(UNASKED));
            return Ok(());
        }
        let started = Instant::now();
        loop {
            let seen = self.metrics();
            if seen.as_ref().is_ok_and(|text| has_synced(text)) {
                return Ok(());
            }
            if let Some(status) = self.ended() {
                return Err(RigError::Proxy(format!("ended ({status})")));
            }
            let waited = started.elapsed();
            if waited > timeout {
                let last = match seen {
                    Ok(_) => format!("{LAST_SYNC} is not set"),
                    Err(error) => chain(&error),
                };
                let log = self.log();
                let end: Vec<&str> = log.lines().rev().take(LAST_LINES).collect();
                return Err(RigError::Proxy(format!(
                    "was not ready after {waited:?}: {last}; its log, the last line first:\n{}",
                    end.join("\n")
                )));
            }
            // Each look costs the proxy time, which an emulated machine has little of.
            thread::sleep(scaled(PERIOD));
        }
    }

    pub fn metrics(&self) -> Result<String> {
        let address = METRICS
            .parse()
            .map_err(|_| RigError::Setup(format!("{METRICS} is no address and port")))?;
        http::get(&self.namespace, address, "/metrics").map(|answer| answer.body)
    }

    /// The values of every series of a metric.
    pub fn metric(&self, name: &str) -> Result<Vec<f64>> {
        Ok(http::metric_values(&self.metrics()?, name))
    }

    /// The proxy's standard error so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.options.log).unwrap_or_default()
    }

    /// The proxy's log, and the rules and virtual servers in the kernel, for people.
    pub fn diagnostics(&self) -> String {
        let mut text = format!("--- proxy, standard error\n{}", self.log());
        let mut dumps: Vec<(&str, &[&str])> = vec![("nft", &["list", "ruleset"])];
        if self.options.backend != "nftables" {
            dumps.extend([("iptables-save", &[] as &[&str]), ("ip6tables-save", &[])]);
        }
        if self.options.backend == "ipvs" {
            dumps.extend([
                ("cat", &["/proc/net/ip_vs"] as &[&str]),
                ("cat", &["/proc/net/ip_vs_conn"]),
                ("ip", &["address"]),
                ("ipset", &["list"]),
            ]);
        }
        for (program, arguments) in dumps {
            let dump = self.namespace.output(program, arguments, "");
            text += &format!(
                "--- {program} {}\n{}",
                arguments.join(" "),
                dump.unwrap_or_else(|error| chain(&error))
            );
        }
        text
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether every family has been programmed, according to the metrics.
fn has_synced(metrics: &str) -> bool {
    let times = http::metric_values(metrics, LAST_SYNC);
    !times.is_empty() && times.iter().all(|time| *time > 0.0)
}

/// Sends `SIGTERM` to a child that has not been waited for.
fn terminate(child: &Child) {
    let Ok(pid) = libc::pid_t::try_from(child.id()) else { return };
    // SAFETY: a system call without memory effects; an unreaped child's number is not reused.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}
