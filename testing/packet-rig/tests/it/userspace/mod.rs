//! What userspace mode alone can do, and what it leaves behind.

mod churn;
mod leftovers;
mod proxy_protocol;
mod retries;

use packet_rig::{Case, Rig, backend::USERSPACE, binary, case::MANIFESTS};

/// Starts a rig in userspace mode, with these objects, and waits until the proxy has programmed them.
fn start(name: &str, manifests: String) -> Rig {
    let case = Case { name: name.to_owned(), cluster_cidr: true, manifests, ..Case::default() };
    let mut rig = Rig::start(&case, USERSPACE, &binary::find().unwrap()).unwrap();
    rig.wait_ready().unwrap();
    rig
}

/// The Service `web` at 10.96.0.10:80, with these annotations.
fn service(annotations: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, annotations: {{{annotations}}}}}
spec: {{type: NodePort, clusterIP: 10.96.0.10, ports: [{{port: 80, nodePort: 30080}}]}}
"
    )
}

/// A slice of endpoints of `web` with a port.
fn slice(name: &str, port: u16, addresses: &[&str]) -> String {
    let endpoints = addresses.iter().map(|address| format!("{{addresses: [{address}]}}"));
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{name}, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: \"\", port: {port}}}]
endpoints: [{}]
",
        endpoints.collect::<Vec<_>>().join(", ")
    )
}

/// Replaces the objects.
fn write(rig: &Rig, manifests: &str) {
    rig.write(MANIFESTS, manifests).unwrap();
}
