//! The PROXY protocol: what Services ask for, and backends that cannot send it.

use switchyard_core::{
    model::{IpFamily, Protocol, ProxyProtocol},
    proxier::{Capabilities, Mode},
    testing::{Builder, NODE, endpoint, service, slice},
    track::{Problem, Reason},
};

use crate::support::{Cluster, fields, id_of};

const ANNOTATION: &str = "switchyard/proxy-protocol";

/// A Service with a TCP and a UDP port that has this annotation, on a node with these capabilities;
/// and the problems.
fn asked(value: &str, capabilities: Capabilities) -> (Cluster, Vec<Problem>) {
    let mut cluster = Cluster::new();
    cluster.tracker.set_capabilities(capabilities, Mode::NFTABLES);
    let both = |made: Builder| made.port("t", "TCP", 80).port("u", "UDP", 53);
    let web = both(service("web", "10.0.0.1")).annotation(ANNOTATION, value);
    let slice = both(slice("web", "1")).endpoint(endpoint("10.1.0.1", NODE));
    let problems = cluster.apply(&[web, slice]);
    (cluster, problems)
}

fn of_udp(cluster: &Cluster) -> Option<ProxyProtocol> {
    cluster.find(&id_of("web", "u", Protocol::Udp, IpFamily::V4)).unwrap().proxy_protocol
}

#[test]
fn a_version_is_asked_for_by_an_annotation_and_counts_for_tcp() {
    for (value, version) in [("v1", ProxyProtocol::V1), (" v2\n", ProxyProtocol::V2)] {
        let (cluster, problems) = asked(value, Capabilities::KUBE_PROXY.with_proxy_protocol());
        assert_eq!(problems, []);
        assert_eq!(cluster.port("web", "t").proxy_protocol, Some(version));
        assert_eq!(of_udp(&cluster), None);
    }
}

#[test]
fn an_unknown_version_is_a_problem_and_connections_begin_without() {
    for value in ["", "v3", "V2", "true"] {
        let (cluster, problems) = asked(value, Capabilities::KUBE_PROXY.with_proxy_protocol());
        assert_eq!(
            fields(&problems),
            [format!("Service ns/web: metadata.annotations[{ANNOTATION}]")]
        );
        assert_eq!(problems[0].reason, Reason::Invalid);
        assert_eq!(cluster.port("web", "t").proxy_protocol, None, "{value}");
    }
}

#[test]
fn a_backend_that_ends_no_connections_cannot_send_it() {
    let (cluster, problems) = asked("v2", Capabilities::KUBE_PROXY);
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.reason, Reason::Unsupported);
    assert_eq!(
        problem.message,
        "endpoints cannot be sent the PROXY protocol in nftables mode; connections begin without"
    );
    assert_eq!(cluster.port("web", "t").proxy_protocol, None);
    assert_eq!(cluster.tracker.unsupported().v4, 1, "the TCP port alone");
}
