//! Health of single Services, as load balancers ask for it.

use std::net::TcpListener;

use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::Namespace,
};

/// The node, and the Service for load balancers in both families, whose health is served at a port.
fn web(port: u16, policy: &str) -> String {
    let spec = format!(
        "type: LoadBalancer, clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11, 'fd00:10::11'], \
         externalTrafficPolicy: {policy}, healthCheckNodePort: {port}, \
         ports: [{{port: 80, protocol: TCP, nodePort: 30011}}]"
    );
    NODE.to_owned() + &service("web", &spec)
}

/// Endpoints of the Service on this node: by their last number, and whether they are ready.
fn endpoints(endpoints: &[(u8, bool)]) -> String {
    let endpoint = |(number, ready): &(u8, bool)| {
        format!(
            "{{addresses: [10.1.0.{number}], nodeName: node-1, \
             conditions: {{ready: {ready}, serving: true, terminating: {}}}}}",
            !ready
        )
    };
    slice("web", "8080", &endpoints.iter().map(endpoint).collect::<Vec<_>>().join(", "))
}

fn answers(namespace: &Namespace, address: &str, status: u16, count: usize) {
    namespace.wait(address, "/", |got, body| {
        got == status && body.contains(&format!("\"localEndpoints\": {count},"))
    });
}

#[test]
fn addresses_that_come_and_go_are_followed() {
    let namespace = Namespace::new();
    let manifests = Manifests::new(&web(31000, "Local"));
    manifests.write("slice", &endpoints(&[(1, true)]));
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

#[test]
fn a_port_in_use_is_tried_again() {
    let namespace = Namespace::new();
    let bind = || TcpListener::bind("192.0.2.1:31000").unwrap();
    let blocker = namespace.0.run(bind).unwrap();
    let manifests = Manifests::new(&web(31000, "Local"));
    manifests.write("slice", &endpoints(&[(1, true)]));
    let program = manifests.start(&namespace, &["-v=2"]);
    answers(&namespace, "[::1]:31000", 503, 0);
    // Several syncs, one complaint.
    for ready in [false, true, false, true] {
        manifests.write("slice", &endpoints(&[(1, ready), (2, true)]));
        namespace.wait_for_service_ports(1);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(blocker);
    manifests.write("slice", &endpoints(&[(1, true), (2, true), (3, true)]));
    answers(&namespace, "192.0.2.1:31000", 200, 3);
    let (_, log) = program.terminate();
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.contains("Failed to start healthcheck")).collect();
    assert_eq!(complaints.len(), 1, "{complaints:#?}");
    assert!(complaints[0].contains("service=\"shop/web\" address=\"192.0.2.1:31000\""), "{log}");
}
