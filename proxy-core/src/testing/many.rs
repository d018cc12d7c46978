//! A cluster of a given size, for benchmarks.

use serde_json::json;

use super::Builder;
use crate::{
    config::{LocalPodsConfig, NodeConfig},
    objects::{Event, Kind, Object},
};

/// Many Services alike: one TCP port, one slice of endpoints on other nodes. Addresses stay
/// different up to 2,000,000 Services and 7,000,000 endpoints.
#[derive(Clone, Copy, Debug)]
pub struct ManyServices {
    /// The number of Services.
    pub services: usize,
    /// The number of endpoints each has.
    pub endpoints: usize,
}

impl ManyServices {
    /// A node that sees them.
    pub fn node(&self) -> NodeConfig {
        let pods = "10.128.0.0/9".parse().expect("a network");
        NodeConfig {
            local_pods: LocalPodsConfig::ClusterCidr(vec![pods]),
            ..NodeConfig::new(super::NODE)
        }
    }

    /// Service `i`.
    pub fn service(&self, i: usize) -> Object {
        let (a, b, c) = (96 + i / 62_500, i % 62_500 / 250, i % 250 + 1);
        let json = json!({
            "metadata": {"namespace": super::NAMESPACE, "name": format!("svc-{i}")},
            "spec": {"clusterIP": format!("10.{a}.{b}.{c}"), "ports": [{"name": "http", "port": 80}]},
        });
        Builder::from_json(Kind::Service, json).object()
    }

    /// The slice of Service `i`. In each version but 0 its last endpoint is another one.
    pub fn slice(&self, i: usize, version: usize) -> Object {
        let address =
            |n: usize| format!("10.{}.{}.{}", 128 + n / 62_500, n % 62_500 / 250, n % 250 + 1);
        let endpoints: Vec<_> = (0..self.endpoints)
            .map(|e| match e + 1 == self.endpoints && version > 0 {
                true => address(7_000_000 + version % 200_000),
                false => address(i * self.endpoints + e),
            })
            .map(|ip| json!({"addresses": [ip], "nodeName": "elsewhere"}))
            .collect();
        let json = json!({
            "metadata": {
                "namespace": super::NAMESPACE,
                "name": format!("svc-{i}-x"),
                "labels": {"kubernetes.io/service-name": format!("svc-{i}")},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": endpoints,
        });
        Builder::from_json(Kind::EndpointSlice, json).object()
    }

    /// The lists of Services and of slices.
    pub fn lists(&self) -> [Event; 2] {
        let list = |kind, objects| Event::Replace { kind, objects, malformed: Vec::new() };
        [
            list(Kind::Service, (0..self.services).map(|i| self.service(i)).collect()),
            list(Kind::EndpointSlice, (0..self.services).map(|i| self.slice(i, 0)).collect()),
        ]
    }
}
