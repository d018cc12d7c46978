//! The cost of source ranges as elements of a set, beside a rule for each range: to program, to
//! change, and for each packet that is refused.
//!
//! `cargo bench -p switchyard-nft --bench ranges`, as root: everything happens in network
//! namespaces of its own threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{
    net::{Ipv4Addr, UdpSocket},
    process::Command,
    time::Duration,
};

use switchyard_core::{
    config::NodeConfig,
    objects::Event,
    testing::{
        NODE, Stepped,
        bench::{median, show, time},
        endpoint, service, slice,
    },
};
use switchyard_kernel::nftables::{
    Family, OperationKind, Rule, Selector, Side, Statement, Table, Transaction, TransportKind,
    Verdict,
};
use switchyard_nft::{NftConfig, NftProxier, render};
use test_netns::in_namespace;

const ROUNDS: usize = 3;
/// The address of the first Service.
const ADDRESS: &str = "203.0.113.1";

fn main() {
    for (services, ranges) in [(1, 60_000), (1_000, 5)] {
        measure(services, ranges);
    }
}

fn measure(services: usize, ranges: usize) {
    println!("{services} Services x {ranges} source ranges, nftables by netlink");
    let (mut first, mut change, mut restart) = (Vec::new(), Vec::new(), Vec::new());
    let (mut floor, mut rules) = (Vec::new(), Vec::new());
    let mut packets = None;
    for _ in 0..ROUNDS {
        in_namespace(|| {
            let mut node = Stepped::new(NodeConfig::new(NODE), open());
            node.apply(cluster(services, ranges));
            first.push(time(|| node.try_sync().expect("synced")));
            node.apply([lb(0, ranges + 1)]);
            change.push(time(|| node.try_sync().expect("synced")));
            restart.push(time(|| node.restart(open())));
            let state = node.tracker.state();
            let as_sets = render(&NftConfig::default(), state);
            let as_rules = as_rules(&as_sets);
            let commit = |transaction: &Transaction| {
                in_namespace(|| {
                    let mut transport = TransportKind::Netlink.open().expect("netlink is there");
                    time(|| transport.commit(transaction).expect("committed"))
                })
            };
            floor.push(commit(&as_sets));
            rules.push(commit(&as_rules));
            packets.get_or_insert_with(|| {
                let with_sets = refused(20_000);
                let mut transport = TransportKind::Netlink.open().expect("netlink is there");
                let mut flush = Transaction::new();
                for family in Family::ALL {
                    flush.delete_table(&Table::new(family, "kube-proxy"));
                }
                transport.commit(&flush).expect("committed");
                transport.commit(&as_rules).expect("committed");
                (with_sets, refused(500))
            });
        });
    }
    let line =
        |what: &str, times: Vec<Duration>| println!("  {what:<44}{:>12}", show(median(times), 3));
    line("first programming", first);
    line("  the commit alone", floor);
    line("  the commit alone, a rule for each range", rules);
    line("one range more", change);
    line("restart without a change", restart);
    let (with_sets, with_rules) = packets.expect("measured");
    line("a refused packet", vec![with_sets]);
    line("  with a rule for each range", vec![with_rules]);
}

fn open() -> NftProxier {
    let transport = TransportKind::Netlink.open().expect("netlink is there");
    NftProxier::new(NftConfig::default(), transport)
}

fn cluster(services: usize, ranges: usize) -> Vec<Event> {
    let slices = (0..services).map(|n| {
        slice(&format!("lb-{n}"), "a")
            .set("ports", serde_json::json!([{"name": "dns", "protocol": "UDP", "port": 53}]))
            .endpoint(endpoint("10.244.0.5", "elsewhere"))
            .apply()
    });
    (0..services).map(|n| lb(n, ranges)).chain(slices).collect()
}

/// A load balancer with so many ranges, none of which has a neighbour.
fn lb(n: usize, ranges: usize) -> Event {
    let ranges: Vec<String> = (0..ranges as u32)
        .map(|range| format!("{}/32", Ipv4Addr::from(0x0b00_0000 + 2 * range)))
        .collect();
    let base: u32 = ADDRESS.parse::<Ipv4Addr>().expect("an address").into();
    let address =
        if n == 0 { Ipv4Addr::from(base) } else { Ipv4Addr::from(0x0c00_0000 + n as u32) };
    service(&format!("lb-{n}"), &format!("10.96.{}.{}", n / 250, n % 250 + 1))
        .port("dns", "UDP", 53)
        .set("spec.type", "LoadBalancer")
        .ingress(&address.to_string())
        .set("spec.loadBalancerSourceRanges", ranges)
        .apply()
}

/// The same with a rule for each range, and without sets of ranges.
fn as_rules(transaction: &Transaction) -> Transaction {
    let mut sets = std::collections::HashMap::new();
    for operation in transaction.operations() {
        if let OperationKind::AddElements(set, elements) = &operation.kind
            && set.interval
        {
            sets.insert(set.name.clone(), elements.clone());
        }
    }
    let mut made = Transaction::new();
    for operation in transaction.operations() {
        match &operation.kind {
            OperationKind::AddSet(set) | OperationKind::AddElements(set, _) if set.interval => {}
            OperationKind::AddRule(chain, rule) => match &rule.statements[0] {
                Statement::Lookup { key, set } if key[..] == [Selector::SourceAddress] => {
                    for element in &sets[set] {
                        let (first, _) = element.key.as_interval().expect("an interval");
                        let rule = Rule::new([
                            Statement::Address {
                                side: Side::Source,
                                negated: false,
                                net: first.into(),
                            },
                            Statement::Verdict(Verdict::Return),
                        ]);
                        made.add_rule(&operation.table, chain.clone(), rule);
                    }
                }
                _ => made.add_rule(&operation.table, chain.clone(), rule.clone()),
            },
            kind => made.push(&operation.table, kind.clone()),
        }
    }
    made
}

/// The time that it takes to send a packet that the source ranges refuse, on its way out of this
/// namespace.
fn refused(packets: usize) -> Duration {
    for arguments in
        ["link set lo up", "address replace 192.0.2.9/24 dev lo", "route replace default dev lo"]
    {
        let status =
            Command::new("ip").args(arguments.split(' ')).status().expect("ip is installed");
        assert!(status.success(), "ip {arguments}");
    }
    let socket = UdpSocket::bind("192.0.2.9:0").expect("a socket");
    let send = |_| {
        time(|| {
            let error = socket.send_to(&[0], (ADDRESS, 53)).expect_err("refused");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
        })
    };
    median((0..packets).map(send).collect())
}
