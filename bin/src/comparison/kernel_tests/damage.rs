//! Damages of tables, which are found if they change a packet.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    ops::Range,
};

use proptest::test_runner::TestRunner;
use switchyard_core::{
    model::IpFamily,
    state::State,
    testing::{arbitrary_config, arbitrary_events, proptest_config},
};
use switchyard_kernel::nftables::{
    Element, Operation, OperationKind, Rule, Statement, Transaction, Verdict,
    netlink::NetlinkTransport,
    testing::{Commit, Packet, Ruleset},
};
use switchyard_nft::NftConfig;
use test_netns::in_namespace;

use super::{different, local_addresses, replace, report, sample, tables, tracker};

/// The kinds of damages, and what is drawn for one.
pub const NUMBERS: (Range<usize>, Range<usize>, Range<usize>) = (0..7, 0..10_000, 0..10_000);

/// Returns a description, and the transaction with a damage; `None` if there is nothing to damage
/// in this way.
pub fn damaged(
    healthy: &Transaction,
    numbers: (usize, usize, usize),
) -> Option<(String, Transaction)> {
    let mut damaged = healthy.clone();
    let what = damage(&mut damaged, numbers);
    let mut whole = Transaction::new();
    for table in tables() {
        whole.add_table(&table);
        // Where rules that are gone lead to, which must be there before the rules.
        whole.add_chain(&table, "nothing");
    }
    for operation in damaged.operations() {
        whole.push(&operation.table, operation.kind.clone());
    }
    (!what.is_empty()).then_some((what, whole))
}

/// The elements that an operation adds.
fn elements_of(operation: &mut Operation) -> &mut Vec<Element> {
    let OperationKind::AddElements(_, list) = &mut operation.kind else { unreachable!() };
    list
}

/// The rule that an operation adds.
fn rule_of(operation: &mut Operation) -> &mut Rule {
    let OperationKind::AddRule(_, rule) = &mut operation.kind else { unreachable!() };
    rule
}

/// Damages a transaction; returns a description.
fn damage(transaction: &mut Transaction, numbers: (usize, usize, usize)) -> String {
    let (kind, first, second) = numbers;
    let operations = transaction.operations_mut();
    let subjects: Vec<String> = operations.iter().map(|one| one.subject()).collect();
    let of = |wanted: fn(&OperationKind) -> bool, n: usize| {
        let all: Vec<usize> = operations
            .iter()
            .enumerate()
            .filter(|(_, operation)| wanted(&operation.kind))
            .map(|(index, _)| index)
            .collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    };
    let rule = |n| of(|kind| matches!(kind, OperationKind::AddRule(..)), n);
    let elements = |n| of(|kind| matches!(kind, OperationKind::AddElements(..)), n);
    // A rule in place of one that is gone: `return` at its end changes nothing.
    let nothing = || Rule::new([Statement::Verdict(Verdict::Jump("nothing".into()))]);
    match kind % 7 {
        0 => {
            let Some(index) = elements(first) else { return String::new() };
            let list = elements_of(&mut operations[index]);
            let gone = list.remove(second % list.len());
            format!("lost: {} {gone:?}", subjects[index])
        }
        1 => {
            // The data of another element of the same map.
            let maps = |kind: &OperationKind| match kind {
                OperationKind::AddElements(set, list) => set.is_map() && list.len() > 1,
                _ => false,
            };
            let Some(index) = of(maps, first) else { return String::new() };
            let list = elements_of(&mut operations[index]);
            let (a, b) = (second % list.len(), (second / list.len()) % list.len());
            let data = list[b].data.clone();
            list[a].data = data;
            format!("data of {b} at {a}: {}", subjects[index])
        }
        2 => {
            // To another set of the same type.
            let Some(from) = elements(first) else { return String::new() };
            let table = &operations[from].table;
            let OperationKind::AddElements(own, _) = &operations[from].kind else { unreachable!() };
            let alike: Vec<usize> = (0..operations.len())
                .filter(|index| *index != from && operations[*index].table == *table)
                .filter(|index| match &operations[*index].kind {
                    OperationKind::AddElements(set, _) => {
                        set.key == own.key && set.data == own.data
                    }
                    _ => false,
                })
                .collect();
            let Some(&to) = alike.get(second % alike.len().max(1)) else { return String::new() };
            let list = elements_of(&mut operations[from]);
            let moved = list.remove(second / 7 % list.len());
            let text = format!("moved: {} to {} {moved:?}", subjects[from], subjects[to]);
            let list = elements_of(&mut operations[to]);
            if list.iter().all(|one| one.key != moved.key) {
                list.push(moved);
            }
            text
        }
        3 => {
            let Some(index) = rule(first) else { return String::new() };
            let lost = rule_of(&mut operations[index]);
            let lost = std::mem::replace(lost, nothing());
            format!("lost: {} {lost:?}", subjects[index])
        }
        4 => {
            let (Some(a), Some(b)) = (rule(first), rule(first + 1)) else { return String::new() };
            let (OperationKind::AddRule(x, _), OperationKind::AddRule(y, _)) =
                (&operations[a].kind, &operations[b].kind)
            else {
                unreachable!()
            };
            if x != y || operations[a].table != operations[b].table || a == b {
                return String::new();
            }
            operations.swap(a, b);
            format!("swapped: {}, rules {a} and {b}", subjects[a])
        }
        5 => {
            let Some(index) = rule(first) else { return String::new() };
            let OperationKind::AddRule(chain, _) = operations[index].kind.clone() else {
                unreachable!()
            };
            let table = operations[index].table.clone();
            for operation in operations.iter_mut().filter(|one| one.table == table) {
                match &mut operation.kind {
                    OperationKind::AddRule(of, rule) if *of == chain => *rule = nothing(),
                    _ => {}
                }
            }
            format!("flushed: {table} {chain}")
        }
        _ => {
            let marks = |kind: &OperationKind| match kind {
                OperationKind::AddRule(_, rule) => rule.statements.iter().any(|one| {
                    matches!(
                        one,
                        Statement::MarkOr(_) | Statement::MarkSet(_) | Statement::MarkXor(_)
                    )
                }),
                _ => false,
            };
            let Some(index) = of(marks, first) else { return String::new() };
            let rule = rule_of(&mut operations[index]);
            for statement in &mut rule.statements {
                if let Statement::MarkOr(bits) | Statement::MarkSet(bits) = statement {
                    *bits <<= 1;
                }
            }
            format!("another bit: {}", subjects[index])
        }
    }
}

/// Packets to all frontends and beside them, from all kinds of sources.
pub fn packets(state: &State) -> Vec<Packet> {
    let mut packets = Vec::new();
    let sources: [(&str, Option<&'static str>); 11] = [
        ("198.51.100.9", Some("eth0")),
        ("198.51.101.9", Some("eth0")),
        ("203.0.113.9", Some("eth0")),
        ("10.1.0.77", Some("veth1")),
        ("10.244.0.7", Some("cni0")),
        ("192.168.1.1", None),
        ("192.0.2.9", None),
        ("2001:db8:1::9", Some("eth0")),
        ("2001:db8:2::9", Some("eth0")),
        ("fd01::77", Some("veth1")),
        ("fd00:1::1", None),
    ];
    for port in state.service_ports.values() {
        let pools = port.cluster.iter().chain(port.local.iter());
        let pods: BTreeSet<IpAddr> = pools.map(|one| one.address.ip()).collect();
        for frontend in &port.frontends {
            let ips = match frontend.at.ip() {
                Some(ip) => vec![ip],
                None => {
                    let own = |ip: &IpAddr| IpFamily::of(ip) == port.id.family;
                    local_addresses().into_iter().filter(own).collect()
                }
            };
            for (ip, number) in ips.iter().flat_map(|ip| [(*ip, frontend.port), (*ip, 9)]) {
                let known = sources.iter().map(|(ip, from)| (ip.parse().expect("an IP"), *from));
                let pods = pods.iter().map(|ip| (*ip, Some("veth1")));
                for (source, interface) in known.chain(pods) {
                    let source: IpAddr = source;
                    if source.is_ipv4() != ip.is_ipv4() || ip.is_loopback() && interface.is_some() {
                        continue;
                    }
                    packets.extend([0, 0x5000_0000, 0xb000_0000].map(|hash| Packet {
                        protocol: port.id.name.protocol,
                        source: SocketAddr::new(source, 40000),
                        destination: SocketAddr::new(ip, number),
                        interface,
                        hash,
                    }));
                }
            }
        }
    }
    packets
}

#[test]
fn damages_that_change_a_packet_are_found() {
    in_namespace(|| {
        let config = proptest_config(400);
        let cases = config.cases;
        let mut runner = TestRunner::new(config);
        let mut transport = NetlinkTransport::open().expect("netlink is there");
        let local = local_addresses();
        let (mut changing, mut kinds) = (0, BTreeMap::<usize, usize>::new());
        let (mut healthy, mut known) = (None, 0);
        let (mut found_alone, mut found_together) = (0, 0);
        for case in 0..cases {
            if case % 10 == 0 {
                let (node, events) =
                    sample(&mut runner, (arbitrary_config(), arbitrary_events(40)));
                let tracker = tracker(node, events);
                let transaction = switchyard_nft::render(&NftConfig::default(), tracker.state());
                let mut ruleset = Ruleset::default();
                ruleset.commit(&transaction).expect("it fits");
                healthy = Some((tracker, transaction, ruleset));
            }
            let Some((tracker, transaction, ruleset)) = &healthy else { unreachable!() };
            let numbers = sample(&mut runner, NUMBERS);
            let Some((what, first)) = damaged(transaction, numbers) else { continue };
            if !replace(&mut transport, &first) {
                continue;
            }
            let mut after = Ruleset::default();
            after.commit(&first).expect("as the kernel");
            let fates = [ruleset, &after].map(|state| Commit::new(state, state, &local));
            let packets = packets(tracker.state());
            let changed =
                packets.iter().find(|packet| fates[0].fates(packet) != fates[1].fates(packet));
            let report = report(tracker.state());
            known += 1;
            if let Some(packet) = changed {
                changing += 1;
                *kinds.entry(numbers.0).or_default() += 1;
                let fates = fates.map(|state| state.fates(packet));
                assert!(!report.is_equal(), "{what} is not found: {packet:?} {fates:?}");
            }
            if case % 4 == 0 {
                let by_service =
                    report.differences.iter().filter(|one| !one.to.starts_with("other "));
                let by_service: BTreeSet<_> =
                    by_service.filter_map(|one| one.service.clone()).collect();
                let alone = different(tracker);
                // Alone, an endpoint that other Services place on this node is left out.
                assert!(alone.is_subset(&by_service), "{what}: {alone:?}, {report}");
                found_alone += alone.len();
                found_together += by_service.len();
            }
            let is_understood = report.differences.iter().all(|one| one.understood);
            assert!(is_understood, "{what}: {report}");
        }
        println!("{known} damages, {changing} change a packet, by kinds {kinds:?}");
        assert!(changing > cases / 10 && kinds.len() >= 6, "{changing} {kinds:?}");
        let is_close = found_alone * 100 >= found_together * 95;
        assert!(is_close, "of {found_together}, {found_alone} are found alone");
    });
}
