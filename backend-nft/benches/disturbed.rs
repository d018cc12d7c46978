//! The time that syncs take while another program commits to its own table, again and again.
//!
//! `cargo bench -p switchyard-nft --bench disturbed [-- SERVICES ENDPOINTS]`, as root: everything
//! happens in network namespaces of its own threads. The other program is a shell loop of the
//! program `nft`, or a thread that commits by netlink without a pause.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{
    process::{Child, Command},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use switchyard_core::{
    error::ErrorChain,
    objects::Event,
    testing::{
        ManyServices, Stepped,
        bench::{cluster_from_arguments, median, show},
    },
};
use switchyard_netlink::{Socket, nftables};
use switchyard_nft::{NftConfig, NftProxier};
use switchyard_nft_ruleset::{Family, Table, Transaction, TransportKind};
use test_netns::in_namespace;

const ROUNDS: usize = 5;
const CHANGES: usize = 50;

fn main() {
    let many = cluster_from_arguments();
    println!("{} Services x {} endpoints, nftables by netlink", many.services, many.endpoints);
    for other in [Other::Nobody, Other::Shell, Other::Netlink] {
        in_namespace(|| measure(&many, other));
    }
}

#[derive(Clone, Copy, Debug)]
enum Other {
    Nobody,
    Shell,
    Netlink,
}

fn measure(many: &ManyServices, other: Other) {
    let disturber = Disturber::start(other);
    let (begun, before) = (Instant::now(), generation());
    let mut node = Stepped::new(many.node(), open());
    node.apply(many.lists());
    let first = Timed::default().add(|| node.try_sync().map_err(|e| ErrorChain(&e).to_string()));
    let mut full = Timed::default();
    for _ in 0..ROUNDS {
        node.tracker.request_resync();
        full = full.add(|| node.try_sync().map_err(|e| ErrorChain(&e).to_string()));
    }
    let mut restart = Timed::default();
    for version in 1..=ROUNDS {
        // Something is left to commit.
        node.apply((0..many.services / 10).map(|n| Event::Apply(many.slice(n * 10, version))));
        node.proxier = open();
        node.tracker.request_resync();
        restart = restart.add(|| node.try_sync().map_err(|e| ErrorChain(&e).to_string()));
    }
    let mut change = Timed::default();
    for n in 0..CHANGES {
        node.apply([Event::Apply(many.slice(n * 31 % many.services, ROUNDS + n + 1))]);
        change = change.add(|| node.try_sync().map_err(|e| ErrorChain(&e).to_string()));
    }
    let commits = generation().wrapping_sub(before);
    println!(
        "{other:?}: {:.0} commits/s in all",
        f64::from(commits) / begun.elapsed().as_secs_f64()
    );
    disturber.stop();
    for (what, timed) in [
        ("first programming", first),
        ("comparison of everything", full),
        ("restart, a tenth changed", restart),
        ("one slice change", change),
    ] {
        timed.report(what);
    }
}

#[derive(Default)]
struct Timed {
    times: Vec<Duration>,
    failures: Vec<String>,
}

impl Timed {
    fn add<T>(mut self, sync: impl FnOnce() -> Result<T, String>) -> Self {
        let begun = Instant::now();
        self.failures.extend(sync().err());
        self.times.push(begun.elapsed());
        self
    }

    fn report(self, what: &str) {
        let worst = self.times.iter().max().copied().unwrap_or_default();
        println!(
            "  {what:<26}{:>12}   worst {:>12}   {} of {} failed {}",
            show(median(self.times.clone()), 2),
            show(worst, 2),
            self.failures.len(),
            self.times.len(),
            self.failures.first().map(String::as_str).unwrap_or_default(),
        );
    }
}

enum Disturber {
    Nobody,
    Shell(Child),
    Netlink(Arc<AtomicBool>, JoinHandle<()>),
}

impl Disturber {
    fn start(other: Other) -> Self {
        match other {
            Other::Nobody => Self::Nobody,
            Other::Shell => {
                let script = "while nft add table ip x && nft delete table ip x; do :; done";
                Self::Shell(Command::new("sh").args(["-c", script]).spawn().expect("a shell"))
            }
            Other::Netlink => {
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = stop.clone();
                // A thread that starts here is in this namespace too.
                let thread = thread::spawn(move || {
                    let mut transport = TransportKind::Netlink.open().expect("netlink is there");
                    let theirs = Table::new(Family::Ip, "x");
                    let (mut add, mut delete) = (Transaction::new(), Transaction::new());
                    add.add_table(&theirs);
                    delete.delete_table(&theirs);
                    while !stopped.load(Ordering::Relaxed) {
                        transport.commit(&add).expect("committed");
                        transport.commit(&delete).expect("committed");
                    }
                });
                Self::Netlink(stop, thread)
            }
        }
    }

    fn stop(self) {
        match self {
            Self::Nobody => {}
            Self::Shell(mut child) => {
                child.kill().expect("it runs");
                child.wait().expect("it ends");
            }
            Self::Netlink(stop, thread) => {
                stop.store(true, Ordering::Relaxed);
                thread.join().expect("it does not panic");
            }
        }
    }
}

fn open() -> NftProxier {
    let transport = TransportKind::Netlink.open().expect("netlink is there");
    NftProxier::new(NftConfig::default(), transport)
}

fn generation() -> u32 {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).expect("netlink is there");
    nftables::generation(&mut socket).expect("an answer").expect("there is nf_tables")
}
