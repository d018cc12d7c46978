//! Time of a walk over connection tracking's table, as `switchyard explain` and the metrics by
//! Service make one: in proportion to the entries. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benchmarks fail by panics")]

#[expect(dead_code, reason = "not all of it is needed here")]
#[path = "../tests/it/conntrack/table.rs"]
mod table;

use std::{fs, net::SocketAddr, time::Instant};

use switchyard_kernel::conntrack::{StuckLimit, UsageReader};
use test_netns::in_namespace;

use crate::table::{Flow, add_all};

/// The most entries; a host with little memory has room for fewer.
const MOST: u32 = 200_000;

fn main() {
    let limit = fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let most = MOST.min(limit.trim().parse::<u32>().unwrap() / 10 * 9);
    in_namespace(|| {
        let mut made = 0;
        for entries in [most / 20, most / 4, most] {
            add_all((made..entries).map(flow));
            made = entries;
            let limit = StuckLimit::read().unwrap();
            let (mut times, mut found, mut stuck) = (Vec::new(), 0_u32, 0_u32);
            for _ in 0..5 {
                let mut reader = UsageReader::open().unwrap();
                (found, stuck) = (0, 0);
                let begun = Instant::now();
                let count = |flow: &_| {
                    found += 1;
                    stuck += u32::from(limit.is_stuck(flow));
                };
                reader.flows(count).unwrap();
                times.push(begun.elapsed());
            }
            times.sort_unstable();
            let per_entry = times[2].as_nanos() / u128::from(entries);
            println!("{entries} entries: {:?} (median of 5), {per_entry} ns each", times[2]);
            assert!(found >= entries && stuck == 0, "{found} found, {stuck} stuck");
        }
    });
}

fn flow(number: u32) -> Flow {
    let [_, a, b, c] = number.to_be_bytes();
    let [client, to, by] =
        [format!("10.{a}.{b}.{c}:4000"), "10.96.0.10:53".to_owned(), "10.244.1.2:5353".to_owned()]
            .map(|text| text.parse::<SocketAddr>().unwrap());
    Flow { protocol: 17, client, to, by, zone: 0 }
}
