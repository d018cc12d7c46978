//! Genuine kube-proxy instead of the stand-in, where the environment names its program.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use packet_rig::{
    NetNs, Objects, Proxy, ProxyOptions, RigError, WorkDir,
    case::{MANIFESTS, NODE_FILE, NODE_MANIFEST},
    kube_proxy::{self, ManifestServer},
    wait::scaled,
};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{Cluster, Result, programs::program};

/// The time for the first sync.
const READY: Duration = Duration::from_secs(60);

/// The time after a change in which kube-proxy has synced, and after which stale chains may be
/// deleted.
const SETTLED: Duration = Duration::from_millis(1500);

/// The cluster's networks of cluster IPs, which the stand-in knows as well.
const SERVICE_CIDR: &str = "\
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16, \"fd00:10:96::/112\"]}
";

/// Slices that no Service has: a change that makes kube-proxy sync both families, and changes no
/// rule.
const CHANGE: &str = "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: change-ipv4, labels: {kubernetes.io/service-name: change}}
addressType: IPv4
ports: [{port: 1}]
endpoints: [{addresses: [10.244.2.99]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: change-ipv6, labels: {kubernetes.io/service-name: change}}
addressType: IPv6
ports: [{port: 1}]
endpoints: [{addresses: [\"fd00:10:244:2::99\"]}]
";

/// The part of a line of the log that names the source of the syncs. Others advise about Services
/// and the configuration.
const SYNCS: &str = " proxier.go:";

/// kube-proxy's program, on a node whose image has one flavour of iptables.
#[derive(Clone, Debug)]
pub struct Genuine {
    binary: PathBuf,
    flavour: Flavour,
}

impl Genuine {
    /// The program that the environment names, if any.
    pub fn find(flavour: Flavour) -> Result<Option<Self>> {
        Ok(kube_proxy::find()?.map(|binary| Self { binary, flavour }))
    }

    /// Runs kube-proxy in a mode until it has nothing more to do, and ends it. Returns the errors
    /// of its syncs.
    pub fn sync(
        &self,
        node: &NetNs,
        mode: &str,
        cluster: Cluster,
        arguments: &[&str],
    ) -> Result<Vec<String>> {
        let files = WorkDir::new("kube-proxy")?;
        let manifests = files.directory("manifests")?;
        files.replace("manifests", NODE_FILE, NODE_MANIFEST)?;
        files.replace("manifests", MANIFESTS, cluster.manifests())?;
        files.replace("manifests", "service-cidr.yaml", SERVICE_CIDR)?;
        let server = ManifestServer::start(node, &manifests)?;
        let log = files.path().join("log");
        let mut options = ProxyOptions::new(self.binary.clone(), mode, manifests, log);
        options.objects = Objects::Server(server.kubeconfig().to_owned());
        options.args = kube_proxy::ARGUMENTS
            .iter()
            .chain(arguments)
            .map(|&argument| argument.to_owned())
            .collect();
        let mut proxy = Proxy::start(&self.on(node, &files)?, options)?;
        proxy.wait_ready(scaled(READY))?;
        thread::sleep(scaled(SETTLED));
        // The sync after this deletes what the first found stale.
        files.replace("manifests", "change.yaml", CHANGE)?;
        thread::sleep(scaled(SETTLED));
        let is_error = |line: &&str| line.starts_with(['E', 'F']) && line.contains(SYNCS);
        Ok(proxy.log().lines().filter(is_error).map(str::to_owned).collect())
    }

    /// Does the same as [`Self::sync`]; an error of a sync is an error.
    pub fn sync_without_errors(&self, node: &NetNs, mode: &str, cluster: Cluster) -> Result<()> {
        match self.sync(node, mode, cluster, &[])?.as_slice() {
            [] => Ok(()),
            errors => Err(format!("kube-proxy logged: {}", errors.join("\n")).into()),
        }
    }

    /// Runs kube-proxy's own clean-up, of all its modes.
    pub fn clean_up(&self, node: &NetNs) -> Result<()> {
        let files = WorkDir::new("kube-proxy-cleanup")?;
        let mut command: Command = self.on(node, &files)?.command(&self.binary);
        let start = RigError::io(format!("run {}", self.binary.display()));
        let output = command.arg("--cleanup").output().map_err(start)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(RigError::Failed {
                command: format!("{} --cleanup", self.binary.display()),
                status: output.status,
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            })?,
        }
    }

    /// The node, as it is seen from an image whose iptables is of the flavour.
    fn on(&self, node: &NetNs, files: &WorkDir) -> Result<NetNs> {
        let directory = files.directory("bin")?;
        for family in IpFamily::ALL {
            for suffix in ["", "-save", "-restore"] {
                let target = program(self.flavour, family, suffix);
                let plain = target.replace(&format!("-{}", self.flavour), "");
                link_program(&directory, &plain, &target)
                    .map_err(RigError::io(format!("link {target}")))?;
            }
        }
        let mut node = node.clone();
        node.add_programs(&directory);
        Ok(node)
    }
}

/// Makes a program of the machine known by another name.
fn link_program(directory: &Path, name: &str, target: &str) -> io::Result<()> {
    let known = ["/usr/sbin", "/sbin", "/usr/bin"].map(|place| Path::new(place).join(target));
    let found = known.into_iter().find(|path| fs::metadata(path).is_ok());
    symlink(found.ok_or(io::ErrorKind::NotFound)?, directory.join(name))
}
