//! Syncs that are divided into many transactions.

use std::{
    net::SocketAddr,
    sync::mpsc::{self, Receiver},
};

use serde_json::json;
use switchyard_core::{
    config::NodeConfig,
    model::Protocol,
    objects::Event,
    proxier::Proxier,
    testing::{Builder, NODE, Stepped, endpoint, service, slice, sync_first},
};
use switchyard_kernel::nftables::{
    Key, Operation, OperationKind, Refusal, Transaction, TransportError,
    testing::{Commit, InterceptingTransport, Kernel, Packet, Ruleset},
};

use super::{super::NftProxier, judge::local_addresses, proxier};

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
    let mut config = NodeConfig::new(NODE);
    config.localhost_node_ports = true;
    let mut proxier = proxier(kernel.clone(), 0);
    // As `--init-only` leaves the table.
    proxier.prepare(&config).expect("a guard");
    kernel.take_history();
    let mut node = Stepped::new(config, proxier);
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

/// A node whose syncs have a transaction for each frontend, and these transactions.
struct Divided {
    node: Stepped<NftProxier>,
    committed: Receiver<Transaction>,
}

impl Divided {
    fn new(known: impl IntoIterator<Item = Event>) -> Self {
        let (sender, committed) = mpsc::channel();
        let hook = move |transaction: &Transaction| {
            sender.send(transaction.clone()).expect("the test goes on");
            Ok(())
        };
        let transport = InterceptingTransport::new(Box::new(Kernel::default()), hook);
        let mut node = Stepped::new(NodeConfig::new(NODE), proxier(transport, 0));
        node.sync(known);
        Self { node, committed }
    }

    fn sync(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Transaction> {
        self.committed.try_iter().for_each(drop);
        self.node.sync(events);
        self.committed.try_iter().collect()
    }
}

/// The places of the transactions that change something.
fn places(transactions: &[Transaction], changes: impl Fn(&Operation) -> bool) -> Vec<usize> {
    let all = transactions.iter().enumerate();
    let found = all.filter(|(_, made)| made.operations().iter().any(&changes));
    found.map(|(place, _)| place).collect()
}

/// Whether an operation changes an element whose key begins with an address.
fn is_about(operation: &Operation, ip: &str) -> bool {
    let ip = Key::new().address(ip.parse().expect("an address"));
    let begins = |key: &Key| key.as_slice().starts_with(ip.as_slice());
    match &operation.kind {
        OperationKind::AddElements(_, added) => added.iter().any(|element| begins(&element.key)),
        OperationKind::DeleteElements(_, deleted) => deleted.iter().any(begins),
        _ => false,
    }
}

/// The places of the transactions that replace the rules of a chain.
fn rewriting(transactions: &[Transaction]) -> Vec<usize> {
    let rewrites = |made: &Transaction| {
        let kinds = || made.operations().iter().map(|operation| &operation.kind);
        kinds().any(|kind| {
            let OperationKind::FlushChain(flushed) = kind else { return false };
            kinds().any(|kind| matches!(kind, OperationKind::AddRule(chain, _) if chain == flushed))
        })
    };
    let all = transactions.iter().enumerate();
    all.filter(|(_, made)| rewrites(made)).map(|(place, _)| place).collect()
}

/// A Service at 203.0.113.1, too.
fn external() -> Builder {
    let made = service("web", "10.96.0.1").port("http", "TCP", 80).ingress("203.0.113.1");
    made.set("spec.type", "LoadBalancer").set("spec.healthCheckNodePort", 31000)
}

/// Its endpoints, by the last number of their addresses.
fn endpoints(numbers: &[u8], node: &str) -> Event {
    let slice = slice("web", "a").port("http", "TCP", 8080);
    let add = |slice: Builder, n: &u8| slice.endpoint(endpoint(&format!("10.244.0.{n}"), node));
    numbers.iter().fold(slice, add).apply()
}

#[test]
fn a_frontend_is_no_longer_dropped_when_its_chain_has_rules() {
    let kept = external().set("spec.sessionAffinity", "ClientIP");
    let local = kept.set("spec.externalTrafficPolicy", "Local");
    let mut node = Divided::new([local.apply(), endpoints(&[1], "elsewhere")]);
    let transactions = node.sync([endpoints(&[1, 2], NODE)]);
    let rewritten = rewriting(&transactions);
    assert_eq!(rewritten.len(), 1);
    assert_eq!(places(&transactions, |made| is_about(made, "203.0.113.1")), rewritten);
}

#[test]
fn a_pool_gets_a_frontend_when_its_chain_has_fewer_slots() {
    let turns = external().annotation("switchyard/lb-algorithm", "round-robin");
    let internal = turns.clone().set("status.loadBalancer", json!({}));
    let mut node = Divided::new([internal.apply(), endpoints(&[1, 2, 3], NODE)]);
    let transactions = node.sync([turns.apply(), endpoints(&[1, 2], NODE)]);
    let rewritten = rewriting(&transactions);
    assert_eq!(rewritten.len(), 1);
    let frontend = places(&transactions, |made| is_about(made, "203.0.113.1"));
    // Slots that rules of before may select are there for a while.
    assert_eq!(frontend, [rewritten[0], transactions.len() - 1]);
}

#[test]
fn source_ranges_come_with_their_endpoints() {
    let mut node = Divided::new([]);
    let guarded = external().set("spec.loadBalancerSourceRanges", json!(["198.51.100.0/24"]));
    let transactions = node.sync([guarded.apply(), endpoints(&[1, 2], NODE)]);
    assert_eq!(places(&transactions, |made| is_about(made, "203.0.113.1")).len(), 1);
    assert!(places(&transactions, |made| is_about(made, "10.96.0.1")).len() > 1);
}

#[test]
fn a_pool_that_loses_its_last_slot_comes_before_one_that_gains() {
    let mut node = Divided::new([external().apply(), endpoints(&[1, 2], NODE)]);
    let service = service("new", "10.95.0.1").port("http", "TCP", 80);
    let slice = slice("new", "a").port("http", "TCP", 8080).endpoint(endpoint("10.244.1.1", NODE));
    let transactions = node.sync([service.apply(), slice.apply(), endpoints(&[1], NODE)]);
    let loses = places(&transactions, |made| is_about(made, "10.96.0.1"));
    let gains = places(&transactions, |made| is_about(made, "10.95.0.1"));
    assert!(loses[0] < gains[0], "{loses:?} {gains:?}");
}

#[test]
fn dns_in_one_family_comes_before_others_in_the_other_one() {
    let mut node = Divided::new([]);
    let dns = service("kube-dns", "fd00::a").port("dns", "UDP", 53);
    let slice = slice("kube-dns", "a").set("addressType", "IPv6").port("dns", "UDP", 53);
    let dns = [dns, slice.endpoint(endpoint("fd02::1", NODE))];
    let dns = dns.map(|made| made.set("metadata.namespace", "kube-system").apply());
    let transactions = node.sync(made("ns", "s1", 1).into_iter().chain(dns));
    let dns = places(&transactions, |made| is_about(made, "fd00::a"));
    let others = places(&transactions, |made| is_about(made, "10.96.0.1"));
    assert!(!dns.is_empty());
    assert!(dns.iter().max() < others.iter().min(), "{dns:?} {others:?}");
}

#[test]
fn endpoints_of_dns_are_hairpin_ones_before_they_are_reached() {
    let mut node = Divided::new([]);
    let transactions = node.sync(made("kube-system", "kube-dns", 10));
    let hairpin = places(&transactions, |made| is_about(made, "10.244.10.1"));
    let reached = places(&transactions, |made| is_about(made, "10.96.0.10"));
    assert!(hairpin.iter().max() < reached.iter().min(), "{hairpin:?} {reached:?}");
    assert!(!hairpin.is_empty());
}
