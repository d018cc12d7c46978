//! A table full of what is no one's business: that memory does not grow with it. Alone in its
//! process, whose memory it measures. This test needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

#[expect(dead_code, reason = "not all of it is needed here")]
#[path = "it/conntrack/support.rs"]
mod support;
#[path = "it/conntrack/table.rs"]
mod table;

use std::{fs, net::SocketAddr};

use switchyard_core::{
    model::IpFamily,
    testing::{Builder, endpoint, service, slice},
};
use switchyard_kernel::conntrack::Report;

use crate::{
    support::{Cluster, deleted, in_namespace, slice6},
    table::{Flow, add_all, udp},
};

/// The most unrelated entries. A host with little memory has room for fewer.
const MOST_UNRELATED: u32 = 200_000;
const SERVICES: u32 = 500;
/// The amount that memory may grow, in bytes: by what is for the Services, and by less for each
/// unrelated entry than an entry takes anywhere.
const GROWTH_FOR_SERVICES: usize = 1 << 20;
const GROWTH_FOR_AN_ENTRY: usize = 8;

/// As many flows as are asked for: UDP to addresses that no Service has, of both families, UDP to
/// Service addresses with other ports, and TCP.
fn unrelated(count: u32) -> impl Iterator<Item = Flow> {
    (0..count).map(|i| {
        let (high, low) = (i >> 8, i & 0xff);
        let (client, to) = match i % 5 {
            0 | 1 => {
                (format!("10.2.{}.{low}:4000", high % 256), format!("10.0.77.1:{}", 1000 + high))
            }
            2 => (
                format!("10.2.{}.{low}:4000", high % 256),
                format!("10.0.1.{}:{}", i % 250, 2000 + high),
            ),
            3 => {
                (format!("[fd02::{high:x}:{low:x}]:4000"), format!("[fd00::77]:{}", 1000 + i % 500))
            }
            _ => (format!("10.2.{}.{low}:4000", high % 256), format!("10.0.1.1:{}", 1000 + high)),
        };
        let protocol = if i % 5 == 4 { 6 } else { 17 };
        let [client, to] = [client, to].map(|text| text.parse::<SocketAddr>().unwrap());
        Flow { protocol, client, to, by: to, zone: 0 }
    })
}

/// Services of both families, each with its own port.
fn services() -> Vec<Builder> {
    let of = |i: u32| {
        let (name, port) = (format!("s{i}"), i64::from(1000 + i));
        let service = service(&name, &format!("10.0.1.{},fd00::1:{i:x}", i % 250));
        let pod = endpoint(&format!("10.1.1.{}", i % 250), "node-1");
        let pod6 = endpoint(&format!("fd01::{i:x}"), "node-1");
        [
            service.port("", "UDP", port),
            slice(&name, "a").port("", "UDP", port).endpoint(pod),
            slice6(&name, "b").port("", "UDP", port).endpoint(pod6),
        ]
    };
    (0..SERVICES).flat_map(of).collect()
}

/// For each Service and family a flow to its endpoint, and one to an endpoint that it had once.
fn related() -> impl Iterator<Item = Flow> {
    (0..SERVICES).flat_map(|i| {
        let (to, port) = (format!("10.0.1.{}:{}", i % 250, 1000 + i), 1000 + i);
        let to6 = format!("[fd00::1:{i:x}]:{port}");
        let by = format!("10.1.1.{}:{port}", i % 250);
        [
            udp("10.1.9.9:4000", &to, &by),
            udp("10.1.9.9:4001", &to, &format!("10.1.2.{}:{port}", i % 250)),
            udp("[fd01::9:9]:4000", &to6, &format!("[fd01::{i:x}]:{port}")),
            udp("[fd01::9:9]:4001", &to6, &format!("[fd01::2:{i:x}]:{port}")),
        ]
    })
}

/// A line of this process's status, in bytes.
fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn count() -> u32 {
    let mut count = 0;
    table::each(|_| count += 1);
    count
}

/// The changes made in a family. That it was done at once.
fn only(reports: &[Report], family: IpFamily) -> Report {
    let mut of_family = reports.iter().filter(|report| report.family == family);
    let report = *of_family.next().unwrap_or_else(|| panic!("{family}: {reports:?}"));
    assert_eq!(of_family.next(), None);
    report
}

/// The number of unrelated entries the kernel takes besides the others. The limit is the host's: it
/// cannot be changed from another namespace, and a test leaves the host alone.
fn room() -> u32 {
    let limit = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let limit = limit.trim().parse::<u32>().unwrap();
    let room = limit.saturating_sub(5 * SERVICES).min(MOST_UNRELATED) / SERVICES * SERVICES;
    assert!(room > 4 * SERVICES, "the host's nf_conntrack_max is {limit}");
    room
}

#[test]
fn unrelated_entries_cost_no_memory() {
    in_namespace(|| {
        let many = room();
        let most_growth = GROWTH_FOR_SERVICES + GROWTH_FOR_AN_ENTRY * many as usize;
        add_all(unrelated(many));
        add_all(related());
        let services = services();
        let kept = many + 2 * SERVICES;
        assert_eq!(count(), kept + 2 * SERVICES);

        // The first sync asks for all of UDP.
        let mut cluster = Cluster::new();
        cluster.resolve(&services);
        // Forget the highest mark so far.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status("VmRSS");
        cluster.sync();
        let reports = cluster.wait();
        let grown = status("VmHWM").saturating_sub(before);
        println!("grown by {} KiB: {reports:?}", grown >> 10);
        assert!(grown < most_growth, "grown by {grown} bytes");
        assert_eq!(deleted(&reports), 2 * SERVICES as usize);
        let (v4, v6) = (only(&reports, IpFamily::V4), only(&reports, IpFamily::V6));
        let udp = |share: u32| (many / 5 * share + 2 * SERVICES) as usize;
        assert_eq!((v4.scanned, v6.scanned), (udp(3), udp(1)));
        assert_eq!(count(), kept);

        // A change asks for what it is about: by address and port, or, of IPv6, by port.
        let moved = [(slice("s3", "a"), "10.1.3.3"), (slice6("s3", "b"), "fd01::3:3")]
            .map(|(slice, ip)| slice.port("", "UDP", 1003).endpoint(endpoint(ip, "node-1")));
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status("VmRSS");
        let reports = cluster.apply(&moved);
        let grown = status("VmHWM").saturating_sub(before);
        println!("grown by {} KiB: {reports:?}", grown >> 10);
        assert!(grown < most_growth, "grown by {grown} bytes");
        let (v4, v6) = (only(&reports, IpFamily::V4), only(&reports, IpFamily::V6));
        assert_eq!((v4.scanned, v4.deleted), (1, 1));
        assert_eq!((v6.scanned, v6.deleted), (many as usize / 500 + 1, 1));
        assert_eq!(count(), kept - 2);
    });
}
