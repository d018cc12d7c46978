//! The time that another program waits, which commits to its own table, while many Services are
//! programmed first, and that the cluster's DNS takes to answer; the time that a removal waits
//! while many objects are listed; and the time until our rules serve again when another program
//! has deleted some.
//!
//! `cargo bench -p switchyard-nft --bench disturbed [-- SERVICES ENDPOINTS]`, as root: everything
//! happens in network namespaces of its own threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{
    net::UdpSocket,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use switchyard_core::{
    engine::Engine,
    objects::{Event, Kind},
    runner::{EngineEvent, Pace, RunnerConfig},
    testing::{
        Builder, ManyServices, Stepped,
        bench::{cluster_from_arguments, median, show, time},
        endpoint, service, slice,
    },
};
use switchyard_kernel::nftables::{
    Elements, Family, Table, Transaction, Transport, TransportKind, netlink::Listener,
    testing::InterceptingTransport,
};
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::{in_namespace, run};
use tokio::runtime;

const ROUNDS: usize = 5;

/// The cluster during whose first programming others wait.
const LARGE: ManyServices = ManyServices { services: 50_000, endpoints: 2 };

fn main() {
    println!("{} Services x {} endpoints at once", LARGE.services, LARGE.endpoints);
    in_namespace(|| others_wait(&LARGE));
    in_namespace(|| removals_wait(&LARGE));
    let many = cluster_from_arguments();
    println!("{} Services x {} endpoints, nftables by netlink", many.services, many.endpoints);
    in_namespace(|| repairs(&many));
}

/// Has another program delete what was programmed, and waits for the first commit after it, which
/// is the repair but for a deleted table, and for the end of the sync.
fn repairs(many: &ManyServices) {
    let (sender, synced) = mpsc::channel();
    let engine = Engine::builder(many.node())
        .observer(Arc::new(move |event: &EngineEvent<'_>| {
            if let EngineEvent::Synced(outcome) = event {
                // The benchmark may have ended.
                _ = sender.send((!outcome.report.drift.is_none(), outcome.duration));
            }
        }))
        .start(open())
        .expect("a thread");
    for list in many.lists() {
        engine.inputs().blocking_send(list.into()).expect("it runs");
    }
    let table = Table::new(Family::Ip, "kube-proxy");
    let mut other = netlink();
    let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Until the elements are there, and repairs are not delayed by earlier ones.
    let settle = || while synced.recv_timeout(Duration::from_secs(3)).is_ok() {};
    settle();
    let mut reads = Vec::new();
    let mut read = || {
        let (mut dump, table) = (None, &table);
        reads.push(time(|| dump = other.read(table, Elements::Include).expect("readable")));
        dump.expect("a table")
    };
    let dump = (0..ROUNDS).fold(read(), |_, _| read());
    println!("  the floor, which is to read the table: {}", show(median(reads), 1));
    let largest = dump.sets.values().max_by_key(|set| set.elements.as_ref().map_or(0, Vec::len));
    let largest = largest.expect("a set");
    let definition = Arc::new(largest.definition.clone().expect("one of ours"));
    let keys: Vec<_> = largest.elements.iter().flatten().map(|one| one.element.key).collect();
    let mut damages = [("one element", 1), ("1,000 elements", 1_000)].map(|(what, count)| {
        let mut deleted = Transaction::new();
        deleted.delete_elements(&table, &definition, keys.iter().copied().take(count).collect());
        (what, deleted)
    });
    damages.reverse();
    let mut damages = damages.to_vec();
    let (mut chain, mut all) = (Transaction::new(), Transaction::new());
    chain.flush_chain(&table, "services");
    all.delete_table(&table);
    damages.extend([("the rules of a chain", chain), ("a table", all)]);
    for (what, damage) in damages {
        let (mut commits, mut ends, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            settle();
            let own = [other.port().expect("netlink has ports")];
            let mut listener = Listener::open(&own, vec![table.clone()]).expect("netlink");
            other.commit(&damage).expect("committed");
            let deleted = Instant::now();
            runtime.block_on(listener.changed()).expect("a commit");
            commits.push(deleted.elapsed());
            let took = loop {
                let (is_repair, took) = synced.recv().expect("a sync");
                if is_repair {
                    break took;
                }
            };
            ends.push(deleted.elapsed());
            syncs.push(took);
        }
        let worst = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
        println!(
            "  {what} deleted: the first commit after {}, worst {}; \
             the sync ends after {}, worst {}; it took {}",
            show(median(commits.clone()), 1),
            show(worst(&commits), 1),
            show(median(ends.clone()), 1),
            show(worst(&ends), 1),
            show(median(syncs), 1)
        );
    }
}

/// Has a thread commit to its own table while everything is programmed first.
fn others_wait(many: &ManyServices) {
    let quiet = {
        let victim = Victim::start();
        thread::sleep(Duration::from_millis(500));
        victim.stop()
    };
    let commits = Arc::<Mutex<Vec<Duration>>>::default();
    let record = commits.clone();
    let transport = InterceptingTransport::committing(netlink(), move |inner, transaction| {
        let begun = Instant::now();
        let result = inner.commit(transaction);
        record.lock().expect("no panic").push(begun.elapsed());
        result
    });
    let proxier = NftProxier::new(NftConfig::default(), Box::new(transport));
    let mut node = Stepped::new(many.node(), proxier);
    node.apply(many.lists());
    node.apply(dns());
    let (answered, victim, begun) = (first_answer(), Victim::start(), Instant::now());
    node.try_sync().expect("synced");
    let took = begun.elapsed();
    let answered = answered.join().expect("an answer") - begun;
    let waits = victim.stop();
    let commits = commits.lock().expect("no panic").clone();
    let longest = commits.iter().max().copied().unwrap_or_default();
    println!(
        "  first programming {}, {} commits, the longest {}; the first answer of the cluster's DNS after {}",
        show(took, 0),
        commits.len(),
        show(longest, 1),
        show(answered, 1)
    );
    for (what, waits) in [("alone", quiet), ("meanwhile", waits)] {
        println!(
            "  another program's commit {what:<12} p50 {:>10}   p99.9 {:>10}   worst {:>10}   of {}",
            show(part(&waits, 0.5), 3),
            show(part(&waits, 0.999), 3),
            show(part(&waits, 1.0), 3),
            waits.len()
        );
    }
}

/// Removes Services, one after the other, while all slices are listed: unchanged ones, and then
/// with another endpoint each.
fn removals_wait(many: &ManyServices) {
    let (sender, synced) = mpsc::channel();
    let mut timing = RunnerConfig::default();
    timing.pace = Pace::Fixed(Duration::ZERO);
    let engine = Engine::builder(many.node())
        .timing(timing)
        .observer(Arc::new(move |event: &EngineEvent<'_>| {
            if let EngineEvent::Synced(outcome) = event {
                // The benchmark may have ended.
                _ = sender.send((outcome.change.after().service_ports.len(), outcome.is_part));
            }
        }))
        .start(open())
        .expect("a thread");
    let send = |event: Event| engine.inputs().blocking_send(event.into()).expect("it runs");
    let [services, slices] = many.lists();
    send(services);
    send(slices);
    let mut left = many.services;
    let is_part_when = |left| loop {
        let (services, is_part) = synced.recv().expect("synced");
        if services == left {
            return is_part;
        }
    };
    is_part_when(left);
    for (what, version) in [("unchanged", 0), ("changed", 1)] {
        let objects = (0..many.services).map(|i| many.slice(i, version)).collect();
        let list = Event::Replace { kind: Kind::EndpointSlice, objects, malformed: Vec::new() };
        let listed = Instant::now();
        send(list);
        let mut waits = Vec::new();
        loop {
            thread::sleep(Duration::from_millis(31));
            left -= 1;
            let removed = Instant::now();
            send(Event::Delete(many.service(left).key()));
            let is_part = is_part_when(left);
            waits.push(removed.elapsed());
            if !is_part {
                break;
            }
        }
        waits.sort_unstable();
        println!(
            "  removals during a list, {what:<12} p50 {:>10}   worst {:>10}   of {}; the list {}",
            show(part(&waits, 0.5), 1),
            show(part(&waits, 1.0), 1),
            waits.len(),
            show(listed.elapsed(), 0),
        );
    }
}

/// The address of the cluster's DNS, and that of its endpoint.
const DNS: (&str, &str) = ("10.96.255.10", "192.168.1.1");

/// The Service of the cluster's DNS, and its slice.
fn dns() -> [Event; 2] {
    let of_system = |built: Builder| built.set("metadata.namespace", "kube-system");
    let service = of_system(service("kube-dns", DNS.0)).port("dns", "UDP", 53);
    let slice = of_system(slice("kube-dns", "a")).port("dns", "UDP", 5353);
    [service.apply(), slice.endpoint(endpoint(DNS.1, "elsewhere")).apply()]
}

/// Asks the cluster's DNS until an answer comes, each time from another port. Returns a thread that
/// returns when it came.
fn first_answer() -> JoinHandle<Instant> {
    run("ip link set lo up");
    run(&format!("ip address add {}/32 dev lo", DNS.1));
    run("ip route add default dev lo");
    let server = UdpSocket::bind((DNS.1, 5353)).expect("an address");
    thread::spawn(move || {
        let mut question = [0];
        loop {
            let (_, client) = server.recv_from(&mut question).expect("a question");
            server.send_to(&question, client).expect("an answer");
        }
    });
    thread::spawn(|| {
        loop {
            let client = UdpSocket::bind((DNS.1, 0)).expect("a port");
            client.set_read_timeout(Some(Duration::from_millis(1))).expect("a time");
            let is_sent = client.connect((DNS.0, 53)).and_then(|()| client.send(b"?"));
            if is_sent.and_then(|_| client.recv(&mut [0])).is_ok() {
                return Instant::now();
            }
        }
    })
}

/// A thread that commits to its own table, and notes how long each commit takes.
struct Victim {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Victim {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut waits = Vec::new();
            until(&stopped, |transport, transaction| {
                waits.push(time(|| transport.commit(transaction).expect("committed")));
                // A firewall manager does not fill the processor.
                thread::sleep(Duration::from_micros(200));
            });
            waits.sort_unstable();
            waits
        });
        Self { stop, thread }
    }

    /// Returns the times, the longest last.
    fn stop(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

fn part(sorted: &[Duration], part: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get((sorted.len() as f64 * part) as usize)
        .or(sorted.get(last))
        .copied()
        .unwrap_or_default()
}

/// Adds and deletes a table of its own, by turns.
fn until(stopped: &AtomicBool, mut commit: impl FnMut(&mut dyn Transport, &Transaction)) {
    let mut transport = netlink();
    let theirs = Table::new(Family::Ip, "x");
    let (mut add, mut delete) = (Transaction::new(), Transaction::new());
    add.add_table(&theirs);
    delete.delete_table(&theirs);
    while !stopped.load(Ordering::Relaxed) {
        commit(transport.as_mut(), &add);
        commit(transport.as_mut(), &delete);
    }
}

fn open() -> NftProxier {
    NftProxier::new(NftConfig::default(), netlink())
}

fn netlink() -> Box<dyn Transport> {
    TransportKind::Netlink.open().expect("netlink is there")
}
