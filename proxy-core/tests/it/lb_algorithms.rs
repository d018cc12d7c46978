//! Load balancing of connections: what Services ask for, what the backend can do, and what is
//! reported.

use switchyard_core::{
    config::NodeConfig,
    model::{IpFamily, LbAlgorithm, PerFamily, Protocol},
    objects::Kind,
    proxier::{Capabilities, Mode},
    state::Pool,
    testing::{Builder, NODE, endpoint, service, slice},
    track::{Problem, Reason},
};

use crate::support::{Cluster, id_of, slice_of_web, web};

const LB_ALGORITHM: &str = "switchyard/lb-algorithm";
const CILIUM: &str = "service.cilium.io/lb-algorithm";
const CALICO: &str = "lb.projectcalico.org/external-traffic-strategy";
const KUBE_ROUTER: &str = "kube-router.io/service.scheduler";

fn endpoints(count: u8) -> Builder {
    slice_of_web("1", 1..=count)
}

fn everything() -> Capabilities {
    LbAlgorithm::ALL.into_iter().fold(Capabilities::KUBE_PROXY, Capabilities::with).with_weights()
}

fn cluster(capabilities: Capabilities) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.tracker.set_capabilities(capabilities, Mode::NFTABLES);
    cluster
}

fn lb_algorithm(cluster: &Cluster) -> LbAlgorithm {
    cluster.port("web", "").lb_algorithm
}

/// The algorithm with these annotations, on a node that can do everything, and the problems.
fn asked(annotations: &[(&str, &str)]) -> (LbAlgorithm, Vec<Problem>) {
    let mut cluster = cluster(everything());
    let service =
        annotations.iter().fold(web(), |made, (name, value)| made.annotation(name, *value));
    let problems = cluster.apply(&[service, endpoints(2)]);
    (lb_algorithm(&cluster), problems)
}

#[test]
fn every_algorithm_can_be_asked_for() {
    assert_eq!(asked(&[]), (LbAlgorithm::Random, vec![]));
    for lb_algorithm in LbAlgorithm::ALL {
        assert_eq!(asked(&[(LB_ALGORITHM, lb_algorithm.as_str())]), (lb_algorithm, vec![]));
        assert_eq!(asked(&[(LB_ALGORITHM, &format!(" {lb_algorithm}\n"))]), (lb_algorithm, vec![]));
    }
}

#[test]
fn annotations_of_other_proxies_are_read_as_they_read_them() {
    use LbAlgorithm::*;
    for (annotation, value, lb_algorithm) in [
        (CILIUM, "random", Random),
        (CILIUM, "maglev", Maglev),
        (CILIUM, " Maglev", Maglev),
        (CILIUM, "least-conn", LeastConnections),
        (CALICO, "maglev", Maglev),
        (CALICO, "MAGLEV", Maglev),
        (KUBE_ROUTER, "rr", RoundRobin),
        (KUBE_ROUTER, "wrr", RoundRobin),
        (KUBE_ROUTER, "lc", LeastConnections),
        (KUBE_ROUTER, "wlc", LeastConnections),
        (KUBE_ROUTER, "sh", SourceHash),
        (KUBE_ROUTER, "dh", DestinationHash),
        (KUBE_ROUTER, "mh", Maglev),
        (KUBE_ROUTER, "sed", ShortestExpectedDelay),
        (KUBE_ROUTER, "nq", NeverQueue),
        (KUBE_ROUTER, "lblc", LocalityLeastConnections),
        (KUBE_ROUTER, "lblcr", LocalityLeastConnectionsReplicated),
        (KUBE_ROUTER, "fo", WeightedFailover),
        (KUBE_ROUTER, "ovf", WeightedOverflow),
    ] {
        assert_eq!(asked(&[(annotation, value)]), (lb_algorithm, vec![]), "{annotation}: {value}");
    }
    let (_, problems) = asked(&[(KUBE_ROUTER, "RR")]);
    assert_eq!(problems.len(), 1, "kube-router reads exact names");
}

#[test]
fn one_annotation_counts() {
    let all = [
        (KUBE_ROUTER, "rr"),
        (CALICO, "maglev"),
        (CILIUM, "random"),
        (LB_ALGORITHM, "source-hash"),
    ];
    let used: Vec<LbAlgorithm> = (1..=4).map(|count| asked(&all[..count]).0).collect();
    use LbAlgorithm::*;
    assert_eq!(used, [RoundRobin, Maglev, Random, SourceHash]);
    // Not even a value that is unknown lets another one count.
    let (used, problems) = asked(&[(LB_ALGORITHM, "fair"), (CILIUM, "maglev")]);
    assert_eq!((used, problems.len()), (Random, 1));
}

#[test]
fn an_unknown_algorithm_is_a_problem_and_the_default_is_used() {
    let mut cluster = Cluster::with(|config| config.lb_algorithm = Some(LbAlgorithm::Maglev));
    cluster.tracker.set_capabilities(everything(), Mode::NFTABLES);
    let problems = cluster.apply(&[web().annotation(LB_ALGORITHM, "Maglev "), endpoints(2)]);
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.object, web().key());
    assert_eq!(problem.field, "metadata.annotations[switchyard/lb-algorithm]");
    assert_eq!(problem.reason, Reason::Invalid);
    assert_eq!(
        problem.message,
        "`Maglev` is not one of random, round-robin, source-hash, maglev, least-connections, \
         shortest-expected-delay, never-queue, locality-least-connections, \
         locality-least-connections-replicated, destination-hash, weighted-failover, \
         weighted-overflow; connections are spread as the node's default says"
    );
    assert_eq!(lb_algorithm(&cluster), LbAlgorithm::Maglev);
    for (annotation, possible) in
        [(CILIUM, "random, maglev, least-conn;"), (CALICO, "maglev;"), (KUBE_ROUTER, "rr, wrr, ")]
    {
        let (used, problems) = asked(&[(annotation, "x")]);
        assert_eq!(used, LbAlgorithm::Random);
        assert_eq!(problems[0].field, format!("metadata.annotations[{annotation}]"));
        let text = format!("`x` is not one of {possible}");
        assert!(problems[0].message.starts_with(&text), "{}", problems[0].message);
    }
}

#[test]
fn the_backend_has_a_default_that_the_configuration_replaces() {
    let backend = everything().with_default_algorithm(LbAlgorithm::LeastConnections);
    let mut cluster = cluster(backend);
    let asking =
        service("asking", "10.0.0.2").port("", "TCP", 80).annotation(LB_ALGORITHM, "random");
    assert_eq!(cluster.apply(&[web(), endpoints(2), asking]), []);
    let algorithms =
        |cluster: &Cluster| [lb_algorithm(cluster), cluster.port("asking", "").lb_algorithm];
    assert_eq!(algorithms(&cluster), [LbAlgorithm::LeastConnections, LbAlgorithm::Random]);
    cluster.take_changes();
    let mut config = NodeConfig::new(NODE);
    config.local_pods = Cluster::local_pods();
    config.lb_algorithm = Some(LbAlgorithm::SourceHash);
    cluster.tracker.set_config(config);
    cluster.events([]);
    assert_eq!(algorithms(&cluster), [LbAlgorithm::SourceHash, LbAlgorithm::Random]);
    assert_eq!(cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
}

#[test]
fn the_default_of_the_backend_is_never_reported_as_replaced() {
    // The kernel may lack a scheduler, which its backend reports itself.
    let mut cluster = cluster(Capabilities::KUBE_PROXY.with_default_algorithm(LbAlgorithm::Maglev));
    assert_eq!(cluster.tracker.replaced_default_algorithm(), None);
    assert_eq!(cluster.apply(&[web(), endpoints(2)]), []);
    assert_eq!(
        (lb_algorithm(&cluster), cluster.tracker.unsupported().v4),
        (LbAlgorithm::Random, 0)
    );
}

#[test]
fn what_the_backend_cannot_do_is_reported_once() {
    let mut cluster = cluster(Capabilities::KUBE_PROXY);
    let asking = web().annotation(LB_ALGORITHM, "maglev");
    let problems = cluster.apply(&[asking.clone(), endpoints(2)]);
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.object, web().key());
    assert_eq!(problem.field, "metadata.annotations[switchyard/lb-algorithm]");
    assert_eq!(problem.reason, Reason::Unsupported);
    let message = "`maglev` cannot be programmed in nftables mode; connections are spread by \
                   `random` instead";
    assert_eq!(problem.message, message);
    assert_eq!(lb_algorithm(&cluster), LbAlgorithm::Random);

    let degraded = cluster.tracker.degraded();
    assert_eq!(degraded.len(), 1);
    assert_eq!(degraded[0].port, id_of("web", "", Protocol::Tcp, IpFamily::V4));
    assert_eq!(degraded[0].reason, message);
    assert_eq!(cluster.tracker.unsupported(), PerFamily { v4: 1, v6: 0 });

    // It is in the syncs that cover the port, and in comparisons.
    cluster.take_changes();
    assert_eq!(cluster.tracker.degraded(), []);
    assert_eq!(cluster.apply(&[endpoints(3)]), [], "reported already");
    assert_eq!(cluster.tracker.degraded(), degraded);
    cluster.take_changes();
    cluster.tracker.request_resync();
    assert_eq!(cluster.tracker.degraded(), degraded);

    // It ends with the annotation, and may begin again.
    assert_eq!(cluster.apply(&[web()]), []);
    assert_eq!((cluster.tracker.degraded(), cluster.tracker.unsupported().v4), (vec![], 0));
    assert_eq!(cluster.apply([&asking]).len(), 1);
    assert_eq!(cluster.delete([&asking]), []);
    assert_eq!((cluster.tracker.degraded(), cluster.tracker.unsupported().v4), (vec![], 0));
    assert_eq!(cluster.apply(&[asking]).len(), 1);
}

#[test]
fn a_synonym_is_named_by_its_own_name() {
    let mut cluster = cluster(Capabilities::KUBE_PROXY);
    let problems = cluster.apply(&[web().annotation(KUBE_ROUTER, "lc")]);
    assert_eq!(problems[0].field, format!("metadata.annotations[{KUBE_ROUTER}]"));
    assert!(problems[0].message.starts_with("`least-connections` cannot"), "{problems:?}");
}

#[test]
fn ports_and_families_are_one_problem() {
    let mut cluster = cluster(Capabilities::KUBE_PROXY);
    let service = service("web", "10.0.0.1,fd00::1")
        .port("b", "UDP", 80)
        .port("a", "TCP", 80)
        .annotation(LB_ALGORITHM, "never-queue");
    assert_eq!(cluster.apply([&service]).len(), 1);
    assert_eq!(cluster.tracker.unsupported(), PerFamily { v4: 2, v6: 2 });
    assert_eq!(cluster.tracker.degraded().len(), 4);
    cluster.take_changes();
    cluster.apply([&service.set("spec.sessionAffinity", "ClientIP")]);
    assert_eq!(cluster.tracker.degraded().len(), 4);
    cluster.replace(Kind::Service, &[]);
    assert_eq!(cluster.tracker.unsupported(), PerFamily::default());
}

#[test]
fn the_larger_pool_decides() {
    let mut cluster = cluster(Capabilities::KUBE_PROXY.with_at_most(LbAlgorithm::Maglev, 2));
    let asking = web()
        .set("spec.type", "NodePort")
        .set("spec.externalTrafficPolicy", "Local")
        .annotation(LB_ALGORITHM, "maglev")
        .node_port(30000);
    let elsewhere = slice("web", "2")
        .port("", "TCP", 8080)
        .endpoint(endpoint("10.1.1.1", "node-2"))
        .endpoint(endpoint("10.1.1.2", "node-2"));
    assert_eq!(cluster.apply(&[asking.clone(), endpoints(2)]), []);
    assert_eq!(lb_algorithm(&cluster), LbAlgorithm::Maglev);
    let problems = cluster.apply([&elsewhere]);
    assert_eq!(
        problems[0].message,
        "`maglev` can be programmed for at most 2 endpoints in nftables mode; connections to more \
         are spread by `random` instead"
    );
    let port = cluster.port("web", "");
    assert_eq!(
        (port.lb_algorithm, port.local.len(), port.cluster.len()),
        (LbAlgorithm::Random, 2, 4)
    );
    cluster.delete(&[elsewhere]);
    assert_eq!(
        (lb_algorithm(&cluster), cluster.tracker.unsupported().v4),
        (LbAlgorithm::Maglev, 0)
    );
}

/// A backend with a thousand slots for each frontend with Maglev, and as many as weights otherwise.
#[test]
fn slots_of_all_frontends_are_limited() {
    let slots = |lb_algorithm, pool: &Pool| match lb_algorithm {
        LbAlgorithm::Maglev => 1_000,
        _ => pool.iter().map(|endpoint| endpoint.weight as usize).sum(),
    };
    let mut cluster = cluster(everything().with_slots(slots));
    let with_ports = |count: i64| {
        let service = service("web", "10.0.0.1").annotation(LB_ALGORITHM, "maglev");
        (1..=count).fold(service, |made, port| made.port(&format!("p{port}"), "TCP", port))
    };
    let weighed = |weight: &str| {
        let slice = (1..=501)
            .fold(slice("web", "1"), |made, port| made.port(&format!("p{port}"), "TCP", 8080));
        slice
            .annotation("switchyard/weights", format!("10.1.0.1={weight}"))
            .endpoint(endpoint("10.1.0.1", NODE))
            .endpoint(endpoint("10.1.0.2", NODE))
    };
    let used = |cluster: &Cluster| {
        let port = cluster.port("web", "p1");
        let weights: Vec<u32> = port.cluster.iter().map(|endpoint| endpoint.weight).collect();
        (port.lb_algorithm, weights)
    };
    assert_eq!(cluster.apply(&[with_ports(500), weighed("900")]), []);
    assert_eq!(used(&cluster), (LbAlgorithm::Maglev, vec![900, 1]));
    let problems = cluster.apply([&with_ports(501)]);
    let of_lb_algorithm = "`maglev` would take more than 500000 elements for all frontends of the \
                           Service in nftables mode; connections are spread by `source-hash` \
                           instead";
    assert_eq!(problems[0].message, of_lb_algorithm);
    assert_eq!(used(&cluster), (LbAlgorithm::SourceHash, vec![900, 1]));
    let problems = cluster.apply([&weighed("1000")]);
    let of_weights = "unequal shares of endpoints would take more than 500000 elements for all \
                      frontends of the Service in nftables mode; connections are spread evenly";
    assert!(problems.iter().any(|problem| problem.message == of_weights), "{problems:?}");
    assert_eq!(used(&cluster), (LbAlgorithm::Random, vec![1, 1]));
    cluster.apply([&with_ports(1)]);
    assert_eq!(used(&cluster), (LbAlgorithm::Maglev, vec![1000, 1]));
    assert_eq!(cluster.tracker.unsupported().v4, 0);
}

#[test]
fn a_default_that_cannot_be_programmed_is_no_problem_of_services() {
    let mut cluster = Cluster::with(|config| config.lb_algorithm = Some(LbAlgorithm::Maglev));
    cluster.tracker.set_capabilities(Capabilities::KUBE_PROXY, Mode::IPTABLES);
    assert_eq!(
        cluster.tracker.replaced_default_algorithm(),
        Some((LbAlgorithm::Maglev, LbAlgorithm::Random))
    );
    assert_eq!(cluster.apply(&[web(), endpoints(2)]), []);
    assert_eq!(
        (lb_algorithm(&cluster), cluster.tracker.unsupported().v4),
        (LbAlgorithm::Random, 0)
    );
    // But a default that this Service alone cannot have is.
    let some = Capabilities::KUBE_PROXY.with_at_most(LbAlgorithm::Maglev, 1);
    cluster.tracker.set_capabilities(some, Mode::NFTABLES);
    assert_eq!(cluster.tracker.replaced_default_algorithm(), None);
    let problems = cluster.events([]);
    assert_eq!((problems.len(), problems[0].field.as_str()), (1, ""));
    assert!(
        problems[0].message.starts_with("the node's default, `maglev` can be programmed for at")
    );
    assert_eq!(cluster.tracker.unsupported().v4, 1);
}

/// With the overflow, a weight is the number of connections that an endpoint takes, so that 10 and
/// 20 are not 1 and 2.
#[test]
fn weights_of_the_overflow_are_not_reduced() {
    let weights = |lb_algorithm: LbAlgorithm, capabilities| {
        let mut cluster = cluster(capabilities);
        let weighed = |n, weight| {
            slice("web", n).port("", "TCP", 8080).annotation("switchyard/weight", weight)
        };
        cluster.apply(&[
            web().annotation(LB_ALGORITHM, lb_algorithm.as_str()),
            weighed("1", "10").endpoint(endpoint("10.1.0.1", NODE)),
            weighed("2", "20").endpoint(endpoint("10.1.0.2", NODE)),
        ]);
        cluster.port("web", "").cluster.iter().map(|e| e.weight).collect::<Vec<_>>()
    };
    assert_eq!(weights(LbAlgorithm::WeightedOverflow, everything()), [10, 20]);
    assert_eq!(weights(LbAlgorithm::WeightedFailover, everything()), [1, 2]);
    let without = everything().with_at_most(LbAlgorithm::WeightedOverflow, 0);
    assert_eq!(weights(LbAlgorithm::WeightedOverflow, without), [1, 2]);
}
