//! `externalTrafficPolicy: Local` through rolling updates: no request fails, though at times the
//! only endpoint of the node is one that terminates (KEP-1669).

use std::{collections::BTreeMap, thread, time::Duration};

use packet_rig::{
    Case, Rig,
    case::{Expectation, ProbePlan, Reaches},
    objects::service,
};

use crate::traffic::{Route, Traffic};

const LOAD: [Route; 3] = [
    ("client", "tcp://192.168.10.1:30080"),
    ("client", "tcp://203.0.113.10:80"),
    ("client", "udp://203.0.113.10:80"),
];

/// An endpoint of `node-1`, with its conditions.
type Pod = (&'static str, &'static str);
const READY: &str = "ready: true, serving: true, terminating: false";
const STARTING: &str = "ready: false, serving: false, terminating: false";
const ENDING: &str = "ready: false, serving: true, terminating: true";
const ENDED: &str = "ready: false, serving: false, terminating: true";

/// The steps of an update with a surge of one pod, of one that ends the old pod first, and back,
/// with the servers that new connections reach in the end of a step.
const STEPS: [(&[Pod], &[&str]); 8] = [
    (&[("10", READY), ("11", STARTING)], &["a"]),
    (&[("10", READY), ("11", READY)], &["a", "b"]),
    (&[("10", ENDING), ("11", READY)], &["b"]),
    (&[("10", ENDED), ("11", READY)], &["b"]),
    (&[("11", READY)], &["b"]),
    (&[("11", ENDING)], &["b"]),
    (&[("11", ENDING), ("10", STARTING)], &["b"]),
    (&[("11", ENDED), ("10", READY)], &["a"]),
];

fn slice(pods: &[Pod]) -> String {
    let endpoint = |(number, conditions): &Pod| {
        format!(
            "{{addresses: [10.244.1.{number}], nodeName: node-1, conditions: {{{conditions}}}}}"
        )
    };
    let endpoints: Vec<String> = pods.iter().map(endpoint).collect();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-4, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: t, port: 8080}}, {{name: u, port: 8080, protocol: UDP}}]\n\
         endpoints: [{}]\n",
        endpoints.join(", ")
    )
}

fn update(backend: &str) {
    let spec = "type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31080, \
                clusterIP: 10.96.0.10, ports: [{name: t, port: 80, nodePort: 30080}, \
                {name: u, port: 80, nodePort: 30080, protocol: UDP}]";
    let status = "status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}\n";
    let case = Case {
        name: "rolling-update".to_owned(),
        cluster_cidr: true,
        manifests: service("web", "", spec) + status,
        files: BTreeMap::from([("slice.yaml".to_owned(), slice(&[("10", READY)]))]),
        ..Case::default()
    };
    let mut rig = Rig::start(&case, backend).unwrap();
    let reaches = |servers: &[&str]| {
        let to: Vec<_> = LOAD.iter().map(|(_, to)| to.parse().unwrap()).collect();
        [ProbePlan::new(&["client"], &to, Expectation::Reaches(Reaches::all_of(servers.to_vec())))]
    };
    rig.check(&reaches(&["a"])).unwrap();
    let load = Traffic::start_repeating(&rig, &LOAD, 3);
    for (step, (pods, servers)) in STEPS.iter().enumerate() {
        thread::sleep(Duration::from_millis(200));
        rig.write("slice.yaml", &slice(pods)).unwrap();
        rig.check(&reaches(servers)).unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    load.assert_nothing_lost();
}

#[test]
fn no_request_fails_through_a_rolling_update_with_local_endpoints() {
    let _calm = crate::stay_calm();
    for backend in crate::backends() {
        println!("--- {backend}");
        update(backend);
    }
}
