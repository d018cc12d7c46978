//! The objects of the cluster: as manifests for the proxy under test, and resolved for the stand-in.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use packet_rig::{Protocol, address};
use switchyard_core::model::IpFamily;

use super::family::node_ip;

/// The port that the servers of all pods listen on.
const SERVER_PORT: u16 = 8080;

/// Services and their endpoints.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The Services.
    pub services: Vec<Service>,
}

/// A Service of the namespace `default`. All of its endpoints are ready.
#[derive(Clone, Debug, Default)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Vec<Port>,
    /// The cluster IPs, one of each family that it has.
    pub cluster_ips: Vec<IpAddr>,
    /// External IPs of both families.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer IPs of both families.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `loadBalancerSourceRanges` of both families.
    pub source_ranges: Vec<String>,
    /// ClientIP affinity, in seconds.
    pub affinity: Option<u32>,
    /// `externalTrafficPolicy: Local`
    pub external_local: bool,
    /// `internalTrafficPolicy: Local`
    pub internal_local: bool,
    /// The pods that serve it, by the names in [`packet_rig::Topology`].
    pub pods: Vec<String>,
}

/// A port of a Service. Pods serve all ports on port 8080.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name; may be empty.
    pub name: String,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port at addresses of the Service.
    pub port: u16,
    /// The port at addresses of nodes; 0 for none.
    pub node_port: u16,
}

impl Cluster {
    /// The Service of that name, to be changed.
    pub fn service_mut(&mut self, name: &str) -> Option<&mut Service> {
        self.services.iter_mut().find(|service| service.name == name)
    }

    /// Everything as documents of one YAML file.
    pub fn manifests(&self) -> String {
        self.services.iter().map(Service::manifests).collect::<Vec<_>>().join("---\n")
    }

    /// kube-proxy's records of the Services for a family.
    pub fn service_ports(&self, family: IpFamily) -> Vec<ServicePort<'_>> {
        self.services.iter().flat_map(|service| service.service_ports(family)).collect()
    }
}

impl Service {
    fn manifests(&self) -> String {
        let kind = match (self.load_balancer_ips.is_empty(), self.ports.iter().any(Port::on_node)) {
            (false, _) => "LoadBalancer",
            (true, true) => "NodePort",
            (true, false) => "ClusterIP",
        };
        let policy = |is_local: bool| if is_local { "Local" } else { "Cluster" };
        let quoted = |texts: &[String]| format!("[{}]", texts.join(", "));
        let list =
            |ips: &[IpAddr]| quoted(&ips.iter().map(|ip| format!("\"{ip}\"")).collect::<Vec<_>>());
        let families: Vec<_> = self
            .cluster_ips
            .iter()
            .map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned())
            .collect();
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|port| {
                format!(
                    "{{name: \"{}\", protocol: {}, port: {}, nodePort: {}}}",
                    port.name,
                    port.protocol.to_string().to_uppercase(),
                    port.port,
                    port.node_port
                )
            })
            .collect();
        let ranges: Vec<_> =
            self.source_ranges.iter().map(|range| format!("\"{range}\"")).collect();
        let ingress: Vec<_> =
            self.load_balancer_ips.iter().map(|ip| format!("{{ip: \"{ip}\"}}")).collect();
        let mut text = format!(
            "apiVersion: v1\n\
             kind: Service\n\
             metadata: {{name: {name}}}\n\
             spec:\n  type: {kind}\n  clusterIP: \"{first}\"\n  clusterIPs: {ips}\n  \
               ipFamilies: {families}\n  externalIPs: {external}\n  \
               loadBalancerSourceRanges: {ranges}\n  internalTrafficPolicy: {internal}\n  \
               ports: {ports}\n",
            name = self.name,
            first = self.cluster_ips.first().map(ToString::to_string).unwrap_or_default(),
            ips = list(&self.cluster_ips),
            families = quoted(&families),
            external = list(&self.external_ips),
            ranges = quoted(&ranges),
            internal = policy(self.internal_local),
            ports = quoted(&ports),
        );
        // Writing to a string cannot fail.
        if self.external_local {
            text += "  externalTrafficPolicy: Local\n";
        }
        if let Some(seconds) = self.affinity {
            let _ = write!(
                text,
                "  sessionAffinity: ClientIP\n  \
                   sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}\n"
            );
        }
        let _ = writeln!(text, "status: {{loadBalancer: {{ingress: {}}}}}", quoted(&ingress));
        for family in &families {
            text += &self.slice(family);
        }
        text
    }

    fn slice(&self, family: &str) -> String {
        let ports: Vec<_> = self
            .ports
            .iter()
            .map(|port| {
                format!(
                    "{{name: \"{}\", protocol: {}, port: {SERVER_PORT}}}",
                    port.name,
                    port.protocol.to_string().to_uppercase()
                )
            })
            .collect();
        let of = if family == "IPv4" { IpFamily::V4 } else { IpFamily::V6 };
        let endpoints: Vec<_> = self
            .endpoints(of)
            .iter()
            .map(|endpoint| {
                format!(
                    "{{addresses: [\"{}\"], nodeName: node-{}}}",
                    endpoint.address.ip(),
                    if endpoint.is_local { 1 } else { 2 }
                )
            })
            .collect();
        format!(
            "---\n\
             apiVersion: discovery.k8s.io/v1\n\
             kind: EndpointSlice\n\
             metadata: {{name: {name}-{lower}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: {family}\n\
             ports: [{ports}]\n\
             endpoints: [{endpoints}]\n",
            name = self.name,
            lower = family.to_lowercase(),
            ports = ports.join(", "),
            endpoints = endpoints.join(", "),
        )
    }

    /// The endpoints in kube-proxy's order: by their printed form.
    fn endpoints(&self, family: IpFamily) -> Vec<Endpoint> {
        let mut endpoints: Vec<Endpoint> = self
            .pods
            .iter()
            .filter_map(|pod| {
                let (node, index) = match pod.as_str() {
                    "a" => (1, 0),
                    "b" => (1, 1),
                    "c" => (2, 0),
                    "d" => (2, 1),
                    _ => return None,
                };
                let addresses = address::pod(node, index);
                let ip: IpAddr = match family {
                    IpFamily::V4 => addresses.v4.into(),
                    IpFamily::V6 => addresses.v6.into(),
                };
                let address = SocketAddr::new(ip, SERVER_PORT);
                Some(Endpoint { address, is_local: node == 1 })
            })
            .collect();
        endpoints.sort_by_key(|endpoint| endpoint.address.to_string());
        endpoints
    }

    fn service_ports(&self, family: IpFamily) -> Vec<ServicePort<'_>> {
        let is_of_family = |ip: &IpAddr| IpFamily::of(ip) == family;
        let Some(cluster_ip) = self.cluster_ips.iter().copied().find(is_of_family) else {
            return Vec::new();
        };
        let of_family =
            |ips: &[IpAddr]| ips.iter().copied().filter(is_of_family).collect::<Vec<_>>();
        let is_range_of_family = |range: &&String| range.contains('.') == (family == IpFamily::V4);
        let resolve = |port| ServicePort {
            service: self,
            port,
            family,
            cluster_ip,
            external_ips: of_family(&self.external_ips),
            load_balancer_ips: of_family(&self.load_balancer_ips),
            source_ranges: self.source_ranges.iter().filter(is_range_of_family).cloned().collect(),
            endpoints: self.endpoints(family),
        };
        self.ports.iter().map(resolve).collect()
    }
}

impl Port {
    fn on_node(&self) -> bool {
        self.node_port != 0
    }
}

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub is_local: bool,
}

/// kube-proxy's record of a port of a Service.
#[derive(Clone, Debug)]
pub struct ServicePort<'a> {
    pub service: &'a Service,
    pub port: &'a Port,
    family: IpFamily,
    pub cluster_ip: IpAddr,
    pub external_ips: Vec<IpAddr>,
    pub load_balancer_ips: Vec<IpAddr>,
    pub source_ranges: Vec<String>,
    /// All endpoints.
    endpoints: Vec<Endpoint>,
}

impl ServicePort<'_> {
    /// `namespace/name:port`
    pub fn name(&self) -> String {
        match self.port.name.as_str() {
            "" => format!("default/{}", self.service.name),
            port => format!("default/{}:{port}", self.service.name),
        }
    }

    /// `tcp` or `udp`
    pub fn protocol(&self) -> String {
        self.port.protocol.to_string()
    }

    fn is_external(&self) -> bool {
        self.port.on_node() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// Whether external traffic stays on the node: for ClusterIP Services, only with external IPs.
    pub fn is_external_local(&self) -> bool {
        self.service.external_local && self.is_external()
    }

    pub fn has_endpoints(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// The endpoints of the policy `Cluster`, if it is used.
    pub fn cluster(&self) -> Vec<Endpoint> {
        match !self.service.internal_local || self.is_external() {
            true => self.endpoints.clone(),
            false => Vec::new(),
        }
    }

    /// The endpoints of the policy `Local`, if it is used.
    pub fn local(&self) -> Vec<Endpoint> {
        match self.service.internal_local || self.is_external_local() {
            true => self.endpoints.iter().copied().filter(|endpoint| endpoint.is_local).collect(),
            false => Vec::new(),
        }
    }

    /// All endpoints of the policies that are used.
    pub fn reachable(&self) -> Vec<Endpoint> {
        let mut reachable = self.cluster();
        for local in self.local() {
            if !reachable.contains(&local) {
                reachable.push(local);
            }
        }
        reachable
    }

    /// Whether an endpoint serves the cluster IP.
    pub fn has_internal(&self) -> bool {
        match self.service.internal_local {
            true => !self.local().is_empty(),
            false => self.has_endpoints(),
        }
    }

    /// Whether an endpoint serves traffic from outside.
    pub fn has_external(&self) -> bool {
        match self.is_external_local() {
            true => !self.local().is_empty(),
            false => self.has_endpoints(),
        }
    }

    /// Whether there is a chain for traffic from outside.
    pub fn uses_external_chain(&self) -> bool {
        self.has_endpoints() && self.is_external()
    }

    /// The sources that reach load balancer IPs: the ranges, and the load balancer IPs themselves
    /// if one contains the node. `None` if all sources do.
    pub fn allowed_sources(&self) -> Option<Vec<String>> {
        if self.source_ranges.is_empty() || self.load_balancer_ips.is_empty() {
            return None;
        }
        let mut sources = self.source_ranges.clone();
        if self.allows_node() {
            sources.extend(self.load_balancer_ips.iter().map(ToString::to_string));
        }
        Some(sources)
    }

    /// Whether one of the ranges contains the node.
    pub fn allows_node(&self) -> bool {
        let node = node_ip(self.family);
        self.source_ranges.iter().any(|range| contains(range, node))
    }

    /// Whether there are ranges, and none contains the node.
    pub fn excludes_node(&self) -> bool {
        !self.source_ranges.is_empty() && !self.allows_node()
    }
}

/// Whether a CIDR contains an address. A CIDR that cannot be read contains nothing.
fn contains(range: &str, ip: IpAddr) -> bool {
    let Some((net, length)) = range.split_once('/') else { return false };
    let (Ok(net), Ok(length)) = (net.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((net, width), (ip, other_width)) = (bits(net), bits(ip));
    // Shifting by all of the width is not defined.
    width == other_width && (length == 0 || (net ^ ip) >> (128 - length) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_what_they_should() {
        let node = "192.168.10.1".parse().unwrap();
        assert!(contains("192.168.10.0/24", node) && contains("0.0.0.0/0", node));
        assert!(!contains("192.168.10.100/32", node) && !contains("::/0", node));
        assert!(contains("fd00::/8", "fd00:192:168:10::1".parse().unwrap()));
    }
}
