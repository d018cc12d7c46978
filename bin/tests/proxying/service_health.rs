//! Health of a single Service, as load balancers ask for it, where addresses change.

use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::Namespace,
};

fn answers(namespace: &Namespace, address: &str, status: u16, count: usize) {
    namespace.wait(address, "/", |got, body| {
        got == status && body.contains(&format!("\"localEndpoints\": {count},"))
    });
}

#[test]
fn addresses_that_come_and_go_are_followed() {
    let namespace = Namespace::new();
    let spec = "type: LoadBalancer, clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11, 'fd00:10::11'], \
                externalTrafficPolicy: Local, healthCheckNodePort: 31000, \
                ports: [{port: 80, protocol: TCP, nodePort: 30011}]";
    let endpoints = slice("web", "8080", "{addresses: [10.1.0.1], nodeName: node-1}");
    let manifests = Manifests::new(&(NODE.to_owned() + &service("web", spec) + &endpoints));
    let nets = "--nodeport-addresses=192.0.2.0/24,203.0.113.0/24";
    let _program = manifests.start(&namespace, &[nets]);
    answers(&namespace, "192.0.2.1:31000", 200, 1);
    // No network of IPv6 is named: everywhere.
    answers(&namespace, "[::1]:31000", 503, 0);
    namespace.0.ip("addr add 203.0.113.1/32 dev lo\naddr add 198.51.100.1/32 dev lo").unwrap();
    answers(&namespace, "203.0.113.1:31000", 200, 1);
    assert_eq!(namespace.get("198.51.100.1:31000", "/"), None, "not in these networks");
    namespace.0.ip("addr del 203.0.113.1/32 dev lo\naddr add 192.0.2.2/32 dev lo").unwrap();
    answers(&namespace, "192.0.2.2:31000", 200, 1);
    answers(&namespace, "192.0.2.1:31000", 200, 1);
}
