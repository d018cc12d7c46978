//! The messages: the fields of each by name in JSON, number and type.
//!
//! Source: the `generated.proto` files of `k8s.io/api` and `k8s.io/apimachinery`, and the Go types,
//! which show whether a field can be absent. Fields that are not here are left out of answers.

use Kind::{Bool, FieldsV1, Int32, Int64, IntOrString, Message, Quantity, Text, Time};

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// The name in JSON.
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) presence: Presence,
}

/// The number of values of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Presence {
    /// One, which is zero or empty if there is none: the Go type has no pointer.
    Always,
    /// One or none.
    Optional,
    Repeated,
    /// Entries of a map whose keys are text.
    Map,
}

/// The type of a field's values.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    Int32,
    Int64,
    Bool,
    /// A message with the seconds since 1970, empty for no time.
    Time,
    /// A message with the type, the number and the text.
    IntOrString,
    /// A message with the text.
    Quantity,
    /// A message with the value as JSON.
    FieldsV1,
    Message(&'static [Field]),
}

const fn always(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { name, number, kind, presence: Presence::Always }
}

const fn optional(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { name, number, kind, presence: Presence::Optional }
}

const fn repeated(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { name, number, kind, presence: Presence::Repeated }
}

const fn map(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { name, number, kind, presence: Presence::Map }
}

/// Returns the fields of an object of this kind.
pub(super) fn of(kind: &str) -> &'static [Field] {
    match kind {
        "Node" => NODE,
        "Service" => SERVICE,
        "EndpointSlice" => ENDPOINT_SLICE,
        "ServiceCIDR" => SERVICE_CIDR,
        "Status" => STATUS,
        _ => panic!("{kind} has no message"),
    }
}

pub(super) const LIST_META: &[Field] = &[
    always(1, "selfLink", Text),
    always(2, "resourceVersion", Text),
    always(3, "continue", Text),
    optional(4, "remainingItemCount", Int64),
];

const STATUS: &[Field] = &[
    always(1, "metadata", Message(LIST_META)),
    always(2, "status", Text),
    always(3, "message", Text),
    always(4, "reason", Text),
    optional(5, "details", Message(STATUS_DETAILS)),
    always(6, "code", Int32),
];
const STATUS_DETAILS: &[Field] = &[
    always(1, "name", Text),
    always(2, "group", Text),
    always(3, "kind", Text),
    repeated(4, "causes", Message(STATUS_CAUSE)),
    always(5, "retryAfterSeconds", Int32),
    always(6, "uid", Text),
];
const STATUS_CAUSE: &[Field] =
    &[always(1, "reason", Text), always(2, "message", Text), always(3, "field", Text)];

const OBJECT_META: &[Field] = &[
    always(1, "name", Text),
    always(2, "generateName", Text),
    always(3, "namespace", Text),
    always(4, "selfLink", Text),
    always(5, "uid", Text),
    always(6, "resourceVersion", Text),
    always(7, "generation", Int64),
    always(8, "creationTimestamp", Time),
    optional(9, "deletionTimestamp", Time),
    optional(10, "deletionGracePeriodSeconds", Int64),
    map(11, "labels", Text),
    map(12, "annotations", Text),
    repeated(13, "ownerReferences", Message(OWNER_REFERENCE)),
    repeated(14, "finalizers", Text),
    repeated(17, "managedFields", Message(MANAGED_FIELDS_ENTRY)),
];
const OWNER_REFERENCE: &[Field] = &[
    always(1, "kind", Text),
    always(3, "name", Text),
    always(4, "uid", Text),
    always(5, "apiVersion", Text),
    optional(6, "controller", Bool),
    optional(7, "blockOwnerDeletion", Bool),
];
const MANAGED_FIELDS_ENTRY: &[Field] = &[
    always(1, "manager", Text),
    always(2, "operation", Text),
    always(3, "apiVersion", Text),
    optional(4, "time", Time),
    always(6, "fieldsType", Text),
    optional(7, "fieldsV1", FieldsV1),
    always(8, "subresource", Text),
];
const CONDITION: &[Field] = &[
    always(1, "type", Text),
    always(2, "status", Text),
    always(3, "observedGeneration", Int64),
    always(4, "lastTransitionTime", Time),
    always(5, "reason", Text),
    always(6, "message", Text),
];

const SERVICE: &[Field] = &[
    always(1, "metadata", Message(OBJECT_META)),
    always(2, "spec", Message(SERVICE_SPEC)),
    always(3, "status", Message(SERVICE_STATUS)),
];
const SERVICE_SPEC: &[Field] = &[
    repeated(1, "ports", Message(SERVICE_PORT)),
    map(2, "selector", Text),
    always(3, "clusterIP", Text),
    always(4, "type", Text),
    repeated(5, "externalIPs", Text),
    always(7, "sessionAffinity", Text),
    always(8, "loadBalancerIP", Text),
    repeated(9, "loadBalancerSourceRanges", Text),
    always(10, "externalName", Text),
    always(11, "externalTrafficPolicy", Text),
    always(12, "healthCheckNodePort", Int32),
    always(13, "publishNotReadyAddresses", Bool),
    optional(14, "sessionAffinityConfig", Message(SESSION_AFFINITY_CONFIG)),
    optional(17, "ipFamilyPolicy", Text),
    repeated(18, "clusterIPs", Text),
    repeated(19, "ipFamilies", Text),
    optional(20, "allocateLoadBalancerNodePorts", Bool),
    optional(21, "loadBalancerClass", Text),
    optional(22, "internalTrafficPolicy", Text),
    optional(23, "trafficDistribution", Text),
];
const SERVICE_PORT: &[Field] = &[
    always(1, "name", Text),
    always(2, "protocol", Text),
    always(3, "port", Int32),
    always(4, "targetPort", IntOrString),
    always(5, "nodePort", Int32),
    optional(6, "appProtocol", Text),
];
const SESSION_AFFINITY_CONFIG: &[Field] = &[optional(1, "clientIP", Message(CLIENT_IP_CONFIG))];
const CLIENT_IP_CONFIG: &[Field] = &[optional(1, "timeoutSeconds", Int32)];
const SERVICE_STATUS: &[Field] = &[
    always(1, "loadBalancer", Message(LOAD_BALANCER_STATUS)),
    repeated(2, "conditions", Message(CONDITION)),
];
const LOAD_BALANCER_STATUS: &[Field] = &[repeated(1, "ingress", Message(LOAD_BALANCER_INGRESS))];
const LOAD_BALANCER_INGRESS: &[Field] = &[
    always(1, "ip", Text),
    always(2, "hostname", Text),
    optional(3, "ipMode", Text),
    repeated(4, "ports", Message(PORT_STATUS)),
];
const PORT_STATUS: &[Field] =
    &[always(1, "port", Int32), always(2, "protocol", Text), optional(3, "error", Text)];

const ENDPOINT_SLICE: &[Field] = &[
    always(1, "metadata", Message(OBJECT_META)),
    repeated(2, "endpoints", Message(ENDPOINT)),
    repeated(3, "ports", Message(ENDPOINT_PORT)),
    always(4, "addressType", Text),
];
const ENDPOINT: &[Field] = &[
    repeated(1, "addresses", Text),
    always(2, "conditions", Message(ENDPOINT_CONDITIONS)),
    optional(3, "hostname", Text),
    optional(4, "targetRef", Message(OBJECT_REFERENCE)),
    map(5, "deprecatedTopology", Text),
    optional(6, "nodeName", Text),
    optional(7, "zone", Text),
    optional(8, "hints", Message(ENDPOINT_HINTS)),
];
const ENDPOINT_CONDITIONS: &[Field] =
    &[optional(1, "ready", Bool), optional(2, "serving", Bool), optional(3, "terminating", Bool)];
const ENDPOINT_HINTS: &[Field] =
    &[repeated(1, "forZones", Message(HINT)), repeated(2, "forNodes", Message(HINT))];
/// The zone or node that an endpoint is for.
const HINT: &[Field] = &[always(1, "name", Text)];
const ENDPOINT_PORT: &[Field] = &[
    optional(1, "name", Text),
    optional(2, "protocol", Text),
    optional(3, "port", Int32),
    optional(4, "appProtocol", Text),
];
const OBJECT_REFERENCE: &[Field] = &[
    always(1, "kind", Text),
    always(2, "namespace", Text),
    always(3, "name", Text),
    always(4, "uid", Text),
    always(5, "apiVersion", Text),
    always(6, "resourceVersion", Text),
    always(7, "fieldPath", Text),
];

const SERVICE_CIDR: &[Field] = &[
    always(1, "metadata", Message(OBJECT_META)),
    always(2, "spec", Message(SERVICE_CIDR_SPEC)),
    always(3, "status", Message(SERVICE_CIDR_STATUS)),
];
const SERVICE_CIDR_SPEC: &[Field] = &[repeated(1, "cidrs", Text)];
const SERVICE_CIDR_STATUS: &[Field] = &[repeated(1, "conditions", Message(CONDITION))];

const NODE: &[Field] = &[
    always(1, "metadata", Message(OBJECT_META)),
    always(2, "spec", Message(NODE_SPEC)),
    always(3, "status", Message(NODE_STATUS)),
];
const NODE_SPEC: &[Field] = &[
    always(1, "podCIDR", Text),
    always(2, "externalID", Text),
    always(3, "providerID", Text),
    always(4, "unschedulable", Bool),
    repeated(5, "taints", Message(TAINT)),
    repeated(7, "podCIDRs", Text),
];
const TAINT: &[Field] = &[
    always(1, "key", Text),
    always(2, "value", Text),
    always(3, "effect", Text),
    optional(4, "timeAdded", Time),
];
const NODE_STATUS: &[Field] = &[
    map(1, "capacity", Quantity),
    map(2, "allocatable", Quantity),
    always(3, "phase", Text),
    repeated(4, "conditions", Message(NODE_CONDITION)),
    repeated(5, "addresses", Message(NODE_ADDRESS)),
    always(6, "daemonEndpoints", Message(NODE_DAEMON_ENDPOINTS)),
    always(7, "nodeInfo", Message(NODE_SYSTEM_INFO)),
    repeated(8, "images", Message(CONTAINER_IMAGE)),
    repeated(9, "volumesInUse", Text),
    repeated(10, "volumesAttached", Message(ATTACHED_VOLUME)),
];
const NODE_CONDITION: &[Field] = &[
    always(1, "type", Text),
    always(2, "status", Text),
    always(3, "lastHeartbeatTime", Time),
    always(4, "lastTransitionTime", Time),
    always(5, "reason", Text),
    always(6, "message", Text),
];
const NODE_ADDRESS: &[Field] = &[always(1, "type", Text), always(2, "address", Text)];
const NODE_DAEMON_ENDPOINTS: &[Field] = &[always(1, "kubeletEndpoint", Message(DAEMON_ENDPOINT))];
const DAEMON_ENDPOINT: &[Field] = &[always(1, "Port", Int32)];
const NODE_SYSTEM_INFO: &[Field] = &[
    always(1, "machineID", Text),
    always(2, "systemUUID", Text),
    always(3, "bootID", Text),
    always(4, "kernelVersion", Text),
    always(5, "osImage", Text),
    always(6, "containerRuntimeVersion", Text),
    always(7, "kubeletVersion", Text),
    always(8, "kubeProxyVersion", Text),
    always(9, "operatingSystem", Text),
    always(10, "architecture", Text),
];
const CONTAINER_IMAGE: &[Field] = &[repeated(1, "names", Text), always(2, "sizeBytes", Int64)];
const ATTACHED_VOLUME: &[Field] = &[always(1, "name", Text), always(2, "devicePath", Text)];
