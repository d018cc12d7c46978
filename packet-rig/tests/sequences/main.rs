//! Random changes under traffic end with packets going exactly where a resolution from scratch
//! says.
//!
//! Each sequence makes a network of its own, starts the proxy and writes changed Services,
//! EndpointSlices, Nodes and ServiceCIDRs to its directory while connections come in. Then every
//! address is probed from every place, and compared with what a new
//! [`Tracker`](proxy_core::track::Tracker) makes of the objects that are left. UDP flows that began
//! before must go where somebody still serves them, and a Service that nobody touches must lose no
//! connection meanwhile.
//!
//! `PACKET_RIG_SEED` repeats one sequence, `PACKET_RIG_SEQUENCES` says how many there are, and
//! `SWITCHYARD_BIN` and `SWITCHYARD_BACKEND` name the proxy and its backend.

mod flows;
mod oracle;
mod random;
mod world;

use std::{
    env,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use packet_rig::{Case, LoadGenerator, LoadPlan, Protocol, Rig, Target, case::ServerPlan, proxy};

use self::{random::Random, world::World};

/// Sequences, unless the environment says otherwise.
const SEQUENCES: u64 = 20;
/// How many run at the same time.
const AT_A_TIME: usize = 4;
/// Changes of a sequence; each concerns up to four objects.
const STEPS: usize = 10;

/// Traffic to the Service that nobody touches.
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
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (first, count) = match number("PACKET_RIG_SEED") {
        Some(seed) => (seed, number("PACKET_RIG_SEQUENCES").unwrap_or(1)),
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            (now.as_secs(), number("PACKET_RIG_SEQUENCES").unwrap_or(SEQUENCES))
        }
    };
    println!("seeds from {first}");
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let seed = first.wrapping_add(number);
                    if let Err(message) = run(seed) {
                        failures.lock().unwrap().push(format!("PACKET_RIG_SEED={seed}: {message}"));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn backend() -> String {
    env::var("SWITCHYARD_BACKEND").unwrap_or_else(|_| "nftables".to_owned())
}

fn run(seed: u64) -> Result<(), String> {
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
        manifests: world::STEADY.to_owned(),
        files: world.files(),
        ..Case::default()
    };
    let binary = proxy::find_binary().map_err(|error| error.to_string())?;
    let mut rig = Rig::start(&case, &backend(), &binary).map_err(|error| error.to_string())?;
    let result = rig.wait_ready().map_err(|error| error.to_string());
    let result = result.and_then(|()| follow(&mut rig, &mut world, &mut random));
    result.map_err(|message| {
        let files = world.files();
        let objects: Vec<&str> = files.values().map(String::as_str).collect();
        format!("{message}\n--- objects\n{}\n{}", objects.join("\n"), rig.proxy.diagnostics())
    })
}

fn follow(rig: &mut Rig, world: &mut World, random: &mut Random) -> Result<(), String> {
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
            done.map_err(|error| error.to_string())?;
        }
        thread::sleep(Duration::from_millis(random.below(60)));
    }
    drop(unsteady);
    for (target, load) in STEADY.iter().zip(steady) {
        let report = load.finish().map_err(|error| error.to_string())?;
        if report.new_connections.failed() + report.persistent.failed() > 0 {
            return Err(format!("the untouched Service lost traffic: {target:?} {report:?}"));
        }
    }
    let state = world.resolve();
    let probes = oracle::probes(&state, &rig.topology, &world::targets());
    println!("{}", oracle::summary(&probes));
    rig.check(&probes)?;
    flows::check(&mut flows, &state, &topology)
}

fn start_load(rig: &Rig, routes: &[(&str, &str)]) -> Vec<LoadGenerator> {
    let start = |(from, to): &(&str, &str)| {
        let target: Target = to.parse().unwrap();
        let plan = LoadPlan {
            workers: 1,
            persistent: 1,
            pause: Duration::from_millis(8),
            // A busy machine must not look like a lost connection.
            timeout: Duration::from_secs(5),
            ..LoadPlan::new(&rig.topology.place(from).unwrap().namespace, target)
        };
        LoadGenerator::start(&plan)
    };
    routes.iter().map(start).collect()
}
