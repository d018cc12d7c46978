//! Random changes under traffic end with packets going exactly where a resolution from scratch
//! sends them.
//!
//! Each sequence makes its own network, starts the proxy and writes changed objects while
//! connections come in. Then every address is probed from every place, and compared with the
//! [explanation](switchyard_core::explain) of a new [`Tracker`](switchyard_core::track::Tracker).
//! UDP flows that began before must go where an endpoint still serves them, or may stay if nobody
//! serves their port, and the Service that never changes must lose no connection. Seeds that have
//! failed are kept in `failed.txt` beside this file, and run first.

mod flows;
mod oracle;
mod random;
mod world;

use std::{
    fs,
    io::Write,
    ops::RangeInclusive,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use packet_rig::{
    Case, LoadGenerator, LoadPlan, Protocol, Rig, Target, backend, binary, case::ServerPlan, chain,
    wait::scaled,
};
use switchyard_core::testing::{clock_seed, replayed_seed, soak_time};

use self::{oracle::Oracle, random::Random, world::World};

/// The seeds of an ordinary run.
const SEEDS: RangeInclusive<u64> = 1..=20;
/// The seeds of an ordinary run by backends that use rules of nftables mode, too, which has run
/// with all.
const FEWER_SEEDS: RangeInclusive<u64> = 1..=4;
/// The file of seeds that have failed, one in a line.
const FAILED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/sequences/failed.txt");
/// The number of sequences that run at the same time.
const AT_A_TIME: usize = 4;
/// Changes of a sequence; each concerns up to four objects.
const STEPS: usize = 10;

/// Traffic to the Service that never changes.
const STEADY: [(&str, &str); 3] = [
    ("client", "tcp://10.96.0.50:80"),
    ("b", "udp://10.96.0.50:80"),
    ("node-1", "tcp://[fd00:10:96::50]:80"),
];

/// Traffic to Services that change.
const UNSTEADY: [(&str, &str); 4] = [
    ("client", "tcp://10.96.0.10:80"),
    ("b", "udp://10.96.0.11:80"),
    ("client", "udp://192.168.10.1:30080"),
    ("node-1", "tcp://10.96.0.12:80"),
];

#[test]
fn random_changes_under_traffic() {
    let _busy = crate::keep_busy();
    let backends = crate::all_backends();
    let sequences: Box<dyn Iterator<Item = u64> + Send> = match (replayed_seed(), soak_time()) {
        (Some(seed), _) => Box::new([seed].into_iter()),
        (None, Some(time)) => Box::new(seeds_for(time)),
        (None, None) => Box::new(failed().into_iter().chain(SEEDS)),
    };
    let is_ordinary = replayed_seed().is_none() && soak_time().is_none();
    let sequences = sequences
        .flat_map(|seed| backends.iter().map(move |backend| (seed, *backend)))
        .filter(|(seed, backend)| {
            let is_common = !["nftables-json", backend::USERSPACE, "ipvs"].contains(backend);
            !is_ordinary || is_common || FEWER_SEEDS.contains(seed) || !SEEDS.contains(seed)
        });
    let sequences = Mutex::new(sequences);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let Some((seed, backend)) = sequences.lock().unwrap().next() else { return };
                    println!("SWITCHYARD_SEED={seed} SWITCHYARD_BACKENDS={backend}");
                    if let Err(message) = run(seed, backend) {
                        keep(seed);
                        failures.lock().unwrap().push(format!(
                            "SWITCHYARD_SEED={seed} SWITCHYARD_BACKENDS={backend}: {message}"
                        ));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The seeds that have failed.
fn failed() -> Vec<u64> {
    let text = fs::read_to_string(FAILED).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("failed.txt has a number in each line")).collect()
}

/// Keeps a seed that has failed, and that an ordinary run does not have.
fn keep(seed: u64) {
    if SEEDS.contains(&seed) || failed().contains(&seed) {
        return;
    }
    let file = fs::OpenOptions::new().create(true).append(true).open(FAILED);
    if let Err(error) = file.and_then(|mut file| writeln!(file, "{seed}")) {
        eprintln!("{FAILED}: {error}");
    }
}

/// Seeds from the clock, until `time` has passed.
fn seeds_for(time: Duration) -> impl Iterator<Item = u64> + Send {
    let started = Instant::now();
    std::iter::repeat_with(clock_seed).take_while(move |_| started.elapsed() < time)
}

fn run(seed: u64, backend: &str) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut world = World::new(&mut random);
    let case = Case {
        name: format!("sequence-{seed}"),
        cluster_cidr: true,
        // All backends have the same addresses then.
        args: vec!["--nodeport-addresses".to_owned(), "primary".to_owned()],
        servers: vec![ServerPlan {
            at: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            port: world::OTHER_PORT,
            suffix: oracle::OTHER_SUFFIX.to_owned(),
            protocols: vec![Protocol::Tcp, Protocol::Udp],
        }],
        manifests: world::steady(),
        files: world.files(),
        ..Case::default()
    };
    let binary = binary::find().map_err(|error| chain(&error))?;
    let mut rig = Rig::prepare(&case, backend, &binary).map_err(|error| chain(&error))?;
    let result = rig.start_again().map_err(|error| chain(&error));
    let result = result.and_then(|()| follow(&mut rig, &mut world, &mut random, backend));
    result.map_err(|message| {
        let files = world.files();
        let objects: Vec<&str> = files.values().map(String::as_str).collect();
        format!("{message}\n--- objects\n{}\n{}", objects.join("\n"), rig.proxy.diagnostics())
    })
}

fn follow(
    rig: &mut Rig,
    world: &mut World,
    random: &mut Random,
    backend: &str,
) -> Result<(), String> {
    let topology = rig.topology.clone();
    let mut flows = flows::begin(&topology, &world::targets())?;
    let steady = start_load(rig, &STEADY);
    let unsteady = start_load(rig, &UNSTEADY);
    for _ in 0..STEPS {
        for (name, text) in world.change(random) {
            let done = match text {
                Some(text) => rig.write(&name, &text),
                None => rig.remove(&name),
            };
            done.map_err(|error| chain(&error))?;
        }
        thread::sleep(Duration::from_millis(random.below(60)));
    }
    drop(unsteady);
    for (target, load) in STEADY.iter().zip(steady) {
        let report = load.finish().map_err(|error| chain(&error))?;
        if report.new_connections.failed() + report.persistent.failed() > 0 {
            return Err(format!("the untouched Service lost traffic: {target:?} {report:?}"));
        }
    }
    let known = world.resolve(backend);
    let oracle = Oracle { known: &known, topology: &topology };
    let probes = oracle.probes(&world::targets());
    println!("{}", oracle::summary(&probes));
    rig.check(&probes)?;
    flows::check(&mut flows, oracle)
}

fn start_load(rig: &Rig, routes: &[(&str, &str)]) -> Vec<LoadGenerator> {
    let start = |(from, to): &(&str, &str)| {
        let target: Target = to.parse().unwrap();
        let plan = LoadPlan {
            workers: 1,
            persistent: 1,
            pause: scaled(Duration::from_millis(8)),
            // A busy machine must not look like a lost connection.
            timeout: scaled(Duration::from_secs(5)),
            ..LoadPlan::new(&rig.topology.place(from).unwrap().namespace, target)
        };
        LoadGenerator::start(&plan)
    };
    routes.iter().map(start).collect()
}
