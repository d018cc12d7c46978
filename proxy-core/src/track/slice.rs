//! EndpointSlices: parsed, kept compactly, several per Service.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
    net::IpAddr,
    sync::Arc,
};

use super::{
    names,
    problem::Problems,
    service::{clip, is_special, port_number},
};
use crate::{
    model::{IpFamily, Protocol, ServiceName, parse_ip},
    objects::{self, Kind, ObjectKey},
};

/// The label that says whose endpoints a slice has.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of slices that no proxy needs.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// A slice, parsed.
#[derive(Debug, PartialEq)]
pub(crate) struct Slice {
    pub(crate) family: IpFamily,
    pub(crate) ports: Box<[SlicePort]>,
    pub(crate) endpoints: Box<[SliceEndpoint]>,
}

/// A port that every endpoint of a slice has.
#[derive(Debug, PartialEq)]
pub(crate) struct SlicePort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

/// An endpoint of a slice.
#[derive(Debug, PartialEq)]
pub(crate) struct SliceEndpoint {
    pub(crate) address: IpAddr,
    pub(crate) ready: bool,
    pub(crate) serving: bool,
    pub(crate) terminating: bool,
    /// Whether it runs on this node.
    pub(crate) is_local: bool,
    pub(crate) node_hint: NodeHint,
    /// `hints.forZones`
    pub(crate) zones: Zones,
}

/// Names of zones: sorted, each once. The same few sets are shared by all endpoints.
pub(crate) type Zones = Arc<[Arc<str>]>;

/// What `hints.forNodes` says about this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeHint {
    /// It names no node.
    None,
    /// It names this node.
    Ours,
    /// It names others only.
    Others,
}

/// All slices, by Service. Sized for hundreds of thousands of endpoints: names are kept once.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    /// In the order of the slices' names.
    by_service: HashMap<ServiceName, Vec<(Arc<str>, Slice)>>,
    /// Whose endpoints each slice (by namespace and name) has.
    owners: HashMap<(Arc<str>, Arc<str>), ServiceName>,
    /// Names of ports, zones and namespaces.
    names: Interned<str>,
    zones: Interned<[Arc<str>]>,
}

impl Slices {
    /// The slices of a Service, in the order of their names.
    pub(crate) fn of(&self, service: &ServiceName) -> impl Iterator<Item = &Slice> + Clone {
        self.by_service.get(service).into_iter().flatten().map(|(_, slice)| slice)
    }

    /// Takes a slice in; returns the Services whose endpoints changed, its own first.
    pub(crate) fn apply(
        &mut self,
        object: &objects::EndpointSlice,
        node_name: &str,
        problems: &mut Problems,
    ) -> Vec<ServiceName> {
        let key = ObjectKey::new(Kind::EndpointSlice, &object.metadata);
        let Some((service, slice)) = self.parse(object, &key, node_name, problems) else {
            return self.remove(&key.namespace, &key.name);
        };
        let owner_key = (self.names.get(&key.namespace), Arc::from(key.name));
        let before = match self.owners.get(&owner_key) {
            Some(owner) if *owner != service => self.remove(&owner_key.0, &owner_key.1),
            _ => Vec::new(),
        };
        let service = match self.by_service.get_key_value(&service) {
            Some((known, _)) => known.clone(),
            None => service,
        };
        let slices = self.by_service.entry(service.clone()).or_default();
        match slices.binary_search_by(|(name, _)| name.cmp(&owner_key.1)) {
            Ok(place) if slices[place].1 == slice => return before,
            Ok(place) => slices[place].1 = slice,
            Err(place) => {
                // Most Services have one or two.
                slices.reserve_exact(if slices.len() < 4 { 1 } else { slices.len() / 2 });
                slices.insert(place, (owner_key.1.clone(), slice));
                self.owners.insert(owner_key, service.clone());
            }
        }
        [vec![service], before].concat()
    }

    /// Removes a slice; returns the Services whose endpoints changed.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> Vec<ServiceName> {
        let Some(service) = self.owners.remove(&(namespace.into(), name.into())) else {
            return Vec::new();
        };
        if let Some(slices) = self.by_service.get_mut(&service) {
            if let Ok(place) = slices.binary_search_by(|(known, _)| (**known).cmp(name)) {
                slices.remove(place);
            }
            if slices.is_empty() {
                self.by_service.remove(&service);
            }
        }
        vec![service]
    }

    /// The keys of all slices.
    pub(crate) fn keys(&self) -> impl Iterator<Item = ObjectKey> + '_ {
        self.owners.keys().map(|(namespace, name)| ObjectKey {
            kind: Kind::EndpointSlice,
            namespace: namespace.to_string(),
            name: name.to_string(),
        })
    }

    fn parse(
        &mut self,
        object: &objects::EndpointSlice,
        key: &ObjectKey,
        node_name: &str,
        problems: &mut Problems,
    ) -> Option<(ServiceName, Slice)> {
        let labels = &object.metadata.labels;
        let service = labels.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
        if labels.contains_key(HEADLESS) {
            return None;
        }
        if !names::is_dns_name(service) || !names::is_dns_name(&key.namespace) {
            problems.add(
                format!("metadata.labels[{SERVICE_NAME}]"),
                "is not a DNS name (RFC 1123); the object is ignored",
            );
            return None;
        }
        let family = match object.address_type.as_str() {
            "IPv4" => IpFamily::V4,
            "IPv6" => IpFamily::V6,
            "FQDN" => return None,
            other => {
                problems.add(
                    "addressType",
                    format_args!(
                        "`{}` is not IPv4, IPv6 or FQDN; the object is ignored",
                        clip(other)
                    ),
                );
                return None;
            }
        };
        let ports = object
            .ports
            .iter()
            .enumerate()
            .filter_map(|(i, port)| self.parse_port(i, port, problems))
            .collect();
        let endpoints = object
            .endpoints
            .iter()
            .enumerate()
            .filter_map(|(i, endpoint)| {
                self.parse_endpoint(i, endpoint, family, node_name, problems)
            })
            .collect();
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
        let Ok(protocol) = port.protocol.parse::<Protocol>() else {
            problems.add(
                format!("ports[{i}].protocol"),
                format_args!(
                    "`{}` is not TCP, UDP or SCTP; the port is ignored",
                    clip(&port.protocol)
                ),
            );
            return None;
        };
        let Some(number) = port_number(number) else {
            problems.add(
                format!("ports[{i}].port"),
                format_args!("{number} is not within 1 and 65535; the port is ignored"),
            );
            return None;
        };
        Some(SlicePort { name: self.names.get(name), protocol, port: number })
    }

    fn parse_endpoint(
        &mut self,
        i: usize,
        endpoint: &objects::SliceEndpoint,
        family: IpFamily,
        node_name: &str,
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
        if is_special(&address) {
            problems.add(
                field(),
                format_args!(
                    "{address} is a loopback, link-local, multicast or unspecified address; \
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
            is_local: endpoint.node_name.as_deref() == Some(node_name),
            node_hint: match nodes.iter().any(|hint| hint.name == node_name) {
                true => NodeHint::Ours,
                false if nodes.is_empty() => NodeHint::None,
                false => NodeHint::Others,
            },
            zones: self.zones_of(endpoint),
        })
    }

    fn zones_of(&mut self, endpoint: &objects::SliceEndpoint) -> Zones {
        let hints = endpoint.hints.for_zones.iter();
        let mut zones: Vec<Arc<str>> = hints.map(|hint| self.names.get(&hint.name)).collect();
        zones.sort_unstable();
        zones.dedup();
        self.zones.get(&zones)
    }
}

/// Values that are kept once, however many have them.
#[derive(Debug)]
struct Interned<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// When there are so many, those that nobody has any more are dropped.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: 1024 }
    }
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    fn get<'t>(&mut self, value: &'t T) -> Arc<T>
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
