//! Objects of a cluster, in a directory that the program follows.

use std::fs;

use tempfile::TempDir;

use crate::namespace::{HEALTH, Namespace, Program};

pub(crate) const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
";

/// A Service of the namespace `shop`, by the fields of its `spec`.
pub(crate) fn service(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{spec}}}\n---\n"
    )
}

/// The EndpointSlice of IPv4 of a Service, by its only port, such as `8080, protocol: TCP`, and its
/// endpoints.
pub(crate) fn slice(name: &str, port: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: '', port: {port}}}]\nendpoints: [{endpoints}]\n---\n"
    )
}

/// Service `web` at 10.96.0.10 with one endpoint, 10.0.0.5, on the node.
pub(crate) fn web() -> String {
    service("web", "clusterIP: 10.96.0.10, ports: [{port: 80, protocol: TCP}]")
        + &slice("web", "8080, protocol: TCP", "{addresses: [10.0.0.5], nodeName: node-1}")
}

/// A directory of manifests, which is gone when this value is.
pub(crate) struct Manifests(TempDir);

impl Manifests {
    /// With these objects.
    pub(crate) fn new(objects: &str) -> Self {
        let manifests = Self(TempDir::new().unwrap());
        manifests.write("all", objects);
        manifests
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    /// Writes a file of objects, which is renamed into place, so that no half of it is ever read.
    pub(crate) fn write(&self, name: &str, objects: &str) {
        let hidden = self.0.path().join(".writing");
        fs::write(&hidden, objects).unwrap();
        fs::rename(hidden, self.0.path().join(format!("{name}.yaml"))).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(format!("{name}.yaml"))).unwrap();
    }

    /// The arguments that name the directory and the node.
    pub(crate) fn arguments(&self) -> [&str; 3] {
        ["--manifests", self.path(), "--hostname-override=node-1"]
    }

    /// The flag that has the program serve its local socket in this directory.
    pub(crate) fn local_socket(&self) -> String {
        format!("--local-socket={}/proxy.sock", self.path())
    }

    /// Starts the program in the namespace, and waits until it is ready.
    #[track_caller]
    pub(crate) fn serve(&self, namespace: &Namespace, more: &[&str]) -> Program {
        let program = self.start(namespace, more);
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        program
    }

    pub(crate) fn start(&self, namespace: &Namespace, more: &[&str]) -> Program {
        Program::start(namespace, &[&self.arguments(), more].concat())
    }
}
