//! The time that Services take to get into the kernel, beside the floor: the same elements sent
//! straight to the kernel, in the same run. Also how long `nft -f` takes for the same ruleset.
//!
//! `cargo bench -p switchyard-nft --bench sync [-- SERVICES ENDPOINTS]`, as root: everything
//! happens in network namespaces of its own threads. Times are medians.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Duration,
};

use switchyard_core::{
    config::NodeConfig,
    testing::{
        ManyServices, NODE, Stepped,
        bench::{TimedEngine, cluster_from_arguments, median, report, resolved, show, time},
        endpoint, service, slice,
    },
};
use switchyard_kernel::nftables::{
    Element, Elements, Family, Key, OperationKind, Table, Transaction, Transport, TransportKind,
    Value,
};
use switchyard_nft::{NftConfig, NftProxier, render};
use test_netns::{in_namespace, run_with};

/// Repetitions of a first programming.
const FIRST_ROUNDS: usize = 5;
/// The project's bound for 10,000 Services with 5 endpoints each.
const FIRST_TARGET: Duration = Duration::from_millis(500);

fn main() {
    let many = cluster_from_arguments();
    println!("{} Services x {} endpoints, nftables by netlink", many.services, many.endpoints);

    let (first, floor): (Vec<_>, Vec<_>) = (0..FIRST_ROUNDS)
        .map(|_| {
            let first = in_namespace(|| TimedEngine::start(&many, proxier()).first(&many));
            (first, first_floor(&many))
        })
        .unzip();
    report("first programming", first, floor, FIRST_TARGET, 3);

    if let Some(nft) = nft_program(&many) {
        println!("{:<28}{:>12}", "the same by `nft -f`", show(nft, 3));
    }
    let small = ManyServices { services: 10, ..many };
    println!(
        "{:<28}{:>12} with 10 Services, {} with {}",
        "chains",
        chains(&small),
        chains(&many),
        many.services
    );
    affinity();
}

/// The number of endpoints of one Service whose affinity is measured.
const AFFINE_ENDPOINTS: u16 = 10_000;
/// The number of clients that the Service remembers when an endpoint goes.
const CLIENTS: u32 = 50_000;

/// One Service with many endpoints, with ClientIP affinity beside the same without; and the removal
/// of an endpoint, which looks through all clients.
fn affinity() {
    println!("one Service with {AFFINE_ENDPOINTS} endpoints, and {CLIENTS} clients");
    let (with, without): (Vec<_>, Vec<_>) =
        (0..FIRST_ROUNDS).map(|_| (single_service(true), single_service(false))).unzip();
    for (name, at) in [("first programming", 0), ("an endpoint goes", 1)] {
        let [with, without] =
            [&with, &without].map(|times| median(times.iter().map(|t| t[at]).collect()));
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        println!(
            "{name:<28}{:>12} with affinity, {} without: {ratio:.1} times",
            show(with, 3),
            show(without, 3)
        );
    }
}

/// The times of the first sync of a single Service, and of a sync that removes an endpoint.
fn single_service(has_affinity: bool) -> [Duration; 2] {
    in_namespace(|| {
        let mut node = Stepped::new(NodeConfig::new(NODE), proxier());
        let mut sticky = service("sticky", "10.96.0.7").port("http", "TCP", 80);
        if has_affinity {
            sticky = sticky.set("spec.sessionAffinity", "ClientIP");
        }
        let slice = |first: u16| {
            let made = slice("sticky", "a").port("http", "TCP", 80);
            let address = |n: u16| format!("10.244.{}.{}", n >> 8, n & 0xff);
            (first..=AFFINE_ENDPOINTS)
                .fold(made, |made, n| made.endpoint(endpoint(&address(n), "there")))
                .apply()
        };
        node.apply([sticky.apply(), slice(1)]);
        let first = time(|| node.try_sync().expect("a sync"));
        if has_affinity {
            remember_clients();
        }
        node.apply([slice(2)]);
        [first, time(|| node.try_sync().expect("a sync"))]
    })
}

/// Adds clients to the only map of clients, as rules would.
fn remember_clients() {
    let mut transport = open();
    let dump = transport.read(&table(), Elements::Omit).expect("readable").expect("a table");
    let map = dump.sets.into_iter().find(|(name, _)| name.as_str().starts_with("clients-"));
    let map = map.expect("a map of clients").1.definition.expect("the definition").into();
    let client = |n: u32| {
        let endpoint = Ipv4Addr::from(0x0af4_0000 + 1 + n % u32::from(AFFINE_ENDPOINTS));
        let value = Value::new().address(endpoint.into()).port(80);
        Element::value(Key::new().address(Ipv4Addr::from(0xac10_0000 + n).into()), value)
    };
    let mut transaction = Transaction::new();
    transaction.add_elements(&table(), &map, (0..CLIENTS).map(client).collect());
    transport.commit(&transaction).expect("clients are added");
}

/// The transaction that a kernel without tables is sent.
fn transaction(many: &ManyServices) -> Transaction {
    render(&NftConfig::default(), &resolved(many))
}

/// The time for all elements alone.
fn first_floor(many: &ManyServices) -> Duration {
    in_namespace(|| {
        let (mut skeleton, mut elements) = (Transaction::new(), Transaction::new());
        for operation in transaction(many).operations() {
            let part = match operation.kind {
                OperationKind::AddElements(..) => &mut elements,
                _ => &mut skeleton,
            };
            part.push(&operation.table, operation.kind.clone());
        }
        let mut transport = open();
        transport.commit(&skeleton).expect("the skeleton is committed");
        time(|| transport.commit(&elements).expect("elements are committed"))
    })
}

fn chains(many: &ManyServices) -> usize {
    in_namespace(|| {
        let mut transport = open();
        transport.commit(&transaction(many)).expect("the ruleset is committed");
        let table = transport.read(&table(), Elements::Omit).expect("the table can be read");
        table.expect("the table exists").chains.len()
    })
}

/// The time that the program `nft` takes, if there is one.
fn nft_program(many: &ManyServices) -> Option<Duration> {
    Command::new("nft").arg("--version").stdout(Stdio::null()).status().ok()?;
    let text = transaction(many).to_string();
    Some(in_namespace(|| time(|| drop(run_with("nft -f -", &text)))))
}

fn open() -> Box<dyn Transport> {
    TransportKind::Netlink.open().expect("netlink is there")
}

fn proxier() -> NftProxier {
    NftProxier::new(NftConfig::default(), open())
}

fn table() -> Table {
    Table::new(Family::Ip, "kube-proxy")
}
