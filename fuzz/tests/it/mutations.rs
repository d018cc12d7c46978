//! Each target with the inputs of its corpus, as they are and changed at random.

use std::{
    fs, panic,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use switchyard_core::testing::{clock_seed, replayed_seed, soak_time};
use switchyard_fuzz::{
    TARGETS,
    mutate::{Random, mutated},
};

/// The executions of a target in an ordinary run, and its seed.
const EXECUTIONS: usize = 1000;
const SEED: u64 = 1;

/// More than all targets together take, in bytes.
const MOST_MEMORY: usize = 512 << 20;

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

pub fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn inputs(target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        fs::read_dir(corpus(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Runs a target. An input that makes it panic becomes a file of the corpus.
fn run(target: &str, read: fn(&[u8]), input: &[u8]) {
    if let Err(why) = panic::catch_unwind(|| read(input)) {
        let file = corpus(target).join(format!("panicked-{}", clock_seed()));
        match fs::write(&file, input) {
            Ok(()) => eprintln!("the input is in {}", file.display()),
            Err(error) => eprintln!("{}: {error}; the input: {input:?}", file.display()),
        }
        panic::resume_unwind(why);
    }
}

fn changed(target: &str, read: fn(&[u8])) {
    let inputs = inputs(target);
    inputs.iter().for_each(|input| run(target, read, input));
    let seed = replayed_seed().unwrap_or_else(|| soak_time().map_or(SEED, |_| clock_seed()));
    println!("to repeat these inputs: SWITCHYARD_SEED={seed}");
    let (mut random, begun, mut done) = (Random(seed), Instant::now(), 0);
    let (mut longest, soak) = (Duration::ZERO, soak_time().unwrap_or_default());
    while done < EXECUTIONS || begun.elapsed() < soak {
        let input = mutated(&inputs, &mut random);
        let before = Instant::now();
        run(target, read, &input);
        longest = longest.max(before.elapsed());
        done += 1;
    }
    assert!(peak() < MOST_MEMORY, "{target}: {} bytes of memory", peak());
    println!("{target}: {done} inputs in {:?}, one in at most {longest:?}", begun.elapsed());
}

macro_rules! targets {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            let (name, read) = TARGETS.iter().find(|(name, _)| *name == $name).unwrap();
            changed(name, *read);
        })*

        #[test]
        fn every_target_is_run() {
            assert_eq!(TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [$($name),*]);
        }
    };
}

targets! {
    config: "config",
    objects: "objects",
    annotations: "annotations",
    answers: "answers",
    credentials: "credentials",
    manifests: "manifests",
    netlink: "netlink",
    nftables: "nftables",
    nftables_notices: "nftables-notices",
    gates: "gates",
    trace: "trace",
    conntrack: "conntrack",
    ipvs: "ipvs",
    ipset: "ipset",
    route: "route",
    iptables_save: "iptables-save",
    iptables_nft: "iptables-nft",
    iptables_legacy: "iptables-legacy",
    nft_json: "nft-json",
}
