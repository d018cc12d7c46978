//! How long Services take to get into the kernel, beside the floor: the same elements sent
//! straight to the kernel, in the same run. Also how long `nft -f` takes for the same ruleset.
//!
//! `cargo bench -p backend-nft --bench sync [-- SERVICES ENDPOINTS]`, as root: everything happens
//! in network namespaces of its own threads. Times are medians.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use backend_nft::{
    NftConfig, NftProxier, render,
    ruleset::{Element, Family, Key, OperationKind, SetDef, Transaction, Value},
    transport::{Transport, TransportKind},
};
use proxy_core::{
    model::Protocol,
    objects::Event,
    proxier::Proxier,
    runner::{Input, Observer, Pace, Runner, RunnerConfig, SyncOutcome},
    testing::ManyServices,
    track::Tracker,
};
use test_netns::in_namespace;

/// Repetitions of a first programming.
const FIRST_ROUNDS: usize = 5;
/// Repetitions of a change.
const CHANGE_ROUNDS: usize = 300;
/// What the project promises for 10,000 Services with 5 endpoints each.
const FIRST_TARGET: Duration = Duration::from_millis(500);
const CHANGE_TARGET: Duration = Duration::from_millis(2);

fn main() {
    // Cargo passes flags such as `--bench`.
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let many = ManyServices {
        services: numbers.first().copied().unwrap_or(10_000),
        endpoints: numbers.get(1).copied().unwrap_or(5),
    };
    let cluster = Cluster(many);
    println!("{} Services x {} endpoints, nftables by netlink", many.services, many.endpoints);

    // As the program runs, and without listening to what others change: what that costs.
    for (watch, note) in [(Watch::On, ""), (Watch::Off, ", unwatched")] {
        let (first, floor): (Vec<_>, Vec<_>) = (0..FIRST_ROUNDS)
            .map(|_| (cluster.first_programming(watch), cluster.first_floor()))
            .unzip();
        report(&format!("first programming{note}"), first, floor, FIRST_TARGET);
        let (changes, floor) = cluster.changes(watch);
        report(&format!("one slice change{note}"), changes, floor, CHANGE_TARGET);
    }

    if let Some(nft) = cluster.nft_program() {
        println!("{:<28}{:>12}", "the same by `nft -f`", show(nft));
    }
    let small = Cluster(ManyServices { services: 10, ..many });
    println!(
        "{:<28}{:>12} with 10 Services, {} with {}",
        "chains",
        small.chains(),
        cluster.chains(),
        many.services
    );
}

fn report(what: &str, mut times: Vec<Duration>, mut floor: Vec<Duration>, target: Duration) {
    times.sort_unstable();
    floor.sort_unstable();
    let (time, floor) = (times[times.len() / 2], floor[floor.len() / 2]);
    println!(
        "{what:<28}{:>12}   floor {:>10}   {:.1} x floor   worst {:>10}   target {} {}",
        show(time),
        show(floor),
        time.as_secs_f64() / floor.as_secs_f64(),
        show(times[times.len() - 1]),
        show(target),
        if time <= target { "met" } else { "MISSED" },
    );
}

fn show(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

#[derive(Clone, Copy)]
struct Cluster(ManyServices);

impl Cluster {
    /// The transaction that a kernel without tables is sent.
    fn transaction(&self) -> Transaction {
        let mut tracker = Tracker::new(self.0.node());
        for event in self.0.lists() {
            tracker.apply(event);
        }
        tracker.resolve();
        render(&NftConfig::default(), tracker.state())
    }

    /// From the last input to the commit.
    fn first_programming(self, watch: Watch) -> Duration {
        in_namespace(move || {
            let engine = Engine::start(self.0, watch);
            let [services, slices] = self.0.lists();
            engine.send(services);
            engine.time(slices)
        })
    }

    fn first_floor(self) -> Duration {
        in_namespace(move || {
            let (mut skeleton, mut elements) = (Transaction::new(), Transaction::new());
            for operation in self.transaction().operations() {
                let part = match operation.kind {
                    OperationKind::AddElements(..) => &mut elements,
                    _ => &mut skeleton,
                };
                part.push(operation.family, operation.kind.clone());
            }
            let mut transport = open();
            transport.commit(&skeleton).expect("the skeleton is committed");
            time(|| transport.commit(&elements).expect("elements are committed"))
        })
    }

    /// Changes of one endpoint, each of another Service; and the same by hand.
    fn changes(self, watch: Watch) -> (Vec<Duration>, Vec<Duration>) {
        in_namespace(move || {
            let engine = Engine::start(self.0, watch);
            let [services, slices] = self.0.lists();
            engine.send(services);
            engine.time(slices);
            let change = |round: usize| {
                engine.time(Event::Apply(self.0.slice(round * 31 % self.0.services, round + 1)))
            };
            let times = (0..CHANGE_ROUNDS).map(change).collect();

            let mut transport = open();
            let map = endpoints_map();
            let element = |version: u16| {
                let vip = [10, 250, 0, 1].into();
                let key = Key::new().address(vip).protocol(Protocol::Tcp).port(80).slot(0);
                Element::value(key, Value::new().address([10, 9, 9, 9].into()).port(version))
            };
            let mut add = Transaction::new();
            add.add_elements(Family::Ip, &map, vec![element(1)]);
            transport.commit(&add).expect("an element is added");
            let floor = (1..=CHANGE_ROUNDS as u16).map(|version| {
                time(|| {
                    let mut change = Transaction::new();
                    change.delete_elements(Family::Ip, &map, vec![element(version).key]);
                    change.add_elements(Family::Ip, &map, vec![element(version + 1)]);
                    transport.commit(&change).expect("an element is changed");
                })
            });
            (times, floor.collect())
        })
    }

    fn chains(self) -> usize {
        in_namespace(move || {
            let mut transport = open();
            transport.commit(&self.transaction()).expect("the ruleset is committed");
            let table = transport.read(Family::Ip, &[]).expect("the table can be read");
            table.expect("the table exists").chains.len()
        })
    }

    /// How long the program `nft` takes, if there is one.
    fn nft_program(self) -> Option<Duration> {
        Command::new("nft").arg("--version").stdout(Stdio::null()).status().ok()?;
        let text = self.transaction().to_string();
        Some(in_namespace(move || {
            time(|| {
                let mut nft = Command::new("nft")
                    .args(["-f", "-"])
                    .stdin(Stdio::piped())
                    .spawn()
                    .expect("nft starts");
                let mut stdin = nft.stdin.take().expect("stdin is a pipe");
                stdin.write_all(text.as_bytes()).expect("nft reads");
                drop(stdin);
                assert!(nft.wait().expect("nft ends").success());
            })
        }))
    }
}

fn open() -> Box<dyn Transport> {
    TransportKind::Netlink.open().expect("netlink is there")
}

fn endpoints_map() -> Arc<SetDef> {
    let transaction = Cluster(ManyServices { services: 1, endpoints: 1 }).transaction();
    let of_map = |kind: &OperationKind| match kind {
        OperationKind::AddSet(set) if set.name.as_str() == "endpoints" => Some(set.clone()),
        _ => None,
    };
    transaction.operations().iter().find_map(|o| of_map(&o.kind)).expect("the map is declared")
}

fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Whether somebody listens to what others change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    On,
    Off,
}

/// A runner in a thread, in the namespace of the one that starts it.
struct Engine {
    inputs: tokio::sync::mpsc::Sender<Input>,
    synced: mpsc::Receiver<()>,
}

struct Tell(Mutex<mpsc::Sender<()>>);

impl Observer for Tell {
    fn synced(&self, _: &SyncOutcome<'_>) {
        // The bench may have all it wants.
        let _ = self.0.lock().expect("nobody panics").send(());
    }

    fn sync_failed(
        &self,
        error: &proxy_core::proxier::ProxierError,
        _: &proxy_core::state::Delta,
        _: Duration,
    ) {
        panic!("{error}: {:?}", std::error::Error::source(error));
    }
}

impl Engine {
    fn start(cluster: ManyServices, watch: Watch) -> Self {
        let (inputs, receiver) = tokio::sync::mpsc::channel(16);
        let (told, synced) = mpsc::channel();
        let monitored = inputs.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let proxier = NftProxier::new(NftConfig::default(), open());
            if watch == Watch::On {
                let monitor = proxier.monitor().expect("the kernel tells");
                runtime.spawn(monitor.run(monitored));
            }
            let config =
                RunnerConfig { pace: Pace::Fixed(Duration::ZERO), ..RunnerConfig::default() };
            let observer = Arc::new(Tell(Mutex::new(told)));
            let runner =
                Runner::new(Tracker::new(cluster.node()), Box::new(proxier), config, observer);
            runtime.block_on(runner.run(receiver));
        });
        Self { inputs, synced }
    }

    fn send(&self, event: Event) {
        self.inputs.blocking_send(Input::Event(event)).expect("the runner runs");
    }

    /// Sends an event; returns the time until the kernel has it.
    fn time(&self, event: Event) -> Duration {
        let start = Instant::now();
        self.send(event);
        self.synced.recv().expect("the runner syncs");
        start.elapsed()
    }
}
