//! Objects of a Service whose endpoints are on twelve ports of the four pods.

use std::{collections::BTreeSet, fmt::Write};

use packet_rig::{Case, Rig, case::ServerPlan, objects};

/// The pods, with the last parts of their addresses.
const PODS: [(&str, &str, &str); 4] =
    [("a", "1", "10"), ("b", "1", "11"), ("c", "2", "10"), ("d", "2", "11")];

/// The ports of each pod. The server on the first is named after its pod, the others after pod and
/// port.
const PORTS: [u16; 3] = [8080, 8081, 8082];

/// The file that a marker is written to.
const MARKER: &str = "zz-marker.yaml";

/// An endpoint by its number, from 0 to 11, with its weight.
pub type Weighted = (usize, u16);

/// So many endpoints, all with weight 1.
pub fn even(numbers: impl IntoIterator<Item = usize>) -> Vec<Weighted> {
    numbers.into_iter().map(|number| (number, 1)).collect()
}

/// The name of the server of an endpoint.
pub fn server(number: usize) -> String {
    let (pod, ..) = PODS[number % 4];
    match PORTS[number / 4] {
        8080 => pod.to_owned(),
        port => format!("{pod}-{port}"),
    }
}

/// The Service `web`, with ports for TCP and UDP in both families, and this algorithm, if any.
pub fn service(lb_algorithm: Option<&str>) -> String {
    let spec = "type: NodePort, clusterIP: 10.96.0.10, \
                clusterIPs: [10.96.0.10, \"fd00:10:96::10\"], ipFamilies: [IPv4, IPv6], \
                ports: [{name: t, port: 80, nodePort: 30080}, \
                {name: u, port: 80, nodePort: 30080, protocol: UDP}]";
    service_of("web", lb_algorithm, spec)
}

/// A Service with this algorithm, if any, and the fields of its `spec`.
pub fn service_of(name: &str, lb_algorithm: Option<&str>, spec: &str) -> String {
    let annotation = |lb_algorithm| format!("switchyard/lb-algorithm: {lb_algorithm}");
    objects::service(name, &lb_algorithm.map(annotation).unwrap_or_default(), spec)
}

/// The EndpointSlices of `web` with these endpoints: one for each port and family.
pub fn slices(endpoints: &[Weighted]) -> String {
    slices_of("web", endpoints)
}

pub fn slices_of(service: &str, endpoints: &[Weighted]) -> String {
    let mut text = String::new();
    let ports: BTreeSet<usize> = endpoints.iter().map(|(number, _)| number / 4).collect();
    for (port, family) in ports.into_iter().flat_map(|port| [(port, 4), (port, 6)]) {
        let mut weights = Vec::new();
        let mut addresses = Vec::new();
        for (number, weight) in endpoints.iter().filter(|(number, _)| number / 4 == port) {
            let (_, node, host) = PODS[number % 4];
            let address = match family {
                4 => format!("10.244.{node}.{host}"),
                _ => format!("fd00:10:244:{node}::{host}"),
            };
            weights.push(format!("{address}={weight}"));
            addresses.push(format!("{{addresses: [\"{address}\"], nodeName: node-{node}}}"));
        }
        let number = PORTS[port];
        write!(
            text,
            "\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {service}-{number}-{family}
  labels: {{kubernetes.io/service-name: {service}}}
  annotations: {{switchyard/weights: \"{}\"}}
addressType: IPv{family}
ports: [{{name: t, port: {number}}}, {{name: u, port: {number}, protocol: UDP}}]
endpoints: [{}]
",
            weights.join(","),
            addresses.join(", ")
        )
        .unwrap();
    }
    text
}

/// Starts a rig with the servers of all twelve endpoints, and these manifests.
pub fn start(backend: &str, name: &str, manifests: String, args: &[&str]) -> Rig {
    let servers = PORTS[1..].iter().map(|port| ServerPlan {
        at: PODS.map(|(pod, ..)| pod.to_owned()).to_vec(),
        port: *port,
        suffix: format!("-{port}"),
        protocols: vec![packet_rig::Protocol::Tcp, packet_rig::Protocol::Udp],
    });
    let case = Case {
        name: name.to_owned(),
        cluster_cidr: true,
        manifests,
        servers: servers.collect(),
        args: args.iter().map(|&argument| argument.to_owned()).collect(),
        ..Case::default()
    };
    Rig::start(&case, backend).unwrap()
}

/// Waits until everything that was written before is programmed: then a Service that is written now
/// is served, too. Each call has its own number, from 1 to 255.
pub fn settle(rig: &mut Rig, call: u8) {
    use packet_rig::case::{Expectation, ProbePlan, Reaches};
    let (name, ip) = (format!("marker-{call}"), format!("10.96.1.{call}"));
    let spec = format!("clusterIP: {ip}, ports: [{{name: t, port: 80}}]");
    let marker = service_of(&name, None, &spec) + &slices_of(&name, &even([1]));
    rig.write(MARKER, &marker).unwrap();
    let to = [super::target(&format!("tcp://{ip}:80"))];
    let expect = Expectation::Reaches(Reaches::all_of([server(1)]));
    let plan = ProbePlan { count: Some(1), ..ProbePlan::new(&["client"], &to, expect) };
    rig.check(&[plan]).unwrap();
}
