//! The first layout of the tables had one map of endpoints for all protocols. A start takes such
//! tables over; and rules can be added over today's maps long after these were committed, which nft
//! refuses over the old ones.

use std::path::Path;

use serde_json::json;
use switchyard_core::{
    objects::Event,
    testing::{endpoint, service, slice},
};
use switchyard_kernel::nftables::{
    TransportKind, json::JsonTransport, testing::InterceptingTransport,
};
use switchyard_nft::{NftConfig, NftProxier};

use crate::common::{Node, config, in_namespace, nft, ruleset, start, web, web_slice};

/// Tables of the first layout, as it rendered [`events`].
const OLDER: &str = include_str!("../fixtures/older-layout.nft");

fn events() -> Vec<Event> {
    let endpoints = |name: &str, port: &str, protocol: &str, number: u16, last: u8| {
        slice(name, "a")
            .set("ports", json!([{"name": port, "protocol": protocol, "port": number}]))
            .endpoint(endpoint(&format!("10.244.1.{last}"), "node-1"))
            .endpoint(endpoint(&format!("10.244.2.{last}"), "node-2"))
            .apply()
    };
    let dns = service("dns", "10.96.0.10,fd00:10:96::a").set("spec.type", "NodePort").set(
        "spec.ports",
        json!([{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]),
    );
    let lb = service("lb", "10.96.0.20")
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31_000)
        .set(
            "spec.ports",
            json!([{"name": "h", "protocol": "TCP", "port": 443, "nodePort": 30443}]),
        )
        .set("status.loadBalancer.ingress", json!([{"ip": "203.0.113.7"}]));
    let mut events = web();
    events.extend([dns.apply(), endpoints("dns", "dns", "UDP", 5353, 53)]);
    events.extend([lb.apply(), endpoints("lb", "h", "TCP", 8443, 7)]);
    events
}

#[test]
fn tables_of_the_older_layout_are_taken_over_without_a_gap() {
    in_namespace(|| {
        let mut afresh = start(config());
        afresh.sync(events());
        let expected = ruleset();
        nft("flush ruleset");

        assert!(OLDER.contains("map @endpoints") && !OLDER.contains("tcp-endpoints"));
        nft(OLDER);
        let inner = TransportKind::Netlink.open().expect("netlink is there");
        let (recording, recorded) = InterceptingTransport::recording(inner);
        let mut node =
            Node::new(config(), NftProxier::new(NftConfig::default(), Box::new(recording)));
        let report = node.sync(events());
        assert!(report.drift.is_none(), "an upgrade is nobody's meddling: {:?}", report.drift);
        assert_eq!(lines(&ruleset()), lines(&expected), "{}", ruleset());
        // What still serves goes after what replaces it: packets may be between chain and map.
        let committed = recorded.take();
        let [making, main, removing, ..] = committed.as_slice() else { panic!("{committed:?}") };
        assert!(making.contains("add map ip kube-proxy tcp-endpoints"), "{making}");
        assert!(!making.contains("flush") && !making.contains("delete"), "{making}");
        assert!(main.contains("flush chain ip kube-proxy lb/3"), "{main}");
        assert!(main.contains("add element ip kube-proxy tcp-endpoints"), "{main}");
        assert!(!main.contains("delete set"), "{main}");
        assert!(removing.contains("delete set ip kube-proxy endpoints"), "{removing}");
        // And the table was never replaced as a whole.
        assert!(!committed.concat().contains("delete table"));
    });
}

/// The lines of a listing without counters, in any order: elements come in any order.
fn lines(listing: &str) -> Vec<String> {
    let mut words: Vec<String> =
        listing.split([',', '\n', '{', '}']).map(|part| part.trim().to_owned()).collect();
    words.sort();
    words
}

/// With both transports: a Service that grows needs a chain over maps that were committed before.
#[test]
fn chains_are_added_over_maps_that_were_committed_before() {
    in_namespace(|| {
        let mut node = start(config());
        node.sync(web());
        for last in 2..=12 {
            let endpoints: Vec<u8> = (1..=last).collect();
            node.sync([web_slice(&endpoints)]);
            assert!(ruleset().contains(&format!("chain lb/{last} {{")), "{}", ruleset());
        }
        // As does a person.
        nft("add chain ip kube-proxy mine; add rule ip kube-proxy mine \
             dnat ip to ip daddr . tcp dport . numgen random mod 7 map @tcp-endpoints");
    });
    let Some(program) = test_netns::nft_trixie(Path::new(env!("CARGO_TARGET_TMPDIR"))) else {
        return;
    };
    in_namespace(|| {
        let transport = JsonTransport::with_program(program).expect("nft 1.1.3 takes our maps");
        let mut node =
            Node::new(config(), NftProxier::new(NftConfig::default(), Box::new(transport)));
        node.sync(web());
        for last in 4..=8 {
            let endpoints: Vec<u8> = (1..=last).collect();
            node.sync([web_slice(&endpoints)]);
        }
        // The first comparison removes chains that nothing leads to any more.
        assert!(node.full().drift.is_none());
        let compared = node.full();
        assert!(compared.drift.is_none() && compared.bytes == 0, "{compared:?}");
    });
}
