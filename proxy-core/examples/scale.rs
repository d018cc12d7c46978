//! Measures resolving: `cargo run --release -p proxy-core --example scale [SERVICES [ENDPOINTS]]`,
//! by default 10,000 Services with 5 endpoints each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "examples fail by panics")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    hint::black_box,
    net::Ipv4Addr,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use switchyard_core::{
    config::NodeConfig,
    objects::{
        EndpointPort, EndpointSlice, Event, Kind, Metadata, Object, Service, ServiceSpec,
        ServiceSpecPort, SliceEndpoint,
    },
    track::Tracker,
};

/// Counts what is allocated, as glibc rounds it: 8 bytes more, to a multiple of 16.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn rounded(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: `System` does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(rounded(layout), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(rounded(layout), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(place, layout) }
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let mut argument =
        |default| arguments.next().map_or(default, |parsed| parsed.expect("a number"));
    let (services, endpoints) = (argument(10_000), argument(5));

    let live = || LIVE.load(Ordering::Relaxed);
    let before = live();
    let mut tracker = Tracker::new(NodeConfig::new("node-1"));
    let mut apply = Duration::ZERO;
    for kind in [Kind::Service, Kind::EndpointSlice] {
        let objects: Vec<Object> = (0..services)
            .map(|i| match kind {
                Kind::Service => Object::Service(service(i)),
                _ => Object::EndpointSlice(slice(i, endpoints, 0)),
            })
            .collect();
        let start = Instant::now();
        let problems = tracker.apply(Event::Replace { kind, objects, malformed: Vec::new() });
        apply += start.elapsed();
        assert_eq!(problems, []);
        println!("{kind}s kept: {:.1} MiB", mib(live() - before));
    }
    println!("{services} Services with {endpoints} endpoints each");
    println!("take in:        {apply:?}");
    let start = Instant::now();
    tracker.resolve();
    println!("first resolve:  {:?}", start.elapsed());
    assert_eq!(tracker.transition().ports().len(), services as usize);
    tracker.mark_synced();
    println!("memory:         {:.1} MiB", mib(live() - before));

    let times = measured(1000, |i| {
        let again = service(i % services);
        let start = Instant::now();
        tracker.apply(Event::Delete(Object::Service(again.clone()).key()));
        tracker.resolve();
        tracker.apply(Event::Apply(Object::Service(again)));
        tracker.resolve();
        start.elapsed()
    });
    println!("gone and back:  p50 {:?}, p99 {:?}", times[500], times[990]);
    tracker.mark_synced();

    let times = measured(1000, |i| {
        // Not the generation of the object, which a decoder pays for.
        let event = Event::Apply(Object::EndpointSlice(slice(i % services, endpoints, i + 1)));
        let start = Instant::now();
        black_box(tracker.apply(event));
        black_box(tracker.resolve());
        let time = start.elapsed();
        assert_eq!(tracker.transition().ports().len(), 1);
        tracker.mark_synced();
        time
    });
    println!("a slice change: p50 {:?}, p99 {:?}", times[500], times[990]);
}

fn measured(times: u32, each: impl FnMut(u32) -> Duration) -> Vec<Duration> {
    let mut measured: Vec<Duration> = (0..times).map(each).collect();
    measured.sort();
    measured
}

fn service(i: u32) -> Service {
    let ip = Ipv4Addr::from(0x0a00_0000 + i).to_string();
    Service {
        metadata: Metadata {
            creation_timestamp: "2026-01-01T00:00:00Z".to_owned(),
            ..metadata(format!("service-{i}"))
        },
        spec: ServiceSpec {
            cluster_ip: ip.clone(),
            cluster_ips: vec![ip],
            ip_families: vec!["IPv4".to_owned()],
            ports: vec![ServiceSpecPort {
                name: "http".to_owned(),
                protocol: "TCP".to_owned(),
                port: 80,
                node_port: 0,
            }],
            ..ServiceSpec::default()
        },
        ..Service::default()
    }
}

fn slice(i: u32, endpoints: u32, change: u32) -> EndpointSlice {
    let address = |n: u32| Ipv4Addr::from(0x0b00_0000 + i * endpoints + n + change).to_string();
    let labels =
        BTreeMap::from([("kubernetes.io/service-name".to_owned(), format!("service-{i}"))]);
    EndpointSlice {
        metadata: Metadata { labels, ..metadata(format!("service-{i}-abcde")) },
        address_type: "IPv4".to_owned(),
        endpoints: (0..endpoints)
            .map(|n| SliceEndpoint {
                addresses: vec![address(n)],
                node_name: Some(format!("node-{}", n % 20)),
                ..SliceEndpoint::default()
            })
            .collect(),
        ports: vec![EndpointPort {
            name: Some("http".to_owned()),
            protocol: "TCP".to_owned(),
            port: Some(8080),
        }],
    }
}

fn metadata(name: String) -> Metadata {
    Metadata { name, namespace: "default".to_owned(), ..Metadata::default() }
}
