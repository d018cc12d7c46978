//! Explanations: the verdict, a sentence, and the lines beneath.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use ipnet::IpNet;

use super::{
    client::{Client, Route, RouteEnd},
    facts::{EndpointState, KnownNode, Whereabouts},
    others::ClosedChain,
    question::Question,
};
use crate::{
    model::{Code, IpFamily, LbAlgorithm, Protocol},
    state::{FrontendAddress, HealthCheck, PoolKind},
};

/// The fate of the traffic that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Verdict {
    /// Served.
    Serves,
    /// Refused at once.
    Refuses,
    /// Dropped without an answer.
    Drops,
    /// There is no such Service, or the proxy leaves the traffic alone.
    Unknown,
    /// Served, but something is wrong.
    Impaired,
    /// The kernel does otherwise than was resolved.
    Differs,
}

impl Verdict {
    /// The exit status of a program that prints the verdict.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Serves => 0,
            Self::Refuses => 1,
            Self::Drops => 2,
            Self::Differs => 3,
            Self::Unknown => 4,
            Self::Impaired => 5,
        }
    }
}

/// Whether the kernel's rules were read, and do what was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
#[non_exhaustive]
pub enum KernelCheck {
    /// The kernel was not asked.
    NotAsked,
    /// The kernel does the same.
    #[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
    Same {
        /// The number of classes of packets that were compared.
        classes: usize,
    },
    /// The kernel does otherwise.
    #[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
    Differs {
        /// The number of classes of packets that were compared.
        classes: usize,
        /// The number of those that differ.
        different: usize,
    },
    /// The kernel holds what was programmed for the Service, by the backend's own comparison.
    AsProgrammed,
    /// It does not.
    #[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
    Altered {
        /// The number of objects (chains, rules, addresses ...) that are missing, altered or too
        /// many.
        objects: usize,
    },
    /// Some of the kernel's rules were not understood, or take too long to evaluate; nothing else
    /// differs.
    #[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
    NotUnderstood {
        /// The number of classes of packets that were compared.
        classes: usize,
        /// The number of those that are not understood.
        unknown: usize,
    },
}

/// An answer, which prints as text.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Explanation {
    /// The question.
    pub question: String,
    /// The name of the node.
    pub node: String,
    /// The mode of the proxy; `None` if none is chosen.
    pub mode: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict and its reason.
    pub sentence: String,
    /// Whether the kernel does the same.
    pub kernel: KernelCheck,
    /// The first of the kernel's rules that were not understood, with the packets; `None` if all
    /// that were read are.
    pub not_understood: Option<String>,
    /// The Service, as `NAMESPACE/NAME`; `None` if there is none.
    pub service: Option<String>,
    /// The health check for load balancers.
    pub health_check: Option<HealthCheck>,
    /// The kind of the client, if the question names one.
    pub client: Option<Client>,
    /// The route of this client, if a frontend has the address.
    pub route: Option<Route>,
    /// The frontends.
    pub frontends: Vec<FrontendLine>,
    /// The endpoints, used or left out.
    pub endpoints: Vec<EndpointLine>,
    /// The number of endpoints of ports whose endpoints are not among these, as the ports before
    /// these ports have too many.
    pub unlisted_endpoints: usize,
    /// The reason why a running proxy has not counted the flows of the endpoints; `None` if it has, or
    /// there is nothing to count.
    pub flows_not_counted: Option<String>,
    /// The chains of other programs that drop connections of the question; `None` if these were not
    /// read.
    pub other_tables: Option<Vec<ClosedChain>>,
    /// Tables that may drop these connections as well, and whose rules cannot be read:
    /// `iptables-legacy filter`.
    pub unread_tables: Vec<String>,
    /// Chains that may drop these connections, with the subjects of the conditions that were not
    /// decided: `marks of table ip filter, chain FORWARD`.
    pub undecided_chains: Vec<String>,
    /// The time since the Service itself was last changed, not its endpoints, in seconds; `None` if
    /// it is not known.
    pub service_seconds: Option<u64>,
    /// The last change of the Service; `None` if it is not known.
    pub last_change: Option<LastChange>,
    /// Reasons and remedies, those that make the verdict first.
    pub findings: Vec<Finding>,
}

/// An address and port where traffic arrives.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct FrontendLine {
    /// The name of the port in its Service; empty if it has none.
    pub port_name: Arc<str>,
    /// The family.
    pub family: IpFamily,
    /// The address, with its kind.
    pub at: FrontendAddress,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The sources that are not dropped; `None` for all.
    pub allowed_sources: Option<Arc<[IpNet]>>,
    /// The handling of each kind of client; empty if the node refuses the port.
    pub routes: Vec<Route>,
    /// The way that connections are shared out.
    pub lb_algorithm: LbAlgorithm,
    /// For how long a client goes back to the same endpoint, in seconds.
    pub affinity_seconds: Option<u64>,
}

/// An endpoint, used or left out.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct EndpointLine {
    /// The name of the Service's port; empty if it has none.
    pub port_name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The address; the port is 0 if the endpoint lacks the port.
    pub address: SocketAddr,
    /// The name of the pod; `None` if it is not known.
    pub pod: Option<String>,
    /// Whether the endpoint runs on this node.
    pub node: Whereabouts,
    /// The name of the node; `None` if it is not known.
    pub node_name: Option<String>,
    /// The zone; `None` if it is not known.
    pub zone: Option<String>,
    /// The share of new connections by the policy `Cluster`, from 0 to 1; `None` if the endpoint
    /// gets none, or the algorithm has no shares.
    pub share: Option<f64>,
    /// The same by the policy `Local`.
    pub local_share: Option<f64>,
    /// Whether the endpoint gets new connections, or why it does not.
    pub state: EndpointState,
    /// The code of the reason.
    pub code: Option<Code>,
    /// The time since a sync of a running proxy began or ended to lead new connections to it, in
    /// seconds; `None` if none is remembered.
    pub state_seconds: Option<u64>,
    /// The name of its EndpointSlice; `None` if it is not known.
    pub slice: Option<Arc<str>>,
    /// The time since the last change of pods that the slice reflects, in seconds; `None` if it is
    /// not known.
    pub slice_seconds: Option<u64>,
    /// The flows that connection tracking has; `None` if they were not counted.
    pub flows: Option<u64>,
    /// The flows among these whose data is not acknowledged; `None` if they were not recognized.
    pub stuck_flows: Option<u64>,
}

impl EndpointLine {
    pub(super) fn share_of(&self, pool: PoolKind) -> Option<f64> {
        match pool {
            PoolKind::Cluster => self.share,
            PoolKind::Local => self.local_share,
        }
    }
}

/// A change of a Service that is in the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct LastChange {
    /// The time of the end of its sync, RFC 3339.
    pub at: String,
    /// The time from the arrival of the sync's oldest change to the kernel, in milliseconds; `None`
    /// if the sync had none.
    pub latency_milliseconds: Option<f64>,
    /// The time from the oldest change of pods in the sync to the kernel, in milliseconds, by what
    /// the EndpointSlices say; `None` if no slice of the Service changed.
    pub trigger_milliseconds: Option<f64>,
    /// Endpoints that were added, not more than a few.
    pub added: Vec<SocketAddr>,
    /// Endpoints that were removed, not more than a few.
    pub removed: Vec<SocketAddr>,
}

/// A reason, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Finding {
    /// The code, whose page is in `docs/codes`.
    pub code: Code,
    /// Whether something is wrong; if not, it is as the objects ask.
    pub is_problem: bool,
    /// The finding and its reason.
    pub because: String,
    /// The remedy.
    pub remedy: Cow<'static, str>,
}

impl Explanation {
    pub(super) fn new(
        question: &Question,
        node: &KnownNode,
        verdict: Verdict,
        sentence: String,
    ) -> Self {
        Self {
            question: question.to_string(),
            node: node.name.clone(),
            mode: node.mode.clone(),
            verdict,
            sentence,
            kernel: KernelCheck::NotAsked,
            not_understood: None,
            service: None,
            health_check: None,
            client: None,
            route: None,
            frontends: Vec::new(),
            endpoints: Vec::new(),
            unlisted_endpoints: 0,
            flows_not_counted: None,
            other_tables: None,
            unread_tables: Vec::new(),
            undecided_chains: Vec::new(),
            service_seconds: None,
            last_change: None,
            findings: Vec::new(),
        }
    }

    /// The endpoints that the client of the question may reach.
    pub fn reached(&self) -> impl Iterator<Item = &EndpointLine> {
        let pool = match self.route.map(|route| route.to) {
            Some(RouteEnd::Pool(pool)) => Some(pool),
            _ => None,
        };
        let is_in = move |line: &&EndpointLine| pool.is_some_and(|p| line.share_of(p).is_some());
        self.endpoints.iter().filter(is_in)
    }
}
