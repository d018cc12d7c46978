//! Facts about a node and its Services.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::{
    model::{IpFamily, PerFamily, Protocol, ServiceName, ServicePortId},
    proxier::Mode,
    state::{FrontendAddress, HealthCheck, NodeState, ResolvedServicePort},
};

/// Facts for [`explain`](super::explain()).
pub trait Known {
    /// The node.
    fn node(&self) -> KnownNode;
    /// A Service with the ports that are asked for; `None` if there is none of that name that this
    /// proxy serves.
    fn service(
        &self,
        name: &ServiceName,
        is_asked: &dyn Fn(&ServicePortId) -> bool,
    ) -> Option<KnownService>;
    /// The Service port that has an address and port; without an address, a node port.
    fn owner(
        &self,
        ip: Option<IpAddr>,
        family: IpFamily,
        protocol: Protocol,
        port: u16,
    ) -> Option<ServicePortId>;
    /// A Service that has an address, on whatever port. Takes time in proportion to the Services.
    fn having(&self, ip: IpAddr) -> Option<(ServiceName, FrontendAddress)>;
    /// The names of all Services.
    fn names(&self) -> Box<dyn Iterator<Item = &ServiceName> + '_>;
}

/// A node, as far as it decides about Services.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct KnownNode {
    /// The node's name.
    pub name: String,
    /// The mode of the backend; `None` if no backend is chosen.
    pub mode: Option<String>,
    /// In userspace mode, the mode whose rules lead traffic to the proxy; `None` if addresses of
    /// Services are the node's.
    pub rules_of: Option<String>,
    /// The object that the first sync waits for; `None` if nothing is missing.
    pub waits_for: Option<String>,
    /// The addresses of the node's interfaces, or those of its Node if these are not known.
    pub addresses: Vec<IpAddr>,
    /// The reason why a whole family is left out.
    pub refused: PerFamily<Option<String>>,
    /// The settings that are programmed.
    pub settings: NodeState,
}

impl KnownNode {
    /// Whether a proxy in user space ends connections.
    pub(super) fn is_relayed(&self) -> bool {
        self.mode.as_deref() == Some(Mode::USERSPACE.as_str())
    }

    /// Whether a proxy in user space gets its traffic without rules.
    pub(super) fn lacks_rules(&self) -> bool {
        self.is_relayed() && self.rules_of.is_none()
    }

    /// Whether addresses of Services are the node's.
    pub(super) fn has_service_addresses(&self) -> bool {
        self.mode.as_deref() == Some(Mode::IPVS.as_str()) || self.lacks_rules()
    }

    /// Whether rules deal with addresses that no Service port has, which those of iptables mode do
    /// not know.
    pub(super) fn is_guarded(&self) -> bool {
        let rules_of = self.rules_of.as_ref().or(self.mode.as_ref());
        !self.lacks_rules() && rules_of.is_none_or(|mode| mode != Mode::IPTABLES.as_str())
    }
}

/// A Service with its ports, as it was resolved, and with what was left out.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct KnownService {
    /// The name.
    pub name: ServiceName,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`
    pub external_local: bool,
    /// The health check for load balancers.
    pub health_check: Option<HealthCheck>,
    /// The problems with fields of the Service, and with what it asks of the backend.
    pub problems: Vec<String>,
    /// The ports, each once for each family of the Service.
    pub ports: Vec<KnownPort>,
}

/// A port of a Service in one family.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct KnownPort {
    /// The id.
    pub id: ServicePortId,
    /// The port as it is resolved; `None` if other Services have all its addresses, or it is not
    /// resolved yet.
    pub resolved: Option<Arc<ResolvedServicePort>>,
    /// The reason why the port is left out, if the node refuses it.
    pub refused: Option<String>,
    /// The endpoints of the port, sorted by address.
    pub endpoints: Vec<KnownEndpoint>,
    /// The number of endpoints if they are not listed, as ports before this one have too many.
    #[cfg_attr(feature = "serde", serde(default))]
    pub unlisted: usize,
    /// Addresses and ports that belong to other Services.
    pub lost: Vec<LostFrontend>,
}

/// An endpoint of a Service port, in a pool or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct KnownEndpoint {
    /// The address, with port 0 if its slice lacks the port.
    pub address: SocketAddr,
    /// The node of the endpoint.
    pub node: Whereabouts,
    /// Whether the endpoint gets connections, or why it does not.
    pub state: EndpointState,
}

/// The node that an endpoint runs on. The name of another node is not kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Whereabouts {
    /// This node.
    Here,
    /// Another node.
    Elsewhere,
    /// The slice names no node.
    Unknown,
}

/// Whether an endpoint gets new connections on this node, or why it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum EndpointState {
    /// In a pool, and ready.
    Ready,
    /// In a pool though it terminates, since no endpoint is ready.
    LastResort,
    /// Not ready.
    NotReady,
    /// It terminates, and does not serve.
    Terminating,
    /// It terminates and still serves, and others are ready.
    Draining,
    /// Its weight is 0.
    ZeroWeight,
    /// The hints of the endpoints lead this node's traffic to endpoints on this node.
    HintsOtherNode,
    /// The hints of the endpoints lead this node's traffic to endpoints for its zone.
    HintsOtherZone,
    /// It runs on another node, or on an unknown one, and the policy is `Local`.
    NotLocal,
    /// Its Service has more endpoints, times ports and addresses, than are programmed.
    BeyondLimit,
    /// No frontend of the port is left to lead to it.
    NoFrontend,
    /// Its slice lacks a port of this name and protocol.
    NoSuchPort,
    /// The Service has no address in its family.
    OtherFamily,
}

impl EndpointState {
    /// Whether the endpoint gets new connections.
    pub fn is_used(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

/// An address and port of a Service that another Service has.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct LostFrontend {
    /// The address.
    pub at: FrontendAddress,
    /// The port.
    pub port: u16,
    /// The Service port that has it.
    pub to: ServicePortId,
}

/// Everything that was known at a time.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Picture {
    /// The node.
    pub node: KnownNode,
    /// The Services, in any order.
    pub services: Vec<KnownService>,
}

impl Known for Picture {
    fn node(&self) -> KnownNode {
        self.node.clone()
    }

    fn service(
        &self,
        name: &ServiceName,
        is_asked: &dyn Fn(&ServicePortId) -> bool,
    ) -> Option<KnownService> {
        let service = self.services.iter().find(|service| service.name == *name)?;
        let ports = service.ports.iter().filter(|port| is_asked(&port.id)).cloned().collect();
        let (name, problems) = (service.name.clone(), service.problems.clone());
        Some(KnownService { name, problems, ports, ..*service })
    }

    fn owner(
        &self,
        ip: Option<IpAddr>,
        family: IpFamily,
        protocol: Protocol,
        number: u16,
    ) -> Option<ServicePortId> {
        let resolved = self.resolved().find(|port| {
            (port.id.family, port.id.name.protocol) == (family, protocol)
                && port.frontends.iter().any(|f| (f.at.ip(), f.port) == (ip, number))
        });
        resolved.map(|port| port.id.clone())
    }

    fn having(&self, ip: IpAddr) -> Option<(ServiceName, FrontendAddress)> {
        let found = self.resolved().flat_map(|port| {
            let at = port.frontends.iter().map(|frontend| frontend.at);
            at.map(|at| (port.id.name.service.clone(), at))
        });
        found.filter(|(_, at)| at.ip() == Some(ip)).min_by_key(|(_, at)| *at)
    }

    fn names(&self) -> Box<dyn Iterator<Item = &ServiceName> + '_> {
        Box::new(self.services.iter().map(|service| &service.name))
    }
}

impl Picture {
    fn resolved(&self) -> impl Iterator<Item = &Arc<ResolvedServicePort>> {
        let ports = self.services.iter().flat_map(|service| &service.ports);
        ports.filter_map(|port| port.resolved.as_ref())
    }
}
