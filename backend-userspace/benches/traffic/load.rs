//! As many connections as a process may have, and many datagrams, while endpoints come and go.

use std::{fs, time::Instant};

use crate::{
    hosts::{Hosts, Process},
    proxy::REDIRECT,
};

/// Services share the places for connections: one alone may have half of them. One more has the datagrams.
const SERVICES: usize = 100;

/// The most connections, by default.
const MOST: usize = 10_000;

const SECONDS: f64 = 10.0;

/// Datagrams a second, by default.
const RATE: usize = 50_000;

/// Measures with at most so many connections, and so many datagrams a second.
pub fn run(most: Option<usize>, rate: Option<usize>) {
    let (most, rate) = (most.unwrap_or(MOST), rate.unwrap_or(RATE));
    let mut hosts = Hosts::start();
    let mut proxy = Process::start(&[crate::PROXY, REDIRECT]);
    let () = proxy.ask(format!("services {}", SERVICES + 1));
    // The forwarder leaves a tenth for other things; a listener takes one, and a connection two.
    let places = (descriptors() / 10 * 9 - 4 * (SERVICES + 1)) / 2;
    let each = places.saturating_sub(200).min(most) / SERVICES;
    let begun = Instant::now();
    let missing: f64 = hosts.client.ask(format!("crowd {SERVICES} {each}"));
    println!(
        "{} connections to {SERVICES} Services made in {:.1} s, {missing} failed",
        each * SERVICES,
        begun.elapsed().as_secs_f64()
    );
    let times = |hosts: &Hosts, proxy: &Process| {
        [proxy.time(), hosts.client.time(), hosts.endpoints.time()]
    };
    let before = times(&hosts, &proxy);
    hosts.client.send(format!("load {SECONDS} {SERVICES} {rate}"));
    let changes: f64 = proxy.ask(format!("churn {SERVICES} {SECONDS}"));
    let [messages, datagrams]: [[f64; 4]; 2] = {
        let all: [f64; 8] = hosts.client.answer();
        [std::array::from_fn(|i| all[i]), std::array::from_fn(|i| all[i + 4])]
    };
    let after = times(&hosts, &proxy);
    println!(
        "For {SECONDS} s, a message a second by each, {rate} datagrams a second, and {changes} changes of slices:"
    );
    for (what, [sent, errors, median, worst]) in [("messages", messages), ("datagrams", datagrams)]
    {
        println!(
            "{what:<10}{sent:>9} sent, {errors} without an answer; latency {:.2} ms, p99 {:.2} ms",
            median * 1e3,
            worst * 1e3
        );
    }
    let [proxy, client, endpoints] = std::array::from_fn(|i| after[i] - before[i]);
    println!(
        "Processor time: proxy {proxy:.1} s, client {client:.1} s, endpoints {endpoints:.1} s"
    );
}

/// How many file descriptors a process may have.
fn descriptors() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").expect("the limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()).expect("a limit");
    soft.parse().unwrap_or(usize::MAX / 16)
}
