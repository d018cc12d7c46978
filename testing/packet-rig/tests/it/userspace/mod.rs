//! userspace mode under load, and what it leaves behind.

mod churn;
mod leftovers;

use packet_rig::{
    Case, Rig,
    backend::USERSPACE,
    case::MANIFESTS,
    objects::{service, slice},
};

/// Starts a rig in userspace mode, with these objects, and waits until the proxy has programmed
/// them.
fn start(name: &str, manifests: String) -> Rig {
    let case = Case { name: name.to_owned(), cluster_cidr: true, manifests, ..Case::default() };
    Rig::start(&case, USERSPACE).unwrap()
}

/// The Service `web` at 10.96.0.10:80, with endpoints at these addresses.
fn web(addresses: &[&str]) -> String {
    let spec = "type: NodePort, clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]";
    service("web", "", spec) + &slice("web", "{name: '', port: 8080}", addresses)
}

fn write(rig: &Rig, manifests: &str) {
    rig.write(MANIFESTS, manifests).unwrap();
}
