//! Objects as JSON, and from there as a source decodes them.

use std::borrow::Borrow;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{NAMESPACE, NODE};
use crate::objects::{Event, Kind, Object, ObjectKey};

/// An object in the making.
#[derive(Clone, Debug, PartialEq)]
pub struct Builder {
    kind: Kind,
    json: Value,
}

/// A Service with this name and cluster IP, and without ports. `ip` may be several, separated by
/// commas.
pub fn service(name: &str, ip: &str) -> Builder {
    let ips: Vec<&str> = ip.split(',').collect();
    let families: Vec<&str> =
        ips.iter().map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" }).collect();
    Builder::from_json(
        Kind::Service,
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "managedFields": [{"manager": "nobody reads this"}],
            },
            "spec": {
                "type": "ClusterIP",
                "selector": {"app": name},
                "clusterIP": ips[0],
                "clusterIPs": ips,
                "ipFamilies": families,
                "ports": [],
            },
            "status": {"loadBalancer": {}},
        }),
    )
}

/// An IPv4 slice of the Service `service`, without ports and endpoints; its name is
/// `{service}-{suffix}`.
pub fn slice(service: &str, suffix: &str) -> Builder {
    Builder::from_json(
        Kind::EndpointSlice,
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{suffix}"),
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "endpoints": [],
            "ports": [],
        }),
    )
}

/// An endpoint for [`Builder::endpoint`]: ready, on the node `node`.
pub fn endpoint(ip: &str, node: &str) -> Value {
    json!({
        "addresses": [ip],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": node,
        "targetRef": {"kind": "Pod", "name": "pod"},
    })
}

/// A Node with this name and internal address.
pub fn node(name: &str, ip: &str) -> Builder {
    Builder::from_json(
        Kind::Node,
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {}},
            "spec": {},
            "status": {"addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": ip},
            ]},
        }),
    )
}

/// A ServiceCIDR with these ranges.
pub fn service_cidr(name: &str, cidrs: &[&str]) -> Builder {
    Builder::from_json(
        Kind::ServiceCidr,
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": name},
            "spec": {"cidrs": cidrs},
        }),
    )
}

impl Builder {
    /// An object of `kind` that looks like `json`.
    pub fn from_json(kind: Kind, json: Value) -> Self {
        Self { kind, json }
    }

    /// Sets the field at `path`, such as `spec.ports.0.nodePort`, whatever is there. Objects on the
    /// way are made; items of lists must be there. A `/` takes the place of the dots in paths whose
    /// keys contain some: `metadata/labels/topology.kubernetes.io~1zone` (RFC 6901).
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        let separator = if path.contains('/') { '/' } else { '.' };
        let mut at = &mut self.json;
        for key in path.split(separator) {
            let key = key.replace("~1", "/").replace("~0", "~");
            at = match key.parse::<usize>() {
                Ok(i) if at.is_array() => &mut at[i],
                _ => &mut at[key.as_str()],
            };
        }
        *at = value.into();
        self
    }

    /// Adds a port: of a Service its name, protocol and port, of a slice its name, protocol and
    /// the port of the endpoints.
    #[must_use]
    pub fn port(self, name: &str, protocol: &str, port: i64) -> Self {
        let value = json!({"name": name, "protocol": protocol, "port": port});
        let path = if self.kind == Kind::Service { "/spec/ports" } else { "/ports" };
        self.push(path, value)
    }

    /// Gives the newest port of a Service a node port.
    #[must_use]
    pub fn node_port(mut self, port: i64) -> Self {
        let ports = self.json.pointer_mut("/spec/ports").and_then(Value::as_array_mut);
        if let Some(last) = ports.and_then(|ports| ports.last_mut()) {
            last["nodePort"] = port.into();
        }
        self
    }

    /// Adds a load balancer's address to a Service.
    #[must_use]
    pub fn ingress(self, ip: &str) -> Self {
        let ingress = self.json["status"]["loadBalancer"]["ingress"].clone();
        let this = match ingress {
            Value::Array(_) => self,
            _ => self.set("status.loadBalancer.ingress", json!([])),
        };
        this.push("/status/loadBalancer/ingress", json!({"ip": ip, "ipMode": "VIP"}))
    }

    /// Adds an endpoint, such as [`endpoint`] makes, to a slice.
    #[must_use]
    pub fn endpoint(self, endpoint: Value) -> Self {
        self.push("/endpoints", endpoint)
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.json["metadata"]["labels"][name] = value.into();
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.json["metadata"]["annotations"][name] = value.into();
        self
    }

    fn push(mut self, pointer: &str, value: Value) -> Self {
        match self.json.pointer_mut(pointer) {
            Some(Value::Array(list)) => list.push(value),
            other => panic!("{pointer} of this object is {other:?}, not a list"),
        }
        self
    }

    /// The object's JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The object, decoded. Panics, with the decoder's message, if it cannot be.
    #[track_caller]
    pub fn object(&self) -> Object {
        match self.kind {
            Kind::Service => Object::Service(self.decode()),
            Kind::EndpointSlice => Object::EndpointSlice(self.decode()),
            Kind::Node => Object::Node(self.decode()),
            Kind::ServiceCidr => Object::ServiceCidr(self.decode()),
        }
    }

    /// The object's key.
    #[track_caller]
    pub fn key(&self) -> ObjectKey {
        self.object().key()
    }

    /// The event that says that the object exists.
    #[track_caller]
    pub fn apply(&self) -> Event {
        Event::Apply(self.object())
    }

    /// The event that says that the object is gone.
    #[track_caller]
    pub fn delete(&self) -> Event {
        Event::Delete(self.key())
    }

    #[track_caller]
    fn decode<T: DeserializeOwned>(&self) -> T {
        // From text, as a source does it.
        let text = self.json.to_string();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }
}

/// The event that these are all objects of a kind.
pub fn list(kind: Kind, builders: impl IntoIterator<Item: Borrow<Builder>>) -> Event {
    let objects = builders.into_iter().map(|builder| builder.borrow().object()).collect();
    Event::Replace { kind, objects, malformed: Vec::new() }
}

/// A network. Panics if it is none.
pub(super) fn net(text: &str) -> ipnet::IpNet {
    crate::model::parse_cidr(text).unwrap_or_else(|error| panic!("{error}"))
}

/// A Service `web` with three endpoints, one of them on this node.
pub fn web() -> Vec<Event> {
    vec![service("web", "10.96.0.1").port("http", "TCP", 80).apply(), web_slice(&[1, 2, 3])]
}

/// The endpoints of [`web`], by the last number of their addresses; 1 is on this node.
pub fn web_slice(last: &[u8]) -> Event {
    let mut made = slice("web", "a").set("ports", json!([{"name": "http", "port": 80}]));
    for number in last {
        let on = if *number == 1 { NODE } else { "elsewhere" };
        made = made.endpoint(endpoint(&format!("10.244.0.{number}"), on));
    }
    made.apply()
}
