//! The Kubernetes objects a Service proxy reads, cut down to the fields it uses.
//!
//! Sources decode the API server's protobuf or JSON, or a manifest's YAML, straight into these
//! types: what is not named here (`managedFields`, selectors, specs of Pods ...) is skipped by the
//! decoder and never allocated. The types check nothing. An address is a string and a port any
//! integer, so that one bad value cannot make a decoder reject a whole list; [`crate::track`]
//! parses them, and reports what it refuses by object and field.
//!
//! `null` reads as the zero value everywhere, as it does in Go. The numbers of protobuf's fields
//! are those of the API's `generated.proto` files.
//!
//! With the feature `k8s-openapi`, the types of the crate of that name convert to these by `From`.

mod endpoint_slice;
#[cfg(feature = "k8s-openapi")]
mod from_k8s_openapi;
mod node;
mod service;
mod service_cidr;
mod timestamp;

use std::{collections::BTreeMap, fmt};

use prost::Message;
use serde::{Deserialize, Deserializer};

pub use self::{
    endpoint_slice::{
        ConditionSet, EndpointHints, EndpointPort, EndpointSlice, NamedHint, SliceEndpoint,
    },
    node::{Node, NodeAddress, NodeSpec, NodeStatus, Taint},
    service::{
        ClientIpConfig, LoadBalancerIngress, LoadBalancerStatus, Service, ServiceSpec,
        ServiceSpecPort, ServiceStatus, SessionAffinityConfig,
    },
    service_cidr::{ServiceCidr, ServiceCidrSpec},
    timestamp::Timestamp,
};

/// Reads `null` as the type's default, as Go's decoder does.
fn null_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads `null` as an empty list, and each `null` in a list as the type's default.
fn null_list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    let list: Option<Vec<Option<T>>> = Option::deserialize(deserializer)?;
    Ok(list.unwrap_or_default().into_iter().map(Option::unwrap_or_default).collect())
}

/// Reads `null` as an empty map, and each `null` in a map as the empty string.
fn null_map<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let map: Option<BTreeMap<String, Option<String>>> = Option::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_iter().map(|(k, v)| (k, v.unwrap_or_default())).collect())
}

/// The part of `metadata` that a proxy reads.
#[derive(Clone, PartialEq, Eq, Deserialize, Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// `metadata.name`
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "1")]
    pub name: String,
    /// `metadata.namespace`; empty for objects of the cluster, and read as `default` for others.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// `metadata.labels`
    #[serde(deserialize_with = "null_map")]
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`
    #[serde(deserialize_with = "null_map")]
    #[prost(btree_map = "string, string", tag = "12")]
    pub annotations: BTreeMap<String, String>,
    /// `metadata.creationTimestamp`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "8")]
    pub creation_timestamp: Timestamp,
    /// `metadata.deletionTimestamp`
    #[serde(deserialize_with = "null_default")]
    #[prost(message, required, tag = "9")]
    pub deletion_timestamp: Timestamp,
    /// `metadata.resourceVersion`, which a source takes out as soon as it knows it; the engine does
    /// not read it.
    #[serde(deserialize_with = "null_default")]
    #[prost(string, tag = "6")]
    pub resource_version: String,
}

/// The kinds of object that decide where Service traffic goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `v1` Service
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice
    EndpointSlice,
    /// `v1` Node
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR
    ServiceCidr,
}

impl Kind {
    /// Every kind, in the order in which a source should deliver them at the start.
    pub const ALL: [Self; 4] = [Self::Node, Self::ServiceCidr, Self::Service, Self::EndpointSlice];

    /// The `kind` of the API, e.g. `ServiceCIDR`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub fn is_namespaced(self) -> bool {
        matches!(self, Self::Service | Self::EndpointSlice)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of the object: kind, namespace (empty for objects of the cluster) and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The object's kind.
    pub kind: Kind,
    /// Its namespace; empty for Nodes and ServiceCIDRs.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    /// The key of an object of `kind` with this metadata. A namespaced object that names no
    /// namespace is in `default`, as `kubectl apply` would put it.
    pub fn new(kind: Kind, metadata: &Metadata) -> Self {
        let namespace = match (kind.is_namespaced(), metadata.namespace.as_str()) {
            (false, _) => String::new(),
            (true, "") => "default".to_owned(),
            (true, namespace) => namespace.to_owned(),
        };
        Self { kind, namespace, name: metadata.name.clone() }
    }

    /// The key of an object of the cluster, such as a Node.
    pub(crate) fn of_cluster(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: String::new(), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are unchecked: what could upset a log or a terminal is escaped.
        let (namespace, name) = (self.namespace.escape_debug(), self.name.escape_debug());
        match self.kind.is_namespaced() {
            true => write!(f, "{} {namespace}/{name}", self.kind),
            false => write!(f, "{} {name}", self.kind),
        }
    }
}

/// Any object of [`Kind`].
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "moved a few times, never kept")]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidr),
}

impl Object {
    /// The object's key.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Service(object) => ObjectKey::new(Kind::Service, &object.metadata),
            Self::EndpointSlice(object) => ObjectKey::new(Kind::EndpointSlice, &object.metadata),
            Self::Node(object) => ObjectKey::new(Kind::Node, &object.metadata),
            Self::ServiceCidr(object) => ObjectKey::new(Kind::ServiceCidr, &object.metadata),
        }
    }
}

macro_rules! into_object {
    ($($kind:ident),*) => {
        $(impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::$kind(object)
            }
        })*
    };
}
into_object!(Service, EndpointSlice, Node, ServiceCidr);

/// A change of objects, as a source sends it. Events may come in any order and any number of times;
/// the newest one of an object counts.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "moved a few times, never kept")]
#[non_exhaustive]
pub enum Event {
    /// The object exists and looks like this now.
    Apply(Object),
    /// The object is gone, or no longer concerns this proxy.
    Delete(ObjectKey),
    /// All objects of the kind have been sent, one by one. Ends a first list, and marks the kind as
    /// synced: nothing is programmed before Services and EndpointSlices are.
    Listed(Kind),
    /// These are all objects of the kind; every other one is gone. Ends a list, and marks the kind
    /// as synced. Later lists need it, and a first list that began again after objects were sent.
    Replace {
        /// The kind that was listed.
        kind: Kind,
        /// All its objects that could be read.
        objects: Vec<Object>,
        /// Objects that exist but could not be read. Their last good state stays; each is
        /// reported with an [`Event::Malformed`] of its own.
        malformed: Vec<ObjectKey>,
    },
    /// The object exists but could not be read; its last good state stays.
    Malformed {
        /// The object.
        object: ObjectKey,
        /// The field that could not be read, as a path such as `spec.ports[0].port`; may be empty.
        field: String,
        /// The problem with it.
        message: String,
    },
}
