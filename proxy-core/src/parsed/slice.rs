//! EndpointSlices: from the object to endpoints of one family and their ports.

use std::{hash::Hash, sync::Arc};

use super::{
    endpoint::{NodeHint, Place, SliceEndpoint, Zones},
    names,
    problem::Problems,
    values::{clip, is_special, parse_port, parse_protocol},
    weights,
};
use crate::{
    config::NodeConfig,
    model::{HashSet, IpFamily, Protocol, ServiceName, ServicePortName, parse_ip},
    objects::{self, ObjectKey},
};

/// The label with the name of the Service whose endpoints a slice has.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of slices that no proxy needs.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The name of the Service that the slice's label has, if it has one; in the slice's namespace.
pub(crate) fn service_of(object: &objects::EndpointSlice) -> Option<&str> {
    object.metadata.labels.get(SERVICE_NAME).map(String::as_str).filter(|name| !name.is_empty())
}

#[derive(Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) family: IpFamily,
    /// In order of their names and protocols: a Service of 20,000 ports looks each up.
    pub(crate) ports: Box<[SlicePort]>,
    pub(crate) endpoints: Box<[SliceEndpoint]>,
}

impl Slice {
    /// The ports of a Service port, which is one port unless an object is odd.
    pub(crate) fn ports_of(&self, name: &ServicePortName) -> &[SlicePort] {
        let order =
            |port: &SlicePort| (&*port.name, port.protocol).cmp(&(&name.port, name.protocol));
        let from = &self.ports[self.ports.partition_point(|port| order(port).is_lt())..];
        &from[..from.iter().take_while(|port| order(port).is_eq()).count()]
    }
}

/// The most numbers of a port in a slice, each of which all endpoints have. The API server takes
/// one, and kube-proxy any number.
const MAX_NUMBERS: usize = 100;

/// Sorts the ports, and leaves out the numbers of a port after the first [`MAX_NUMBERS`].
fn limited(mut ports: Vec<SlicePort>, problems: &mut Problems) -> Box<[SlicePort]> {
    ports.sort();
    ports.dedup();
    let mut count = 0;
    let mut limited: Vec<SlicePort> = Vec::with_capacity(ports.len());
    for port in ports {
        let is_same =
            |last: &&SlicePort| (&last.name, last.protocol) == (&port.name, port.protocol);
        count = limited.last().filter(is_same).map_or(0, |_| count + 1);
        if count < MAX_NUMBERS {
            limited.push(port);
        } else if count == MAX_NUMBERS {
            problems.add(
                "ports",
                format_args!(
                    "the numbers of port `{}` ({}) after the lowest {MAX_NUMBERS} are ignored",
                    clip(&port.name),
                    port.protocol
                ),
            );
        }
    }
    limited.into()
}

/// A port of all endpoints of a slice.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlicePort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

/// Parses slices. Names and sets of zones are kept once: a cluster may have hundreds of thousands
/// of endpoints.
#[derive(Debug, Default)]
pub(crate) struct SliceParser {
    /// Names of ports, zones and namespaces.
    names: Interned<str>,
    zones: Interned<[Arc<str>]>,
}

/// Returns the family of the addresses in a slice.
pub(crate) fn family(object: &objects::EndpointSlice) -> Option<IpFamily> {
    match object.address_type.as_str() {
        "IPv4" => Some(IpFamily::V4),
        "IPv6" => Some(IpFamily::V6),
        _ => None,
    }
}

impl SliceParser {
    /// Returns the shared copy of a name.
    pub(crate) fn intern(&mut self, name: &str) -> Arc<str> {
        self.names.intern(name)
    }

    /// Parses `object` as `node` sees it. Returns the name of the Service whose
    /// endpoints the slice has, or `None` if no proxy needs the slice, or it is not usable. Values
    /// that cannot be used are left out and added to `problems`.
    pub(crate) fn parse(
        &mut self,
        object: &objects::EndpointSlice,
        key: &ObjectKey,
        node: &NodeConfig,
        problems: &mut Problems,
    ) -> Option<(ServiceName, Slice)> {
        let service = service_of(object)?;
        if object.metadata.labels.contains_key(HEADLESS) {
            return None;
        }
        if !names::is_dns_name(service) || !names::is_dns_name(&key.namespace) {
            problems.add(
                format!("metadata.labels[{SERVICE_NAME}]"),
                "is not a DNS name (RFC 1123); the object is ignored",
            );
            return None;
        }
        let Some(family) = family(object) else {
            if object.address_type != "FQDN" {
                let text = clip(&object.address_type);
                problems.add(
                    "addressType",
                    format_args!("`{text}` is not IPv4, IPv6 or FQDN; the object is ignored"),
                );
            }
            return None;
        };
        let ports: Vec<SlicePort> = object
            .ports
            .iter()
            .enumerate()
            .filter_map(|(i, port)| self.parse_port(i, port, problems))
            .collect();
        let ports = limited(ports, problems);
        let mut endpoints: Box<[SliceEndpoint]> = object
            .endpoints
            .iter()
            .enumerate()
            .filter_map(|(i, endpoint)| self.parse_endpoint(i, endpoint, family, node, problems))
            .collect();
        weights::apply(&object.metadata, &mut endpoints, problems);
        Some((ServiceName::new(&key.namespace, service), Slice { family, ports, endpoints }))
    }

    fn parse_port(
        &mut self,
        i: usize,
        port: &objects::EndpointPort,
        problems: &mut Problems,
    ) -> Option<SlicePort> {
        let name = port.name.as_deref()?;
        let number = port.port.filter(|&number| number != 0)?;
        let field = |name: &str| format!("ports[{i}].{name}");
        let protocol = parse_protocol(&port.protocol, || field("protocol"), problems)?;
        let number = parse_port(number, || field("port"), "the port is ignored", problems)?;
        Some(SlicePort { name: self.names.intern(name), protocol, port: number })
    }

    fn parse_endpoint(
        &mut self,
        i: usize,
        endpoint: &objects::SliceEndpoint,
        family: IpFamily,
        node: &NodeConfig,
        problems: &mut Problems,
    ) -> Option<SliceEndpoint> {
        let text = endpoint.addresses.first()?;
        let field = || format!("endpoints[{i}].addresses[0]");
        let address = match parse_ip(text) {
            Ok(address) => address,
            Err(error) => {
                problems.add(field(), format_args!("{error}; the endpoint is ignored"));
                return None;
            }
        };
        if IpFamily::of(&address) != family {
            problems
                .add(field(), format_args!("{address} is not {family}; the endpoint is ignored"));
            return None;
        }
        let reaches_itself = address.is_loopback() && node.loopback_endpoints;
        if is_special(&address) && !reaches_itself {
            problems.add(
                field(),
                format_args!(
                    "{address} is a loopback, link-local, multicast, broadcast or unspecified address; \
                     the endpoint is ignored"
                ),
            );
            return None;
        }
        let conditions = endpoint.conditions;
        let nodes = &endpoint.hints.for_nodes;
        Some(SliceEndpoint {
            address,
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
            place: match endpoint.node_name.as_deref() {
                Some(name) if name == node.node_name => Place::Here,
                None | Some("") => Place::Unknown,
                Some(_) => Place::Elsewhere,
            },
            node_hint: if nodes.is_empty() {
                NodeHint::None
            } else if nodes.iter().any(|hint| hint.name == node.node_name) {
                NodeHint::Ours
            } else {
                NodeHint::Others
            },
            weight: 1,
            zones: self.parse_zones(endpoint),
        })
    }

    fn parse_zones(&mut self, endpoint: &objects::SliceEndpoint) -> Zones {
        let hints = endpoint.hints.for_zones.iter();
        let mut zones: Vec<Arc<str>> = hints.map(|hint| self.names.intern(&hint.name)).collect();
        zones.sort_unstable();
        zones.dedup();
        self.zones.intern(&zones)
    }
}

/// Values that are kept once, however many objects share them.
#[derive(Debug)]
struct Interned<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// At this number of values, those that are no longer in use are dropped.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Self { known: HashSet::default(), sweep_at: 1024 }
    }
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    /// Returns the shared value that equals `value`.
    fn intern<'t>(&mut self, value: &'t T) -> Arc<T>
    where
        Arc<T>: From<&'t T>,
    {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = 1024.max(2 * self.known.len());
        }
        let new = Arc::from(value);
        self.known.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster may have hundreds of thousands of them.
    #[test]
    fn an_endpoint_is_small() {
        assert_eq!(size_of::<SliceEndpoint>(), 40);
    }

    #[test]
    fn values_that_nothing_uses_are_dropped_in_time() {
        let mut names = Interned::<str>::default();
        let used = names.intern("used");
        for number in 0..10_000 {
            names.intern(&format!("node-{number}"));
            assert!(names.known.len() <= 1024);
        }
        assert!(Arc::ptr_eq(&used, &names.intern("used")));
        // As many as are in use are kept.
        let many: Vec<_> =
            (0..5000).map(|number| names.intern(&format!("zone-{number}"))).collect();
        assert!(names.known.len() >= many.len());
        drop(many);
        for number in 0..10_000 {
            names.intern(&format!("node-{number}"));
        }
        assert!(names.known.len() <= 1024);
    }
}
