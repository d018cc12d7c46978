//! Cases as data: the objects of the cluster, the requests to make, and the expected outcomes.
//!
//! A file of cases is a YAML list of [`Case`]s; see `cases/*.yaml`. The rest is the same in all
//! cases: the [`Topology`], the address plan
//! ([`crate::address`]), a server on port 8080 (TCP and UDP) in every pod, and the Node `node-1`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use serde::Deserialize;

use crate::{
    backend::{self, BACKENDS, REFERENCES},
    capability,
    error::{Result, RigError},
    expect::Seen,
    kube_proxy::Release,
    protocol::{Protocol, Target},
    shares::SharePlan,
    topology::{Layout, Topology},
    wait::scaled,
};

/// The file that `manifests` is written to.
pub const MANIFESTS: &str = "manifests.yaml";

/// The file that the Node is written to; a case may replace it.
pub const NODE_FILE: &str = "node.yaml";

/// The Node that the proxy runs on, unless the case replaces it.
pub const NODE_MANIFEST: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.1.0/24, \"fd00:10:244:1::/64\"]}
status:
  addresses:
  - {type: InternalIP, address: 192.168.10.1}
  - {type: InternalIP, address: \"fd00:192:168:10::1\"}
";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Case {
    /// A short name, unique in its file.
    pub name: String,
    /// The behaviour that the case shows, in a sentence.
    pub title: String,
    /// The backends that cannot satisfy the case, with the reasons.
    pub not: BTreeMap<String, String>,
    /// The modes of genuine kube-proxy (`nftables`, `iptables`) that behave otherwise, with the
    /// difference, which begins with "Sometimes" if it is one of timing.
    pub kube_proxy: BTreeMap<String, String>,
    /// The same of [`Release::V1_30`], as far as it is another; null where that release behaves as
    /// the case expects.
    #[serde(rename = "kube-proxy-1.30")]
    pub kube_proxy_1_30: BTreeMap<String, Option<String>>,
    /// The capabilities that the machine needs to run the case.
    pub needs: Vec<Need>,
    /// The way that the pods of `node-1` are connected to their node.
    pub layout: Layout,
    /// Whether the proxy gets the flag `--cluster-cidr`.
    #[serde(default = "yes")]
    pub cluster_cidr: bool,
    /// More arguments of the proxy.
    pub args: Vec<String>,
    /// More fields of the KubeProxyConfiguration, which is then used instead of flags.
    pub config: Option<String>,
    /// Servers besides those on port 8080 of every pod.
    pub servers: Vec<ServerPlan>,
    /// The objects of the cluster at first, as documents of one YAML file.
    pub manifests: String,
    /// More files of manifests.
    pub files: BTreeMap<String, String>,
    /// The requests at first, with their expected outcomes.
    pub probes: Vec<ProbePlan>,
    /// The shares of connections at first.
    pub shares: Vec<SharePlan>,
    /// The health checks at first, with their expected answers.
    pub http: Vec<HttpPlan>,
    /// Connections that are opened after the first probes, and kept.
    pub open: Vec<OpenPlan>,
    /// The changes that follow, one after the other.
    pub steps: Vec<Step>,
}

/// Something a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    Sctp,
}

/// Servers to be started.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ServerPlan {
    pub at: Vec<String>,
    pub port: u16,
    /// The suffix of the servers' names; each begins with the name of its place.
    #[serde(default)]
    pub suffix: String,
    #[serde(default = "both_protocols")]
    pub protocols: Vec<Protocol>,
}

/// A change, and the expected outcomes after it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Step {
    /// The change in a few words.
    pub title: String,
    /// The new content of the first file.
    pub manifests: Option<String>,
    /// New contents of files by their names; null removes the file.
    pub files: BTreeMap<String, Option<String>>,
    /// Lines of `ip` commands (without the word) that are run on `node-1` before the files change.
    pub node_ip: String,
    /// Rules in nft's language that are loaded on `node-1` before the files change.
    pub node_nft: String,
    /// Whether the kernel of `node-1` forgets all flows before the files change.
    pub forget_flows: bool,
    /// Actions on the proxy, in this order, after the files were changed.
    pub proxy: Vec<ProxyAction>,
    /// The time to wait before the probes, in milliseconds, [`scaled`]. Only needed where something
    /// must *not* happen: probes are repeated until they show what is expected.
    pub wait: u64,
    /// The time to wait for a timer of the kernel, in milliseconds, which is not scaled.
    pub timer: u64,
    /// The requests after the change, with their expected outcomes.
    pub probes: Vec<ProbePlan>,
    /// The shares of connections after the change.
    pub shares: Vec<SharePlan>,
    /// The health checks after the change, with their expected answers.
    pub http: Vec<HttpPlan>,
    /// Requests over connections that were opened before, with their expected outcomes.
    pub still: Vec<StillPlan>,
    /// Connections that are opened after these requests, and kept.
    pub open: Vec<OpenPlan>,
}

impl Step {
    /// The time to wait before the probes.
    pub fn pause(&self) -> Duration {
        scaled(Duration::from_millis(self.wait)) + Duration::from_millis(self.timer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyAction {
    /// Send `SIGTERM`.
    Stop,
    /// Send `SIGKILL`.
    Kill,
    /// Start the proxy, and wait until it has programmed something.
    Start,
}

/// Requests from every place of a list to every target of another, with the expected outcome.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProbePlan {
    #[serde(deserialize_with = "one_or_many")]
    pub from: Vec<String>,
    #[serde(deserialize_with = "one_or_many")]
    pub to: Vec<Target>,
    /// The number of requests from each place (and each of its source addresses) to each target.
    #[serde(default)]
    pub count: Option<usize>,
    /// The number of the place's addresses to that send from; 0 leaves the choice to the kernel.
    #[serde(default)]
    pub sources: usize,
    /// The port to send from; 0 for any.
    #[serde(default)]
    pub source_port: u16,
    /// The number of ports to that send from, beginning with `source_port`. Each is a client of its
    /// own; a client of one port, if 0.
    #[serde(default)]
    pub source_ports: u16,
    pub expect: Expectation,
}

impl ProbePlan {
    /// The usual number of requests from each of the places to each of the targets.
    pub fn new(from: &[&str], to: &[Target], expect: Expectation) -> Self {
        let from = from.iter().map(|&name| name.to_owned()).collect();
        Self {
            from,
            to: to.to_vec(),
            count: None,
            sources: 0,
            source_port: 0,
            source_ports: 0,
            expect,
        }
    }
}

/// A connection (with UDP, a flow from one source port) that is opened and kept.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct OpenPlan {
    /// The name of the connection, by which a [`StillPlan`] refers to it.
    pub name: String,
    pub from: String,
    pub to: Target,
    /// The port to send from; 0 for any.
    #[serde(default)]
    pub source_port: u16,
    /// The server that must answer the first request.
    pub reaches: String,
    /// The source address that the server must see; any, if `None`.
    #[serde(default)]
    pub seen: Option<IpAddr>,
}

/// A request over a connection that is open.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StillPlan {
    pub name: String,
    /// The server that must answer.
    pub reaches: String,
    /// The source address that the server must see; any, if `None`.
    #[serde(default)]
    pub seen: Option<IpAddr>,
}

/// A health check over HTTP.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HttpPlan {
    pub from: String,
    /// The addresses and ports.
    #[serde(deserialize_with = "one_or_many")]
    pub to: Vec<SocketAddr>,
    #[serde(default = "root_path")]
    pub path: String,
    /// The status code; `None` if the address must not be served.
    pub status: Option<u16>,
    /// Lines that the header must have, as they are sent (the case of names does not matter).
    #[serde(default)]
    pub headers: Vec<String>,
    /// The whole body; any, if `None`.
    #[serde(default)]
    pub body: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Expectation {
    /// Every request fails in this way.
    Fails(Failure),
    /// Every request is answered.
    Reaches(Reaches),
}

/// A way in which requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// A reset, or ICMP port unreachable.
    Refused,
    /// No answer in time.
    TimedOut,
    /// Packets leave the node unchanged, and the gateway rejects them.
    Unrouted,
}

/// The servers that answer, and the addresses that they see.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Reaches {
    /// The servers that may answer.
    #[serde(deserialize_with = "one_or_many")]
    pub reaches: Vec<String>,
    /// Whether each of these servers must answer at least once. Ignored where a client is expected
    /// to stay with one endpoint.
    #[serde(default = "yes")]
    pub all: bool,
    /// The source that the server must see: `own` for the place that asks, or the name of a place.
    #[serde(default)]
    pub source: Option<String>,
    /// Whether servers must see the source also if a proxy in user space connects to them, by the
    /// rules of a packet filter.
    #[serde(default)]
    pub kept: bool,
    /// The source that a server at the asking place must see, if that differs.
    #[serde(default)]
    pub hairpin: Option<String>,
    /// Whether each client (place and source address) must get one endpoint, whatever the target.
    #[serde(default)]
    pub same_endpoint: bool,
    /// Whether the clients together must see more than one endpoint.
    #[serde(default)]
    pub clients_differ: bool,
    /// The name under which the endpoint of each client is remembered.
    #[serde(default)]
    pub remember: Option<String>,
    /// Every client must be answered by the endpoint that was remembered under this name.
    #[serde(default)]
    pub same_as: Option<String>,
    /// At least one client must be answered by another endpoint than was remembered under this
    /// name.
    #[serde(default)]
    pub changed_since: Option<String>,
}

impl Reaches {
    /// All of these servers, with any source.
    pub fn all_of(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            reaches: servers.into_iter().map(Into::into).collect(),
            all: true,
            ..Self::default()
        }
    }
}

impl Case {
    /// Whether servers must see clients' own addresses, which a proxy with which they see `seen`
    /// does not keep.
    pub(crate) fn expects_clients(&self, seen: Seen) -> bool {
        let is_lost = |probe: &ProbePlan| match &probe.expect {
            Expectation::Reaches(Reaches { source: Some(source), kept, .. }) => {
                source == "own"
                    && !(*kept && seen == Seen::Kept)
                    && probe.from.iter().any(|place| place != Topology::NODE)
            }
            _ => false,
        };
        let mut probes = self.probes.iter().chain(self.steps.iter().flat_map(|step| &step.probes));
        seen != Seen::Clients && probes.any(is_lost)
    }

    /// Reads the cases of a file, which is named in errors.
    ///
    /// # Errors
    ///
    /// If a case is malformed, or could not fail.
    pub fn parse(file: &str, text: &str) -> Result<Vec<Self>> {
        let bad = |message| RigError::Setup(format!("case {file}: {message}"));
        let cases: Vec<Self> =
            serde_saphyr::from_str(text).map_err(|error| bad(error.to_string()))?;
        let mut names = BTreeSet::new();
        for case in &cases {
            case.check().map_err(|message| bad(format!("{}: {message}", case.name)))?;
            if !names.insert(&case.name) {
                return Err(bad(format!("{} is there twice", case.name)));
            }
        }
        Ok(cases)
    }

    /// The reason for which the case cannot be run on this machine, if any.
    pub fn not_runnable(&self) -> Option<&'static str> {
        self.needs.iter().find_map(|need| match need {
            Need::Sctp if !capability::has_sctp() => Some("no SCTP sockets in this kernel"),
            Need::Sctp => None,
        })
    }

    /// The reason for which a backend cannot satisfy the case, if any. What a mode cannot satisfy,
    /// it cannot by another transport either.
    pub fn not_for(&self, backend: &str) -> Option<&str> {
        let reason = self.not.get(backend).or_else(|| self.not.get(backend::mode(backend)));
        reason.map(String::as_str)
    }

    /// The way in which genuine kube-proxy differs from the case, if the backend is kube-proxy's
    /// and is known to differ.
    pub fn differs(&self, backend: &str, release: Release) -> Option<&str> {
        let mode = backend::is_kube_proxy(backend).then(|| backend::mode(backend))?;
        match (release, self.kube_proxy_1_30.get(mode)) {
            (Release::V1_30, Some(difference)) => difference.as_deref(),
            _ => self.kube_proxy.get(mode).map(String::as_str),
        }
    }

    /// Rejects a case without expectations, which would always pass.
    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.title.is_empty() || self.manifests.is_empty() {
            return Err("the case lacks a name, a title or manifests".to_owned());
        }
        if self.steps.iter().any(|step| step.title.is_empty()) {
            return Err("a step lacks a title".to_owned());
        }
        if self.probes.is_empty() && self.http.is_empty() && self.shares.is_empty() {
            return Err("the case begins without a probe".to_owned());
        }
        let is_idle = |Step { probes, http, shares, still, open, .. }: &Step| {
            let is_empty = probes.is_empty() && http.is_empty() && shares.is_empty();
            is_empty && still.is_empty() && open.is_empty()
        };
        if let Some(step) = self.steps.iter().find(|step| is_idle(step)) {
            return Err(format!("the step {:?} checks nothing", step.title));
        }
        if let Some(name) = self.not.keys().find(|name| !BACKENDS.contains(&name.as_str())) {
            return Err(format!("there is no backend {name}"));
        }
        let modes = REFERENCES.map(backend::mode);
        let mut compared = self.kube_proxy.keys().chain(self.kube_proxy_1_30.keys());
        if let Some(mode) = compared.find(|mode| !modes.contains(&mode.as_str())) {
            return Err(format!("kube-proxy is not compared in mode {mode}"));
        }
        let older = self.kube_proxy_1_30.values().flatten();
        let mut reasons = self.not.values().chain(self.kube_proxy.values()).chain(older);
        if reasons.any(|reason| reason.trim().is_empty()) {
            return Err("a backend is excepted without a reason".to_owned());
        }
        for plan in self.steps.iter().flat_map(|step| &step.probes).chain(&self.probes) {
            let last = plan.source_port.checked_add(plan.source_ports);
            if plan.source_ports > 0 && (plan.source_port == 0 || last.is_none()) {
                return Err("source-ports begin with source-port, and end with 65534".to_owned());
            }
            if plan.from.is_empty() || plan.to.is_empty() || plan.count == Some(0) {
                return Err("a probe makes no request".to_owned());
            }
            if matches!(&plan.expect, Expectation::Reaches(r) if r.reaches.is_empty()) {
                return Err("a probe expects an answer, but names no server".to_owned());
            }
        }
        self.steps
            .iter()
            .flat_map(|step| &step.shares)
            .chain(&self.shares)
            .try_for_each(SharePlan::check)
    }
}

fn yes() -> bool {
    true
}

fn root_path() -> String {
    "/".to_owned()
}

fn both_protocols() -> Vec<Protocol> {
    vec![Protocol::Tcp, Protocol::Udp]
}

/// Reads one value as a list of one.
pub(crate) fn one_or_many<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany<T> {
        Many(Vec<T>),
        One(T),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::Many(many) => many,
        OneOrMany::One(one) => vec![one],
    })
}
