//! Health of single Services, as load balancers ask for it.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
};

use packet_rig::http;
use tempfile::TempDir;

use crate::namespace::{Namespace, Program};

const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

/// A Service for load balancers, in both families.
fn service(name: &str, number: u8, port: u16, policy: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.{number}
  clusterIPs: [10.96.0.{number}, 'fd00:10::{number}']
  externalTrafficPolicy: {policy}
  healthCheckNodePort: {port}
  ports: [{{port: 80, protocol: TCP, nodePort: 300{number}}}]
"
    )
}

/// Endpoints of the Service on this node: by their last number, and whether they are ready.
fn slice(name: &str, endpoints: &[(u8, bool)]) -> String {
    let endpoint = |(number, ready): &(u8, bool)| {
        format!(
            "{{addresses: [10.1.0.{number}], nodeName: node-1, \
             conditions: {{ready: {ready}, serving: true, terminating: {}}}}}",
            !ready
        )
    };
    let endpoints: Vec<String> = endpoints.iter().map(endpoint).collect();
    format!(
        "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: '', port: 8080, protocol: TCP}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

struct Manifests(TempDir);

impl Manifests {
    fn new() -> Self {
        let manifests = Self(TempDir::new().unwrap());
        manifests.write("node", NODE);
        manifests
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        // Renamed into place, so that no half of it is ever read.
        let hidden: &Path = &self.0.path().join(".writing");
        fs::write(hidden, text).unwrap();
        fs::rename(hidden, self.0.path().join(format!("{name}.yaml"))).unwrap();
    }

    fn start(&self, namespace: &Namespace, arguments: &[&str]) -> Program {
        let common = ["--manifests", self.path(), "--hostname-override=node-1", "-v=2"];
        Program::start(namespace, &[&common, arguments].concat())
    }
}

fn answers(namespace: &Namespace, address: &str, status: u16, count: usize) {
    namespace.wait(address, "/", |got, body| {
        got == status && body.contains(&format!("\"localEndpoints\": {count},"))
    });
}

#[track_caller]
fn refuses(namespace: &Namespace, address: &str) {
    let start = std::time::Instant::now();
    while let Some(answer) = namespace.get(address, "/") {
        assert!(start.elapsed().as_secs() < 10, "{address} still answers: {answer:?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn load_balancers_are_told_of_local_endpoints() {
    let namespace = Namespace::new();
    let manifests = Manifests::new();
    manifests.write("web", &service("web", 11, 31000, "Local"));
    manifests.write("slice", &slice("web", &[(1, true), (2, true)]));
    let program = manifests.start(&namespace, &[]);

    // nftables mode serves node ports, and this too, on the node's own address.
    answers(&namespace, "192.0.2.1:31000", 200, 2);
    let address: SocketAddr = "192.0.2.1:31000".parse().unwrap();
    let answer = http::get(&namespace.0, address, "/whatever").unwrap();
    assert_eq!(
        answer.body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\
         \n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
    );
    for header in [
        "Content-Type: application/json",
        "X-Content-Type-Options: nosniff",
        "X-Load-Balancing-Endpoint-Weight: 2",
    ] {
        assert!(answer.head.contains(header), "{header} is not in\n{}", answer.head);
    }
    refuses(&namespace, "127.0.0.1:31000");
    // IPv6 has an address here, and no endpoints.
    answers(&namespace, "[::1]:31000", 503, 0);

    // Terminating endpoints serve, but load balancers should look elsewhere.
    manifests.write("slice", &slice("web", &[(1, false), (2, false)]));
    answers(&namespace, "192.0.2.1:31000", 503, 0);
    manifests.write("slice", &slice("web", &[(1, true), (2, false)]));
    answers(&namespace, "192.0.2.1:31000", 200, 1);

    manifests.write("web", &service("web", 11, 31001, "Local"));
    answers(&namespace, "192.0.2.1:31001", 200, 1);
    refuses(&namespace, "192.0.2.1:31000");
    manifests.write("web", &service("web", 11, 31001, "Cluster"));
    refuses(&namespace, "192.0.2.1:31001");
    refuses(&namespace, "[::1]:31001");
    manifests.write("web", &service("web", 11, 31001, "Local"));
    answers(&namespace, "192.0.2.1:31001", 200, 1);
    manifests.write("web", "");
    refuses(&namespace, "192.0.2.1:31001");

    let (signal, log) = program.terminate();
    assert_eq!(signal, Some(15), "{log}");
    assert!(!log.contains("Failed to start healthcheck"), "{log}");
}

#[test]
fn addresses_that_come_and_go_are_followed() {
    let namespace = Namespace::new();
    let manifests = Manifests::new();
    manifests.write("web", &service("web", 11, 31000, "Local"));
    manifests.write("slice", &slice("web", &[(1, true)]));
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
    let manifests = Manifests::new();
    let bind = || TcpListener::bind("192.0.2.1:31000").unwrap();
    let blocker = namespace.0.run(bind).unwrap();
    manifests.write("web", &service("web", 11, 31000, "Local"));
    manifests.write("slice", &slice("web", &[(1, true)]));
    let program = manifests.start(&namespace, &[]);
    answers(&namespace, "[::1]:31000", 503, 0);
    // Several syncs, one complaint.
    for ready in [false, true, false, true] {
        manifests.write("slice", &slice("web", &[(1, ready), (2, true)]));
        namespace.wait_for_service_ports(1);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    drop(blocker);
    manifests.write("slice", &slice("web", &[(1, true), (2, true), (3, true)]));
    answers(&namespace, "192.0.2.1:31000", 200, 3);
    let (_, log) = program.terminate();
    let complaints: Vec<&str> =
        log.lines().filter(|line| line.contains("Failed to start healthcheck")).collect();
    assert_eq!(complaints.len(), 1, "{complaints:#?}");
    assert!(complaints[0].contains("service=\"shop/web\" address=\"192.0.2.1:31000\""), "{log}");
}
