//! The clients that Services with ClientIP affinity remember, while endpoints, timeouts and programs
//! come and go. Clients are put into the maps by `nft`, as rules would put them there.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use serde_json::json;
use switchyard_core::{
    objects::Event,
    testing::{endpoint, service, slice},
};
use switchyard_nft::{
    NftConfig, NftProxier,
    ruleset::{TransportKind, testing::InterceptingTransport},
};

use crate::common::{clients, config, in_namespace, nft, open, ruleset, start};

/// The part of names that kube-proxy, and this backend, make for the Service port.
const BASE: &str = "KBDI3LGB-ns/sticky/tcp/http";

fn sticky(timeout: u32) -> Event {
    service("sticky", "10.96.0.7,fd00:10:96::7")
        .port("http", "TCP", 80)
        .set("spec.sessionAffinity", "ClientIP")
        .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout)
        .apply()
}

/// A slice with the endpoints 10.244.N.M, numbered from 1.
fn endpoints(numbers: impl IntoIterator<Item = u16>) -> Event {
    let made = slice("sticky", "a").set("ports", json!([{"name": "http", "port": 80}]));
    let address = |number: u16| format!("10.244.{}.{}", number >> 8, number & 0xff);
    let endpoints = numbers.into_iter().map(|number| endpoint(&address(number), "elsewhere"));
    endpoints.fold(made, |made, endpoint| made.endpoint(endpoint)).apply()
}

/// Has the Service remember a client for so many seconds.
fn remember(client: &str, number: u16, seconds: u32) {
    let endpoint = format!("10.244.{}.{} . 80", number >> 8, number & 0xff);
    let map = clients();
    nft(&format!("add element ip kube-proxy {map} {{ {client} expires {seconds}s : {endpoint} }}"));
}

/// The clients that are remembered, as nft lists them: with the number of seconds that remain, and the
/// endpoint.
fn remembered() -> Vec<(String, u64, String)> {
    let listed = nft(&format!("list map ip kube-proxy {}", clients()));
    let Some((_, elements)) = listed.split_once("elements = {") else { return Vec::new() };
    let (elements, _) = elements.split_once('}').expect("a closed list");
    let mut found: Vec<_> = elements
        .split(',')
        .map(|element| {
            let (client, rest) = element.trim().split_once(" expires ").expect("a time");
            let (time, endpoint) = rest.split_once(" : ").expect("an endpoint");
            (client.to_owned(), seconds(time), endpoint.trim().to_owned())
        })
        .collect();
    found.sort();
    found
}

/// The seconds in a time such as `2h59m58s120ms`.
fn seconds(time: &str) -> u64 {
    let mut total = 0;
    let mut number = 0;
    let mut unit = String::new();
    let mut end = |number: u64, unit: &str| {
        total += match unit {
            "d" => number * 86_400,
            "h" => number * 3_600,
            "m" => number * 60,
            "s" => number,
            _ => 0,
        };
    };
    for letter in time.chars() {
        if let Some(digit) = letter.to_digit(10) {
            if !unit.is_empty() {
                end(number, &unit);
                (number, unit) = (0, String::new());
            }
            number = number * 10 + u64::from(digit);
        } else {
            unit.push(letter);
        }
    }
    end(number, &unit);
    total
}

fn names(found: &[(String, u64, String)]) -> Vec<&str> {
    found.iter().map(|(client, ..)| client.as_str()).collect()
}

#[test]
fn clients_of_endpoints_that_left_are_forgotten() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        for (client, number) in [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3), ("10.0.0.4", 2)]
        {
            remember(client, number, 3_000);
        }
        // An endpoint that comes is nobody's loss.
        node.sync([endpoints([1, 2, 3, 4])]);
        assert_eq!(remembered().len(), 4);
        node.sync([endpoints([1, 3, 4])]);
        assert_eq!(names(&remembered()), ["10.0.0.1", "10.0.0.3"]);
        // The same when everything is compared.
        node.apply([endpoints([3, 4])]);
        node.tracker.request_comparison();
        node.try_sync().expect("a sync");
        let found = remembered();
        assert_eq!(names(&found), ["10.0.0.3"]);
        assert_eq!(found[0].2, "10.244.0.3 . 80");
        assert!(found[0].1 > 2_900, "the time goes on: {found:?}");
    });
}

/// A packet may add a client at any time: also after the clients were read, and before the commit.
#[test]
fn clients_that_come_and_go_during_a_commit_do_no_harm() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        remember("10.0.0.1", 1, 3_000);
        remember("10.0.0.2", 2, 3_000);
        let map = clients();
        let commits = Arc::new(AtomicU32::new(0));
        let count = commits.clone();
        let meddle = Cell::new(false);
        let hook = move |transaction: &switchyard_nft::ruleset::Transaction| {
            count.fetch_add(1, Ordering::Relaxed);
            if transaction.to_string().contains("delete element ip kube-proxy clients-")
                && !meddle.replace(true)
            {
                nft(&format!(
                    "add element ip kube-proxy {map} {{ 10.0.0.9 : 10.244.0.2 . 80 }}; \
                     delete element ip kube-proxy {map} {{ 10.0.0.2 }}"
                ));
            }
            Ok(())
        };
        let inner = TransportKind::Netlink.open().expect("netlink is there");
        let transport = InterceptingTransport::new(inner, hook);
        node.proxier = NftProxier::new(NftConfig::default(), Box::new(transport));
        node.full();
        assert_eq!(remembered().len(), 2);
        node.sync([endpoints([1, 3])]);
        assert_eq!(names(&remembered()), ["10.0.0.1"]);
        assert!(!ruleset().contains("10.244.0.2 "), "{}", ruleset());
        assert!(commits.load(Ordering::Relaxed) > 0);
    });
}

#[test]
fn another_timeout_keeps_clients() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1, 2])]);
        remember("10.0.0.1", 1, 3_000);
        remember("10.0.0.2", 2, 30);
        for (timeout, most) in [(60, 60), (20_000, 60)] {
            node.sync([sticky(timeout)]);
            let found = remembered();
            assert_eq!(names(&found), ["10.0.0.1", "10.0.0.2"], "{timeout}");
            assert!(found[0].1 <= most && found[0].1 > 30, "{found:?}");
            assert!(found[1].1 <= 30, "{found:?}");
        }
        // The Service port leads to the map as before.
        let listed = nft(&format!("list chain ip kube-proxy service-{BASE}"));
        assert!(listed.contains(&format!("ip saddr map @{}", clients())), "{listed}");
        // The same when everything is compared.
        node.apply([sticky(500)]);
        node.tracker.request_comparison();
        node.try_sync().expect("a sync");
        assert_eq!(names(&remembered()), ["10.0.0.1", "10.0.0.2"]);
        assert!(nft(&format!("list map ip kube-proxy {}", clients())).contains("timeout 8m20s"));
    });
}

/// kube-proxy has a set and a chain for each endpoint, as this backend had in its older layout.
#[test]
fn clients_of_kube_proxy_are_taken_over() {
    in_namespace(|| {
        // The hashes are those of kube-proxy's names.
        let theirs = |number: u16| {
            let base = kube_proxys_base(number);
            format!(
                "add set ip kube-proxy affinity-{base} \
                 {{ type ipv4_addr; flags dynamic,timeout; timeout 3h; }}; \
                 add chain ip kube-proxy endpoint-{base}; \
                 add rule ip kube-proxy endpoint-{base} update @affinity-{base} {{ ip saddr }}; \
                 add element ip kube-proxy affinity-{base} {{ 10.0.0.{number} expires 1h }}; "
            )
        };
        nft(&format!("add table ip kube-proxy; {}{}{}", theirs(1), theirs(2), theirs(9)));
        let mut node = start(config());
        let report = node.sync([sticky(10_800), endpoints([1, 2, 3])]);
        assert!(report.drift.is_none(), "{:?}", report.drift);
        let found = remembered();
        // The endpoint 9 is gone.
        assert_eq!(names(&found), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(found[1].2, "10.244.0.2 . 80");
        assert!(found.iter().all(|(_, seconds, _)| (3_500..=3_600).contains(seconds)), "{found:?}");
        let listed = ruleset();
        assert!(!listed.contains("affinity-") && !listed.contains("chain endpoint-"), "{listed}");
        // A restart finds its own map, and changes nothing.
        let report = node.restart(open());
        assert_eq!((report.added, report.bytes), (0, 0), "{report:?}");
    });
}

/// kube-proxy's name for an endpoint, as it printed the names once.
fn kube_proxys_base(number: u16) -> String {
    let hash = match number {
        1 => "2YCT35UB",
        2 => "LVVPSCTX",
        _ => "JCTE6IOF",
    };
    format!("{hash}-ns/sticky/tcp/http__10.244.0.{number}/80")
}

#[test]
fn the_number_of_chains_and_sets_does_not_depend_on_the_number_of_endpoints() {
    let counts = |listed: &str| {
        ["\tchain ", "\tset ", "\tmap ", "\t\tct state"].map(|kind| listed.matches(kind).count())
    };
    let listings = [5u16, 10_000].map(|count| {
        // The thread of each has a namespace of its own.
        thread::scope(|scope| {
            let run = || {
                let mut listed = String::new();
                in_namespace(|| {
                    let mut node = start(config());
                    node.sync([sticky(10_800), endpoints(1..=count)]);
                    listed = ruleset();
                    assert!(listed.contains(&format!("10.96.0.7 . 80 . {} : ", count - 1)));
                });
                listed
            };
            scope.spawn(run).join().expect("no panic")
        })
    });
    assert_eq!(counts(&listings[0]), counts(&listings[1]));
}

/// A client that another program's rules led elsewhere must not stay there.
#[test]
fn endpoints_of_others_are_not_remembered_for_long() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1])]);
        let map = clients();
        nft(&format!("add element ip kube-proxy {map} {{ 10.0.0.1 : 192.0.2.1 . 80 }}"));
        let compared = node.full();
        assert!(compared.drift.is_none(), "clients are no drift: {:?}", compared.drift);
        assert!(remembered().is_empty());
        // The set of endpoints is compared, too.
        nft(&format!("flush set ip kube-proxy endpoints-{BASE}"));
        let drift = node.full().drift;
        assert!(drift.examples[0].contains("10.244.0.1 . tcp . 80"), "{drift:?}");
        assert!(nft(&format!("list set ip kube-proxy endpoints-{BASE}")).contains("10.244.0.1"));
    });
}

/// The kernel's default is 65,535 clients of all endpoints together.
#[test]
fn a_service_remembers_many_clients() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync([sticky(10_800), endpoints([1])]);
        let listed = nft(&format!("list map ip kube-proxy {}", clients()));
        assert!(listed.contains("size 524288"), "{listed}");
        let many = (0..70_000u32).map(|n| {
            let client = std::net::Ipv4Addr::from(0xac10_0000 + n);
            format!("{client} : 10.244.0.1 . 80")
        });
        let many: Vec<String> = many.collect();
        nft(&format!("add element ip kube-proxy {} {{ {} }}", clients(), many.join(", ")));
        // All go with their endpoint.
        let report = node.sync([endpoints([2])]);
        assert!(report.removed > 70_000, "{report:?}");
        assert!(remembered().is_empty());
    });
}
