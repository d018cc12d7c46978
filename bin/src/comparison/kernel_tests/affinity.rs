//! Clients that are remembered: damages of what leads them back, and connections of clients that
//! are sent through the kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use proptest::test_runner::TestRunner;
use switchyard_core::{
    config::NodeConfig,
    model::Protocol,
    objects::Event,
    state::State,
    testing::{
        NODE, arbitrary_config, arbitrary_events, endpoint, proptest_config, service, slice,
    },
};
use switchyard_kernel::nftables::{
    OperationKind, Rule, SetName, Statement, Transaction, netlink::NetlinkTransport,
    testing::Packet,
};
use switchyard_nft::NftConfig;
use test_netns::in_namespace;

use super::{
    Report,
    damage::{NUMBERS, damaged, packets},
    replace, report, sample, tracker,
    wire::{Seen, Wire},
};

/// A statement that does nothing.
const PROTOCOL: Statement = Statement::Protocol(Protocol::Tcp);
/// The connections that each client makes.
const CONNECTIONS: usize = 4;
/// The most frontends of a state that clients connect to.
const MOST: usize = 8;

/// Services that remember clients, or do not, with several endpoints.
fn services(affinity: &str) -> Vec<Event> {
    let remembering = |name: &str, ip: &str, local: &str| {
        let made = service(name, ip).port("http", "TCP", 80);
        let made = made
            .set("spec.type", "NodePort")
            .set("spec.externalTrafficPolicy", local)
            .set("spec.sessionAffinity", affinity)
            .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", 600);
        let port = if name == "cart" { 30_080 } else { 30_081 };
        let slice = slice(name, "1").port("http", "TCP", 8080);
        let ends = ["10.1.0.5", "10.1.0.6"].map(|ip| endpoint(ip, NODE));
        let slice = ends.into_iter().fold(slice, |slice, one| slice.endpoint(one));
        [made.node_port(port).apply(), slice.endpoint(endpoint("10.2.0.7", "other")).apply()]
    };
    let mut events = remembering("cart", "10.96.0.11", "Local").to_vec();
    events.extend(remembering("shop", "10.96.0.12", "Cluster"));
    events
}

/// Changes the rules of each chain of a Service port whose name begins like this, or that has this
/// name; as many as before.
fn rules(transaction: &mut Transaction, of: &str, change: fn(&mut [Rule])) {
    let mut chains: BTreeMap<String, Vec<&mut Rule>> = BTreeMap::new();
    for operation in transaction.operations_mut() {
        if let OperationKind::AddRule(chain, rule) = &mut operation.kind
            && let name = chain.to_string()
            && (name == of || name.starts_with(of) && name.contains('/'))
        {
            chains.entry(format!("{} {chain}", operation.table)).or_default().push(rule);
        }
    }
    assert!(!chains.is_empty(), "{of}");
    for places in chains.into_values() {
        let mut rules: Vec<Rule> = places.iter().map(|rule| (**rule).clone()).collect();
        change(&mut rules);
        places.into_iter().zip(rules).for_each(|(place, rule)| *place = rule);
    }
}

/// Has no client remembered.
fn forget(transaction: &mut Transaction) {
    rules(transaction, "remember-clients", |rules| rules.fill(Rule::new([PROTOCOL])));
}

/// Replaces a map in the rules of chains whose names begin like this.
fn replace_map(transaction: &mut Transaction, of: &str, new: &SetName) {
    for operation in transaction.operations_mut() {
        let OperationKind::AddRule(chain, rule) = &mut operation.kind else { continue };
        for statement in rule.statements.iter_mut().filter(|_| chain.to_string().starts_with(of)) {
            if let Statement::UpdateMap { map, .. } | Statement::DnatMap { map, .. } = statement {
                *map = new.clone();
            }
        }
    }
}

/// The name of the set of `cart` or `shop` whose name begins like this.
fn set(transaction: &Transaction, prefix: &str, service: &str) -> SetName {
    let mut names = transaction.operations().iter().filter_map(|one| match &one.kind {
        OperationKind::AddSet(set) => Some(set.name.clone()),
        _ => None,
    });
    let name = names.find(|name| {
        name.as_str().starts_with(prefix) && name.as_str().contains(&format!("/{service}/"))
    });
    name.expect("a set")
}

#[test]
fn damages_of_what_leads_clients_back_are_found() {
    type Damage = fn(&mut Transaction);
    let damages: [(&str, Damage, &[&str]); 7] = [
        (
            "no client is looked up",
            |all| rules(all, "service-", |rules| rules[0] = rules[1].clone()),
            &["ns/cart", "ns/shop"],
        ),
        (
            "clients are looked up after the selection",
            |all| rules(all, "service-", |rules| rules.reverse()),
            &["ns/cart", "ns/shop"],
        ),
        ("no client is remembered", forget, &["ns/cart", "ns/shop"]),
        (
            "clients of one Service are remembered by another",
            |all| {
                let other = set(all, "clients-", "shop");
                replace_map(all, "remember-", &other);
            },
            &["ns/cart", "ns/shop"],
        ),
        (
            "clients are looked up at another Service",
            |all| {
                let other = set(all, "clients-", "shop");
                replace_map(all, "service-", &other);
            },
            &["ns/cart"],
        ),
        (
            "another timeout",
            |all| {
                for operation in all.operations_mut() {
                    if let OperationKind::AddSet(set) = &mut operation.kind
                        && set.name.as_str().starts_with("clients-")
                        && set.name.as_str().contains("cart")
                    {
                        Arc::make_mut(set).timeout = Some(Duration::from_secs(601));
                    }
                }
            },
            &["ns/cart"],
        ),
        (
            "an endpoint is not known to be one",
            |all| {
                let members = set(all, "endpoints-", "shop");
                for operation in all.operations_mut() {
                    if let OperationKind::AddElements(set, list) = &mut operation.kind
                        && set.name == members
                    {
                        list.remove(0);
                    }
                }
            },
            &["ns/shop"],
        ),
    ];
    in_namespace(|| {
        let tracker = tracker(NodeConfig::new(NODE), services("ClientIP"));
        let healthy = switchyard_nft::render(&NftConfig::default(), tracker.state());
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        assert!(replace(&mut transport, &healthy));
        let found = report(tracker.state());
        assert!(found.is_equal(), "{found}");
        for (what, damage, services) in damages {
            let mut damaged = healthy.clone();
            damage(&mut damaged);
            assert!(replace(&mut transport, &damaged), "{what}");
            let found = report(tracker.state());
            let named = found.differences.iter().filter_map(|one| one.service.as_deref());
            assert_eq!(
                named.collect::<BTreeSet<_>>(),
                services.iter().copied().collect(),
                "{what}"
            );
            assert!(found.differences.iter().all(|one| one.understood), "{what}: {found}");
        }
    });
}

#[test]
fn lookups_of_clients_that_nothing_remembers_are_found() {
    let named = |found: &Report| -> BTreeSet<String> {
        found.differences.iter().filter_map(|one| one.service.clone()).collect()
    };
    let all = ["ns/cart", "ns/shop"].map(str::to_owned).into();
    in_namespace(|| {
        let [with, without] =
            ["ClientIP", "None"].map(|affinity| tracker(NodeConfig::new(NODE), services(affinity)));
        let healthy = switchyard_nft::render(&NftConfig::default(), with.state());
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        // As if the affinity had been switched off, and only the updates were gone.
        let mut left = healthy.clone();
        forget(&mut left);
        assert!(replace(&mut transport, &left));
        let found = report(without.state());
        assert!(found.to_string().contains("clients are looked up in clients-"), "{found}");
        assert_eq!(named(&found), all, "{found}");
        // Elements that another program may add.
        assert!(replace(&mut transport, &healthy));
        assert!(report(with.state()).is_equal());
        test_netns::run("nft add set ip kube-proxy seen { type ipv4_addr; flags timeout; }");
        test_netns::run("nft insert rule ip kube-proxy services ip saddr @seen drop");
        let found = report(with.state());
        assert!(named(&found).is_superset(&all), "{found}");
        test_netns::run("nft add map ip kube-proxy every { type ipv4_addr : verdict; }");
        test_netns::run("nft flush chain ip kube-proxy services");
        test_netns::run("nft add element ip kube-proxy every { * : drop }");
        test_netns::run("nft add rule ip kube-proxy services ip saddr vmap @every");
        let found = report(with.state());
        assert!(found.to_string().contains("an element for all keys"), "{found}");
    });
}

#[test]
fn of_very_many_clients_some_are_tried() {
    in_namespace(|| {
        let made = service("cart", "10.96.0.11").port("http", "TCP", 80);
        let made = made.set("spec.sessionAffinity", "ClientIP");
        let ends = (0..2_000u32).map(|n| endpoint(&client(n, true).to_string(), "other"));
        let slices = ends.collect::<Vec<_>>();
        let slices = slices.chunks(1_000).zip(["1", "2"]).map(|(ends, number)| {
            let slice = slice("cart", number).port("http", "TCP", 8080);
            ends.iter().fold(slice, |slice, one| slice.endpoint(one.clone())).apply()
        });
        let tracker = tracker(NodeConfig::new(NODE), slices.chain([made.apply()]).collect());
        let healthy = switchyard_nft::render(&NftConfig::default(), tracker.state());
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        assert!(replace(&mut transport, &healthy));
        let found = report(tracker.state());
        assert!(found.is_equal(), "{found}");
        assert!(found.clients <= 4_096 && found.clients_left > 2_000, "{found:?}");
        assert!(found.to_string().contains("were tried"), "{found}");
    });
}

/// A packet to each of some frontends that remember clients.
fn first_packets(state: &State) -> Vec<Packet> {
    let mut state = state.clone();
    state.service_ports.retain(|_, port| port.affinity.is_some());
    let mut packets = packets(&state);
    packets.retain(|packet| {
        packet.hash == 0
            && packet.protocol != Protocol::Sctp
            && packet.interface == Some("eth0")
            && packet.destination.port() != 9
    });
    packets.dedup_by_key(|packet| packet.destination);
    let step = packets.len().div_ceil(MOST).max(1);
    packets.into_iter().step_by(step).collect()
}

/// A damage of what clients are remembered by; `None` if some dozens of damages are none.
fn damage_of_affinity(
    runner: &mut TestRunner,
    rules: &Transaction,
) -> Option<(String, Transaction)> {
    let mut all = (0..100).filter_map(|n| {
        let (kind, first, second) = sample(runner, NUMBERS);
        // Each second is a rule or a chain that is lost.
        damaged(rules, ([kind, 3, kind, 5][n % 4], first, second))
    });
    all.find(|(what, _)| ["clients", "remember", "affinity"].iter().any(|of| what.contains(of)))
}

/// An address that no other client has.
fn client(number: u32, is_ipv4: bool) -> IpAddr {
    match is_ipv4 {
        true => (0xcb00_0000 + number).to_be_bytes().into(),
        false => (0x2001_0db9_u128 << 96 | u128::from(number)).to_be_bytes().into(),
    }
}

#[test]
fn clients_that_do_not_go_back_are_found() {
    let config = proptest_config(800);
    let cases = config.cases;
    let mut runner = TestRunner::new(config);
    in_namespace(|| {
        let mut wire = match Wire::new() {
            Ok(wire) => wire,
            Err(error) => return test_netns::skipped(&format!("no interface: {error}")),
        };
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        let (mut clients, mut returned, mut lost) = (0, 0, 0);
        for case in 0..cases {
            let (node, events) = sample(&mut runner, (arbitrary_config(), arbitrary_events(60)));
            let tracker = tracker(node, events);
            let first = first_packets(tracker.state());
            if first.is_empty() {
                continue;
            }
            let mut rules = switchyard_nft::render(&NftConfig::default(), tracker.state());
            let mut what = "healthy".to_owned();
            if case % 4 == 1 {
                what = "no client is remembered".to_owned();
                forget(&mut rules);
            } else if case % 4 != 0
                && let Some(damaged) = damage_of_affinity(&mut runner, &rules)
            {
                (what, rules) = damaged;
            }
            if !replace(&mut transport, &rules) {
                continue;
            }
            let report = report(tracker.state());
            for packet in first {
                clients += 1;
                let ip = client(clients, packet.destination.is_ipv4());
                let seen = |_| {
                    let source = SocketAddr::new(ip, 1);
                    wire.send(&mut Packet { source, ..packet.clone() })
                };
                let seen: Vec<Seen> = (0..CONNECTIONS).map(seen).collect();
                let goes_back = seen.windows(2).all(|pair| match (&pair[0], &pair[1]) {
                    (Seen::Out { to, .. }, Seen::Out { to: next, .. }) => to == next,
                    (one, next) => one == next,
                });
                returned += u32::from(goes_back);
                lost += u32::from(!goes_back);
                assert!(goes_back || !report.is_equal(), "{what}: {packet:?} {seen:?}");
            }
        }
        println!("{clients} clients, of which {returned} go back to their endpoint");
        assert!(returned > 100 && lost > 3, "{clients} {returned} {lost}");
    });
}
