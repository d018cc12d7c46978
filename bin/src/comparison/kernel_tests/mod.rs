//! Random states and damages, on the real kernel, judged by an independent walk of packets.

mod affinity;
mod damage;
mod kube_proxy;
mod wire;

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use proptest::{collection::vec, prelude::*, strategy::ValueTree, test_runner::TestRunner};
use switchyard_core::{
    config::NodeConfig,
    explain::Known,
    objects::Event,
    state::State,
    testing::{
        NODE, Stepped, arbitrary_config, arbitrary_events, proptest_config, service, service_cidr,
        web,
    },
    track::Tracker,
};
use switchyard_kernel::nftables::{
    Elements, Family, Table, Transaction, Transport, TransportKind, netlink::NetlinkTransport,
};
use switchyard_nft::{NftConfig, NftProxier, PROFILE};
use test_netns::in_namespace;

use super::{
    objects::Objects,
    report::Report,
    service::{Expected, TableReader},
};

fn tables() -> [Table; 2] {
    Family::ALL.map(|family| Table::new(family, "kube-proxy"))
}

/// The addresses of the node, in both families.
fn local_addresses() -> BTreeSet<IpAddr> {
    ["192.0.2.9", "192.168.1.1", "127.0.0.1", "fd00:1::1", "::1"]
        .map(|ip| ip.parse().expect("an IP"))
        .into()
}

fn report(state: &State) -> Report {
    let mut report = Report::default();
    for table in tables() {
        let ports = state.service_ports.values();
        let addresses = local_addresses();
        let objects = Objects::new(table.family, &state.node, ports, &addresses);
        report.compare(&table, &objects, Duration::MAX, Duration::MAX).expect("a table");
    }
    report
}

/// Compares each Service by itself, and returns those that differ.
fn different(tracker: &Tracker) -> BTreeSet<String> {
    let reader = TableReader::new(NftConfig::default());
    let mut found = BTreeSet::new();
    for name in Known::names(tracker) {
        let Some(expected) = Expected::new(name, tracker) else { continue };
        let report = reader.compare_at(&expected, &local_addresses()).expect("tables");
        let own = report.differences.iter().filter_map(|one| one.service.clone());
        assert!(own.clone().all(|one| one == name.to_string()), "{report}");
        found.extend(own);
    }
    found
}

/// Replaces the tables by those of a transaction.
fn replace(transport: &mut NetlinkTransport, transaction: &Transaction) -> bool {
    let mut whole = Transaction::new();
    for table in tables() {
        whole.add_table(&table);
        whole.delete_table(&table);
    }
    for operation in transaction.operations() {
        whole.push(&operation.table, operation.kind.clone());
    }
    transport.commit(&whole).is_ok()
}

fn tracker(config: NodeConfig, events: Vec<Event>) -> Tracker {
    let mut tracker = Tracker::new(config);
    tracker.set_capabilities(PROFILE.capabilities, PROFILE.mode);
    tracker.set_interface_addresses(local_addresses());
    for event in events {
        tracker.apply(event);
    }
    tracker.resolve();
    tracker
}

/// A value of a strategy.
fn sample<S: Strategy>(runner: &mut TestRunner, strategy: S) -> S::Value {
    strategy.new_tree(runner).expect("a value").current()
}

#[test]
fn healthy_states_raise_nothing() {
    in_namespace(|| {
        let config = proptest_config(48);
        let cases = config.cases;
        let mut runner = TestRunner::new(config);
        let mut classes = 0;
        for _ in 0..cases {
            let (node, stories) =
                sample(&mut runner, (arbitrary_config(), vec(arbitrary_events(12), 1..4)));
            let transport = TransportKind::Netlink.open().expect("netlink is there");
            let mut stepped = Stepped::new(node, NftProxier::new(NftConfig::default(), transport));
            stepped.tracker.set_interface_addresses(local_addresses());
            for events in stories {
                for event in events {
                    stepped.tracker.apply(event);
                }
                stepped.tracker.resolve();
                stepped.try_sync().expect("a sync");
                let report = report(stepped.tracker.state());
                assert!(report.is_equal(), "{report}\n{:#?}", stepped.tracker.state());
                assert_eq!(different(&stepped.tracker), BTreeSet::new());
                classes += report.classes;
            }
        }
        assert!(classes > 1000, "{classes}");
    });
}

#[test]
fn a_service_is_named_with_what_differs() {
    in_namespace(|| {
        let events = web().into_iter().chain([
            service("idle", "10.96.0.9").port("http", "TCP", 80).apply(),
            service_cidr("all", &["10.96.0.0/16"]).apply(),
        ]);
        let tracker = tracker(NodeConfig::new(NODE), events.collect());
        let transaction = switchyard_nft::render(&NftConfig::default(), tracker.state());
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        assert!(!report(tracker.state()).is_equal(), "there is no table");
        assert!(replace(&mut transport, &transaction));
        let found = report(tracker.state());
        assert!(found.is_equal() && found.classes > 20, "{found}");
        let [table, _] = tables();
        let dump = transport.read(&table, Elements::Include).expect("readable").expect("a table");
        let set = dump.sets.values().find(|set| {
            set.definition.as_ref().is_ok_and(|set| set.name.as_str() == "tcp-endpoints")
        });
        let set = set.expect("the map");
        let (definition, elements) = (set.definition.clone().expect("known"), set.elements.clone());
        let key = elements.expect("elements")[0].element.key;
        let mut lost = Transaction::new();
        lost.delete_elements(&table, &definition.into(), vec![key]);
        transport.commit(&lost).expect("it was there");
        let found = report(tracker.state());
        let first = found.differences.first().expect("a difference");
        assert_eq!(first.service.as_deref(), Some("ns/web"), "{found}");
        // What is not known is not taken for equal.
        replace(&mut transport, &transaction);
        test_netns::run("nft insert rule ip kube-proxy services meta skuid 0 drop");
        let found = report(tracker.state());
        let is_named =
            found.differences.iter().any(|one| one.kernel.contains("not understood: meta"));
        assert!(is_named, "{found}");
    });
}
