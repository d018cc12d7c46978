//! Each way to an endpoint, beside the direct one.

use crate::{
    client::TIME,
    hosts::{self, Hosts, Process},
    proxy::{ADDRESSES, HAPROXY, NFTABLES, PLAIN, REDIRECT, REDIRECTED, has_haproxy},
};

/// The ways are taken by turns, so that what else the machine does meets all.
const ROUNDS: usize = 3;

/// The number of idle connections that there are when memory is looked at.
const IDLE: usize = 2_000;

/// The endpoint that is connected to directly, which no Service has: it could take a connection
/// that comes from the same port of the client by another way for an old one that is not quite
/// over.
const DIRECT: u8 = 3;

/// The ways, and what they are called in the table. Without a name, clients connect to the
/// endpoint. HAProxy is there if it is installed.
const WAYS: [(Option<&str>, &str); 7] = [
    (None, "direct"),
    (Some(NFTABLES), "nftables backend"),
    (Some(PLAIN), "plain proxy"),
    (Some(REDIRECTED), "plain, redirected"),
    (Some(HAPROXY), "HAProxy"),
    (Some(REDIRECT), "userspace: redirect"),
    (Some(ADDRESSES), "userspace: addresses"),
];

/// A measurement, and how many of its units are shown as one. The time of a proxy is that of its
/// process alone, whatever else the machine does; that of the ends is the client's and the
/// endpoint's, which is the load's part of the machine.
const COLUMNS: [(&str, f64); 13] = [
    ("1 conn., MB/s", 1e6),
    ("8 conn., MB/s", 1e6),
    ("connections/s", 1.0),
    ("latency, us", 1e-6),
    ("p99, us", 1e-6),
    ("datagrams/s", 1.0),
    ("in bursts/s", 1.0),
    ("us of CPU/conn.", 1e-6),
    ("of the ends", 1e-6),
    ("us of CPU/answer", 1e-6),
    ("of the ends", 1e-6),
    ("in a burst", 1e-6),
    ("of the ends", 1e-6),
];

pub fn run() {
    let mut hosts = Hosts::start();
    let mut measured = WAYS.map(|_| Vec::new());
    let mut memory = WAYS.map(|_| None);
    for round in 0..ROUNDS {
        for ((way, _), (measured, memory)) in WAYS.iter().zip(measured.iter_mut().zip(&mut memory))
        {
            if *way == Some(HAPROXY) && !has_haproxy() {
                measured.push([f64::NAN; COLUMNS.len()]);
                continue;
            }
            let mut proxy = way.map(|way| Process::start(&[crate::PROXY, way]));
            let to = match way {
                None => hosts::server(DIRECT),
                Some(PLAIN | HAPROXY) => hosts::NODE,
                Some(_) => hosts::service(0),
            };
            if let Some(proxy) = &mut proxy {
                let () = proxy.ask("services 1");
            }
            let (client, endpoints) = (&mut hosts.client, &hosts.endpoints);
            let [one, eight] = [1, 8].map(|count| client.ask::<f64>(format!("bulk {to} {count}")));
            let is_proxy = !matches!(*way, None | Some(NFTABLES));
            let time = || proxy.as_ref().filter(|_| is_proxy).map_or(f64::NAN, Process::time);
            // The number in a second, and the times that the proxy and both ends take for each.
            let mut costly = |what: &str| -> [f64; 3] {
                let before = [time(), endpoints.time()];
                let [number, of_client]: [f64; 2] = client.ask(format!("{what} {to}"));
                let each = |after: f64, before| (after - before) / (number * TIME.as_secs_f64());
                let of_endpoint = each(endpoints.time(), before[1]);
                [number, each(time(), before[0]), of_client + of_endpoint]
            };
            let [short, time_of_short, ends_of_short] = costly("short");
            let is_udp = !matches!(*way, Some(PLAIN | REDIRECTED | HAPROXY));
            let mut udp = |what| if is_udp { costly(what) } else { [f64::NAN; 3] };
            let [single, of_single, ends_of_single] = udp("datagrams");
            let [burst, in_burst, ends_in_burst] = udp("bursts");
            let [median, worst]: [f64; 2] = client.ask(format!("latency {to}"));
            measured.push([
                one,
                eight,
                short,
                median,
                worst,
                single,
                burst,
                time_of_short,
                ends_of_short,
                of_single,
                ends_of_single,
                in_burst,
                ends_in_burst,
            ]);
            let is_measured = is_proxy && *way != Some(HAPROXY) && round == 0;
            if let (true, Some(proxy)) = (is_measured, &proxy) {
                let before = proxy.memory();
                let () = client.ask(format!("idle {to} {IDLE}"));
                *memory = Some((proxy.memory() - before) / IDLE as f64);
                let () = client.ask(format!("idle {to} 0"));
            }
        }
    }
    println!("Medians of {ROUNDS} rounds, and their ratios to the direct way:");
    print!("{:<21}", "");
    COLUMNS.iter().for_each(|(name, _)| print!("{name:>19}"));
    println!();
    let direct = medians(&measured[0]);
    for ((_, name), rounds) in WAYS.iter().zip(&measured) {
        print!("{name:<21}");
        for ((value, direct), (_, unit)) in medians(rounds).into_iter().zip(direct).zip(COLUMNS) {
            if value.is_nan() {
                print!("{:>19}", "-");
            } else if direct.is_nan() {
                print!("{:>19.1}", value / unit);
            } else {
                print!("{:>12.0} ({:.2})", value / unit, value / direct);
            }
        }
        println!();
    }
    println!(
        "Memory of the process for each of {IDLE} idle connections, without the kernel's sockets:"
    );
    for ((_, name), memory) in WAYS.iter().zip(memory) {
        if let Some(bytes) = memory {
            println!("{name:<21}{bytes:>12.0} bytes");
        }
    }
}

fn medians<const N: usize>(rounds: &[[f64; N]]) -> [f64; N] {
    std::array::from_fn(|column| {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}
