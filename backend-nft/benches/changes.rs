//! The cost of one change at several numbers of Services: medians and 99th percentiles of the time
//! from the event to the end of the sync, the part of the commits, which is the kernel's, and the
//! processor time of the process, with what the kernel does for it. The project's bound for 10,000
//! Services is 2 ms.
//!
//! `cargo bench -p switchyard-nft --bench changes [-- SERVICES ENDPOINTS]`, as root: everything happens in
//! network namespaces of its own threads.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::{env, mem::MaybeUninit, time::Duration};

use switchyard_core::{
    objects::Event,
    testing::{
        ManyServices,
        bench::{TimedEngine, cluster_from_arguments, show},
        endpoint, slice,
    },
};
use switchyard_kernel::nftables::TransportKind;
use switchyard_nft::{NftConfig, NftProxier};
use test_netns::in_namespace;

const SIZES: [usize; 4] = [1_000, 10_000, 50_000, 100_000];
/// The number of changes of each kind.
const CHANGES: usize = 300;

fn main() {
    if env::args().any(|arg| arg.parse::<usize>().is_ok()) {
        return in_namespace(|| measure(&cluster_from_arguments()));
    }
    for services in SIZES {
        in_namespace(|| measure(&ManyServices { services, endpoints: 2 }));
    }
}

fn measure(many: &ManyServices) {
    println!("{} Services x {} endpoints, nftables by netlink", many.services, many.endpoints);
    let transport = TransportKind::Netlink.open().expect("netlink is there");
    let engine = TimedEngine::start(many, NftProxier::new(NftConfig::default(), transport));
    println!("  {:<24}{:>12}", "first programming", show(engine.first(many), 1));
    let at = |round: usize| round * 31 % many.services;
    let row = |what: &str, event: &dyn Fn(usize) -> Event| {
        let before = processor_time();
        let parts = (0..CHANGES).map(|round| engine.time_parts(event(round)));
        let (times, commits): (Vec<_>, Vec<_>) = parts.map(|[time, commit]| (time, commit)).unzip();
        let spent = (processor_time() - before) / CHANGES as u32;
        let [(time, slow), (commit, slow_commit)] = [times, commits].map(percentiles);
        println!(
            "  {what:<24}{:>12}{:>12}   commits {:>12}{:>12}   processor {:>12}",
            show(time, 3),
            show(slow, 3),
            show(commit, 3),
            show(slow_commit, 3),
            show(spent, 3)
        );
    };
    println!("  {:<24}{:>12}{:>12}", "", "p50", "p99");
    row("an endpoint replaced", &|round| Event::Apply(many.slice(at(round), 1)));
    let endpoints = many.endpoints;
    row("an endpoint more", &|round| sized(at(round), endpoints + 1));
    row("an endpoint less", &|round| sized(at(round), endpoints));
    row("a Service removed", &|round| Event::Delete(many.service(at(round)).key()));
    row("a Service added", &|round| Event::Apply(many.service(at(round))));
}

/// The slice of Service `i` with so many endpoints.
fn sized(i: usize, endpoints: usize) -> Event {
    let made = slice(&format!("svc-{i}"), "x").port("http", "TCP", 8080);
    let address = |n: usize| format!("10.250.{n}.{}", i % 250 + 1);
    (0..endpoints).fold(made, |made, n| made.endpoint(endpoint(&address(n), "elsewhere"))).apply()
}

/// The median and the 99th percentile.
fn percentiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// The time that the process has had a processor.
fn processor_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a `rusage`, of which each value is valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1_000 * time.tv_usec as u32);
    of(usage.ru_utime) + of(usage.ru_stime)
}
