//! Syncs that are divided into many transactions.

use std::net::SocketAddr;

use switchyard_core::{
    config::NodeConfig,
    model::Protocol,
    objects::Event,
    testing::{NODE, Stepped, endpoint, service, slice, sync_first},
};
use switchyard_nft_ruleset::{
    OperationKind, Refusal, TransportError,
    testing::{Commit, InterceptingTransport, Kernel, Packet, Ruleset},
};

use super::{judge::local_addresses, proxier};

/// A Service at 10.96.0.`number`, with two endpoints.
fn made(namespace: &str, name: &str, number: u8) -> [Event; 2] {
    let ip = |last: u8| format!("10.244.{number}.{last}");
    let service = service(name, &format!("10.96.0.{number}")).port("http", "TCP", 80);
    let slice = slice(name, "a").port("http", "TCP", 8080);
    let slice = [1, 2].iter().fold(slice, |slice, n| slice.endpoint(endpoint(&ip(*n), NODE)));
    [service, slice].map(|made| made.set("metadata.namespace", namespace).apply())
}

/// The endpoints that connections to 10.96.0.`number` may reach.
fn served(state: &Ruleset, number: u8) -> Vec<SocketAddr> {
    let packet = Packet {
        protocol: Protocol::Tcp,
        source: "198.51.100.9:40000".parse().expect("an address"),
        destination: SocketAddr::new([10, 96, 0, number].into(), 80),
        interface: Some("eth0"),
        hash: 0,
    };
    let local = local_addresses();
    let fates = Commit::new(state, state, &local).fates(&packet);
    fates.iter().filter_map(|fate| fate.endpoint()).collect()
}

#[test]
fn the_api_server_and_dns_are_served_first() {
    let kernel = Kernel::default();
    let mut node = Stepped::new(NodeConfig::new(NODE), proxier(kernel.clone(), 0));
    let others = (1..9).flat_map(|number| made("ns", &format!("s{number}"), number));
    let urgent = [made("kube-system", "kube-dns", 10), made("default", "kubernetes", 20)];
    node.sync(others.chain(urgent.into_iter().flatten()));
    let states = kernel.take_history();
    let [_, first, .., last] = &states[..] else { panic!("{} states", states.len()) };
    for number in [10, 20] {
        assert_eq!(served(first, number).len(), 2, "{number}");
    }
    for number in 1..9 {
        let known: Vec<_> = states.iter().map(|state| served(state, number).len()).collect();
        assert_eq!(known.first(), Some(&0), "{number}");
        assert!(known.is_sorted() && known.iter().all(|n| [0, 2].contains(n)), "{known:?}");
        assert_eq!(served(first, number), [], "{number}");
        assert_eq!(served(last, number).len(), 2, "{number}");
    }
}

/// The kernel refuses elements of two Services, which are in different transactions.
#[test]
fn all_refusals_of_a_divided_sync_are_known_at_once() {
    let kernel = Kernel::default();
    let refuses = |kind: &OperationKind| {
        let OperationKind::AddElements(_, elements) = kind else { return None };
        let refused =
            |key: &[u8]| [[10, 96, 0, 2], [10, 96, 0, 7]].iter().any(|ip| key.starts_with(ip));
        elements.iter().map(|element| element.key).find(|key| refused(key.as_slice()))
    };
    let transport = InterceptingTransport::new(Box::new(kernel.clone()), move |transaction| {
        let operations = transaction.operations().iter().enumerate();
        let mut found =
            operations.filter_map(|(at, made)| refuses(&made.kind).map(|key| (at, key)));
        let Some((operation, key)) = found.next() else { return Ok(()) };
        let (subject, reason) = (String::new(), String::new());
        let element = Some(key.into());
        let refusal = Refusal { operation, element, subject, errno: Some(libc::EINVAL), reason };
        Err(TransportError::Refused(refusal, Vec::new()))
    });
    let mut node = Stepped::new(NodeConfig::new(NODE), proxier(transport, 0));
    node.apply((1..9).flat_map(|number| made("ns", &format!("s{number}"), number)));
    let error = sync_first(&mut node.proxier, node.tracker.state()).expect_err("it is refused");
    let ports = error.refused_parts().expect("parts").ports.iter();
    let mut names: Vec<_> = ports.map(|refused| refused.port.name.to_string()).collect();
    names.sort_unstable();
    assert_eq!(names, ["ns/s2:http", "ns/s7:http"]);
    assert_eq!(served(&kernel.ruleset(), 8).len(), 2, "others are served");
}
