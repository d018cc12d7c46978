//! Services: from the object to ports, addresses per family, and policies.

use std::{mem, net::IpAddr, ops::RangeInclusive, sync::Arc, time::Duration};

use ipnet::IpNet;

use super::{
    lb_algorithm::{self, AskedAlgorithm},
    names,
    problem::Problems,
    proxy_protocol, slow_start,
    values::{clip, is_never_shared, is_special, parse_port, parse_protocol},
};
use crate::{
    model::{
        HashSet, IpFamily, PerFamily, Protocol, ProxyProtocol, ServiceName, aggregated, parse_cidr,
        parse_ip,
    },
    objects::{self, Timestamp},
};

/// `sessionAffinityConfig.clientIP.timeoutSeconds` of an object without the field (API default).
const DEFAULT_AFFINITY_SECONDS: i64 = 10_800;
/// The values that the API allows for `timeoutSeconds`.
const AFFINITY_SECONDS: RangeInclusive<i64> = 1..=86_400;
/// The most ports of a Service, and the most products of its ports and addresses in a family. The
/// kernel takes seconds for 50,000, and keeps all other Services waiting meanwhile. An object can
/// hold 1.5 MiB, enough for hundreds of millions.
const MAX_FRONTENDS: usize = 20_000;
/// The most products of a Service's ports and source ranges in a family, for the same reason.
const MAX_SOURCE_RANGES: usize = 200_000;
/// The label that names the proxy of a Service (KEP-2447). A Service without the label belongs to
/// the cluster's proxy.
const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// A Service that this proxy serves, parsed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Service {
    pub(crate) name: ServiceName,
    pub(crate) created: Timestamp,
    pub(crate) addresses: PerFamily<Option<Box<Addresses>>>,
    pub(crate) ports: Box<[ServicePort]>,
    pub(crate) affinity: Option<Duration>,
    /// The algorithm that the Service asks for; `None` for the node's default.
    pub(crate) lb_algorithm: Option<AskedAlgorithm>,
    /// In which time a new endpoint reaches its full share; `None` for at once.
    pub(crate) slow_start: Option<Duration>,
    /// The protocol by which endpoints are sent the client's address, by a backend that ends
    /// connections.
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    pub(crate) external_local: bool,
    pub(crate) internal_local: bool,
    /// The port where load balancers ask for the Service's health.
    pub(crate) health_check: Option<u16>,
}

/// The addresses of a Service in one family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Addresses {
    pub(crate) cluster_ip: IpAddr,
    external_ips: Vec<IpAddr>,
    pub(crate) load_balancer_ips: Vec<IpAddr>,
    /// Sources of traffic to load balancer IPs; if empty, all sources are allowed.
    pub(crate) source_ranges: Vec<IpNet>,
}

impl Addresses {
    /// The external IPs; empty if external IPs are not programmed on this node.
    pub(crate) fn external_ips(&self, are_programmed: bool) -> &[IpAddr] {
        if are_programmed { &self.external_ips } else { &[] }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
}

impl Service {
    /// Whether anything but the cluster IP leads to this port in this family, where external IPs
    /// are programmed or not.
    pub(crate) fn is_externally_accessible(
        &self,
        port: &ServicePort,
        addresses: &Addresses,
        external_ips: bool,
    ) -> bool {
        port.node_port.is_some()
            || !addresses.load_balancer_ips.is_empty()
            || !addresses.external_ips(external_ips).is_empty()
    }

    /// Whether any frontend of this port has the `Cluster` policy in this family, were there no
    /// other Services.
    pub(crate) fn uses_cluster(
        &self,
        port: &ServicePort,
        addresses: &Addresses,
        external_ips: bool,
    ) -> bool {
        !self.internal_local || self.is_externally_accessible(port, addresses, external_ips)
    }

    /// Parses `object`. Returns `None` if the Service is not for the proxy with this name (headless,
    /// ExternalName, another proxy's), or has nothing usable. Values that cannot be used are left
    /// out and added to `problems`.
    pub(crate) fn parse(
        object: &objects::Service,
        proxy: Option<&str>,
        problems: &mut Problems,
    ) -> Option<Self> {
        let spec = &object.spec;
        let of = object.metadata.labels.get(SERVICE_PROXY_NAME).map(|name| &**name);
        if object.is_unproxied() || of != proxy {
            return None;
        }
        let name = names::service_name(&object.metadata, problems)?;
        let mut addresses = parse_addresses(object, problems);
        if addresses.v4.is_none() && addresses.v6.is_none() {
            return None;
        }
        let takes_external = matches!(spec.kind.as_str(), "NodePort" | "LoadBalancer")
            || !spec.external_ips.is_empty();
        if !matches!(spec.kind.as_str(), "" | "ClusterIP" | "NodePort" | "LoadBalancer") {
            problems.add(
                "spec.type",
                format_args!("`{}` is unknown; read as ClusterIP", clip(&spec.kind)),
            );
        }
        let external_local = takes_external
            && is_local("spec.externalTrafficPolicy", &spec.external_traffic_policy, problems);
        let ports = parse_ports(&spec.ports, problems);
        limit_addresses(&mut addresses, ports.len(), problems);
        Some(Self {
            name,
            created: object.metadata.creation_timestamp,
            addresses,
            ports: ports.into(),
            affinity: parse_affinity(spec, problems),
            lb_algorithm: lb_algorithm::parse(&object.metadata, problems),
            slow_start: slow_start::parse(&object.metadata, problems),
            proxy_protocol: proxy_protocol::parse(&object.metadata, problems),
            external_local,
            internal_local: is_local(
                "spec.internalTrafficPolicy",
                &spec.internal_traffic_policy,
                problems,
            ),
            health_check: if external_local && spec.kind == "LoadBalancer" {
                let field = || "spec.healthCheckNodePort".to_owned();
                let consequence = "load balancers cannot ask for its health";
                parse_port(spec.health_check_node_port, field, consequence, problems)
            } else {
                None
            },
        })
    }
}

fn is_local(field: &str, policy: &str, problems: &mut Problems) -> bool {
    match policy {
        "Local" => true,
        "" | "Cluster" => false,
        other => {
            problems.add(field, format_args!("`{}` is unknown; read as Cluster", clip(other)));
            false
        }
    }
}

fn parse_affinity(spec: &objects::ServiceSpec, problems: &mut Problems) -> Option<Duration> {
    match spec.session_affinity.as_str() {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            problems.add(
                "spec.sessionAffinity",
                format_args!("`{}` is unknown; read as None", clip(other)),
            );
            return None;
        }
    }
    let asked =
        spec.session_affinity_config.client_ip.timeout_seconds.unwrap_or(DEFAULT_AFFINITY_SECONDS);
    let seconds = asked.clamp(*AFFINITY_SECONDS.start(), *AFFINITY_SECONDS.end());
    if seconds != asked {
        problems.add(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            format_args!("{asked} is not within 1 and 86400; {seconds} is used"),
        );
    }
    Some(Duration::from_secs(seconds.unsigned_abs()))
}

fn parse_addresses(
    object: &objects::Service,
    problems: &mut Problems,
) -> PerFamily<Option<Box<Addresses>>> {
    let spec = &object.spec;
    let mut addresses = parse_cluster_ips(spec, problems).map(|cluster_ip| {
        Box::new(Addresses {
            cluster_ip,
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            source_ranges: Vec::new(),
        })
    });
    for (i, text) in spec.external_ips.iter().enumerate() {
        let Some(ip) = parse_ip_field(text, || format!("spec.externalIPs[{i}]"), problems) else {
            continue;
        };
        if is_special(&ip) {
            problems.add(
                format!("spec.externalIPs[{i}]"),
                format_args!(
                    "{ip} is a loopback, link-local, multicast, broadcast or unspecified address; ignored"
                ),
            );
        } else if let Some(of_family) = addresses.get_mut(IpFamily::of(&ip)) {
            of_family.external_ips.push(ip);
        }
    }
    for (i, ingress) in object.status.load_balancer.ingress.iter().enumerate() {
        let field = || format!("status.loadBalancer.ingress[{i}].ip");
        match ingress.ip_mode.as_str() {
            "" | "VIP" => {}
            // Packets do not arrive with the VIP as their destination: nothing to intercept.
            "Proxy" => continue,
            other => {
                problems.add(
                    format!("status.loadBalancer.ingress[{i}].ipMode"),
                    format_args!("`{}` is unknown; the address is ignored", clip(other)),
                );
                continue;
            }
        }
        let Some(ip) = parse_ip_field(&ingress.ip, field, problems) else { continue };
        // The API takes these from whoever may write the status.
        if is_never_shared(&ip) {
            problems
                .add(field(), format_args!("{ip} cannot be a load balancer's address; ignored"));
        } else if let Some(of_family) = addresses.get_mut(IpFamily::of(&ip)) {
            of_family.load_balancer_ips.push(ip);
        }
    }
    let ranges = parse_source_ranges(&spec.load_balancer_source_ranges, problems);
    for family in IpFamily::ALL {
        if let Some(of_family) = addresses.get_mut(family) {
            retain_distinct(&mut of_family.external_ips);
            retain_distinct(&mut of_family.load_balancer_ips);
            match ranges.get(family) {
                Some(ranges) => of_family.source_ranges.clone_from(ranges),
                // Without any range, all sources would be allowed; as external IPs, too.
                None => {
                    let closed = mem::take(&mut of_family.load_balancer_ips);
                    of_family.external_ips.retain(|ip| !closed.contains(ip));
                }
            }
        }
    }
    addresses
}

/// Leaves out the addresses beyond [`MAX_FRONTENDS`], the last external IPs first, and the source
/// ranges beyond [`MAX_SOURCE_RANGES`].
fn limit_addresses(
    addresses: &mut PerFamily<Option<Box<Addresses>>>,
    ports: usize,
    problems: &mut Problems,
) {
    // The cluster IP is served in any case.
    let most = (MAX_FRONTENDS / ports.max(1)).saturating_sub(1);
    for family in IpFamily::ALL {
        let Some(of_family) = addresses.get_mut(family) else { continue };
        let rest = most.saturating_sub(of_family.load_balancer_ips.len());
        for (field, ips, most) in [
            ("status.loadBalancer.ingress", &mut of_family.load_balancer_ips, most),
            ("spec.externalIPs", &mut of_family.external_ips, rest),
        ] {
            if ips.len() > most {
                problems.add_in_any_case(
                    field,
                    format_args!(
                        "the {family} addresses after the first {most} of {} are ignored: with \
                         {ports} ports, there would be more than {MAX_FRONTENDS} frontends",
                        ips.len(),
                    ),
                );
                ips.truncate(most);
            }
        }
        // Each port has ranges of its own. At least one stays: without any, all sources are
        // allowed.
        let most = (MAX_SOURCE_RANGES / ports.max(1)).max(1);
        let ranges = &mut of_family.source_ranges;
        if ranges.len() > most {
            problems.add_in_any_case(
                "spec.loadBalancerSourceRanges",
                format_args!(
                    "the {family} ranges after the first {most} of {} are ignored: with {ports} \
                     ports, there would be more than {MAX_SOURCE_RANGES}",
                    ranges.len(),
                ),
            );
            ranges.truncate(most);
        }
    }
}

/// Parses the cluster IP of each family. Objects that the API server has seen list cluster IPs in
/// the order of `ipFamilies`; hand-written objects may leave out `ipFamilies` or `clusterIPs`.
fn parse_cluster_ips(
    spec: &objects::ServiceSpec,
    problems: &mut Problems,
) -> PerFamily<Option<IpAddr>> {
    let mut found: PerFamily<Option<IpAddr>> = PerFamily::default();
    let listed: &[String] = match spec.cluster_ips.as_slice() {
        [] => std::slice::from_ref(&spec.cluster_ip),
        listed => listed,
    };
    for (i, text) in listed.iter().enumerate() {
        let field = || {
            if spec.cluster_ips.is_empty() {
                "spec.clusterIP".to_owned()
            } else {
                format!("spec.clusterIPs[{i}]")
            }
        };
        let Some(ip) = parse_ip_field(text, field, problems) else { continue };
        let family = IpFamily::of(&ip);
        if spec.ip_families.get(i).is_some_and(|named| named != family.as_str()) {
            problems.add_in_any_case(
                field(),
                format_args!(
                    "{ip} is not {}, as spec.ipFamilies[{i}] says; ignored",
                    clip(&spec.ip_families[i])
                ),
            );
        } else if is_never_shared(&ip) {
            problems.add_in_any_case(field(), format_args!("{ip} cannot be a cluster IP; ignored"));
        } else if let Some(first) = found.get(family) {
            problems.add_in_any_case(
                field(),
                format_args!("{first} is the cluster IP for {family} already; {ip} is ignored"),
            );
        } else {
            *found.get_mut(family) = Some(ip);
        }
    }
    found
}

/// Parses the source ranges of each family; `None` if some of the family cannot be read, and none
/// can.
fn parse_source_ranges(texts: &[String], problems: &mut Problems) -> PerFamily<Option<Vec<IpNet>>> {
    let mut ranges: PerFamily<Vec<IpNet>> = PerFamily::default();
    let mut open: PerFamily<bool> = PerFamily::default();
    let mut unreadable: PerFamily<bool> = PerFamily::default();
    for (i, text) in texts.iter().enumerate() {
        match parse_cidr(text.trim()) {
            Ok(net) if net.prefix_len() == 0 => *open.get_mut(IpFamily::of_net(&net)) = true,
            Ok(net) => ranges.get_mut(IpFamily::of_net(&net)).push(net),
            Err(error) => {
                // What looks like neither family may have been meant for both.
                let is_v6 = text.contains(':');
                unreadable.v6 |= is_v6 || !text.contains('.');
                unreadable.v4 |= !is_v6;
                problems.add(
                    format!("spec.loadBalancerSourceRanges[{i}]"),
                    format_args!("{error}; ignored"),
                );
            }
        }
    }
    PerFamily::from_fn(|family| {
        let ranges = ranges.get(family);
        if *open.get(family) {
            return Some(Vec::new());
        }
        if *unreadable.get(family) && ranges.is_empty() {
            problems.add_in_any_case(
                "spec.loadBalancerSourceRanges",
                format_args!(
                    "no {family} range can be read: the load balancer's {family} addresses are \
                     not served"
                ),
            );
            return None;
        }
        let merged = aggregated(ranges);
        // Two halves are the whole, too.
        let is_open = merged.iter().any(|net| net.prefix_len() == 0);
        Some(if is_open { Vec::new() } else { merged })
    })
}

fn parse_ports(specs: &[objects::ServiceSpecPort], problems: &mut Problems) -> Vec<ServicePort> {
    let mut ports = Vec::with_capacity(specs.len().min(MAX_FRONTENDS));
    let mut names = HashSet::default();
    for (i, spec) in specs.iter().enumerate() {
        if ports.len() == MAX_FRONTENDS {
            problems.add_in_any_case(
                format!("spec.ports[{i}]"),
                format_args!("the ports after the first {MAX_FRONTENDS} are ignored"),
            );
            break;
        }
        let field = |name: &str| format!("spec.ports[{i}].{name}");
        if let Err(reason) = names::check_port_name(&spec.name) {
            problems.add(field("name"), format_args!("{reason}; the port is ignored"));
            continue;
        }
        let Some(protocol) = parse_protocol(&spec.protocol, || field("protocol"), problems) else {
            continue;
        };
        let ignored = "the port is ignored";
        let Some(port) = parse_port(spec.port, || field("port"), ignored, problems) else {
            continue;
        };
        let node_port = match spec.node_port {
            0 => None,
            number => parse_port(number, || field("nodePort"), "it is ignored", problems),
        };
        if !names.insert((&*spec.name, protocol)) {
            problems.add(
                field("name"),
                format_args!(
                    "`{}` ({protocol}) is the name of an earlier port; the port is ignored",
                    spec.name
                ),
            );
            continue;
        }
        ports.push(ServicePort { name: spec.name.as_str().into(), protocol, port, node_port });
    }
    ports
}

/// Parses an address. Returns `None` if the field is empty, or is no address, which is added to
/// `problems`.
fn parse_ip_field(
    text: &str,
    field: impl Fn() -> String,
    problems: &mut Problems,
) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    parse_ip(text).map_err(|error| problems.add(field(), format_args!("{error}; ignored"))).ok()
}

/// Keeps the first of equal addresses.
fn retain_distinct(ips: &mut Vec<IpAddr>) {
    if ips.len() > 1 {
        let mut seen = HashSet::with_capacity_and_hasher(ips.len(), Default::default());
        ips.retain(|ip| seen.insert(*ip));
    }
}
