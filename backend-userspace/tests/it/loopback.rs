//! Loopback addresses that a table lists.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

use switchyard_core::testing::{endpoint, service, slice};
use switchyard_userspace::{CaptureMode, Reachable, ShowTable, UserspaceConfig};

use crate::common::{answers, in_namespace, open, servers, settings, start, web, web_slice};

/// The table as it was shown last.
type Shown = Arc<Mutex<Vec<Reachable>>>;

fn shown() -> (UserspaceConfig, Shown) {
    let shown = Shown::default();
    let mut made = settings(CaptureMode::Loopback);
    let theirs = Arc::clone(&shown);
    made.table = Some(ShowTable::new(move |rows| *theirs.lock().unwrap() = rows.to_vec()));
    (made, shown)
}

fn only(shown: &Shown) -> Reachable {
    let rows = shown.lock().unwrap();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    row.clone()
}

#[test]
fn a_service_is_reached_at_the_address_in_the_table() {
    in_namespace(|| {
        let (settings, shown) = shown();
        let mut node = start(settings);
        servers(&[2, 3]);
        node.sync([web().apply()]);
        let row = only(&shown);
        assert_eq!((row.service.as_str(), row.port.as_str(), row.endpoints), ("ns/web", "http", 0));
        assert_eq!(row.cluster_ip.to_string(), "10.96.0.1:80");
        assert!(row.address.ip().is_loopback() && (20_000..30_000).contains(&row.address.port()));
        let address = row.address.to_string();
        assert_eq!(answers(&address, 1), [None], "no endpoint");

        node.sync([web_slice(&[2, 3])]);
        assert_eq!(only(&shown), Reachable { endpoints: 2, ..row.clone() });
        assert_eq!(answers(&address, 4), [2, 2, 3, 3].map(Some));
        assert_eq!(answers("127.0.0.1:30080", 2), [2, 3].map(Some), "the node port");

        node.sync([web().delete()]);
        assert_eq!(*shown.lock().unwrap(), []);
        for address in [&address, "127.0.0.1:30080"] {
            assert_eq!(answers(address, 1), [None], "{address}");
        }
    });
}

#[test]
fn an_address_stays_over_changes_and_restarts() {
    in_namespace(|| {
        let (settings, shown) = shown();
        let mut node = start(settings.clone());
        node.sync([web().apply()]);
        let before = only(&shown).address;
        node.sync([web_slice(&[2])]);
        assert_eq!(only(&shown).address, before);
        shown.lock().unwrap().clear();
        node.proxier = open(settings.clone());
        node.restart(open(settings));
        assert_eq!(only(&shown).address, before);
    });
}

#[test]
fn an_address_that_is_taken_is_passed_over() {
    in_namespace(|| {
        let (settings, shown) = shown();
        let mut node = start(settings.clone());
        servers(&[2]);
        node.sync([web().apply()]);
        let usual = only(&shown).address;
        node.sync([web().delete()]);
        let _server = TcpListener::bind(usual).unwrap();
        node.sync([web().apply(), web_slice(&[2])]);
        let next = SocketAddr::new(usual.ip(), usual.port() + 1);
        assert_eq!(only(&shown).address, next);
        assert_eq!(answers(&next.to_string(), 1), [Some(2)]);
    });
}

#[test]
fn both_families_and_protocols_have_addresses() {
    in_namespace(|| {
        let (settings, shown) = shown();
        let mut node = start(settings);
        let dual = service("dns", "10.96.0.10")
            .set("spec.clusterIPs", serde_json::json!(["10.96.0.10", "fd00::a"]))
            .set("spec.ipFamilies", serde_json::json!(["IPv4", "IPv6"]))
            .port("dns", "UDP", 53)
            .port("dns-tcp", "TCP", 53);
        let endpoints = slice("dns", "1").port("dns", "UDP", 5353).port("dns-tcp", "TCP", 5353);
        node.sync([dual.apply(), endpoints.endpoint(endpoint("127.0.0.2", "node-1")).apply()]);
        let rows = shown.lock().unwrap().clone();
        let words: Vec<_> = rows
            .iter()
            .map(|row| format!("{} {} {} {}", row.port, row.protocol, row.family, row.address.ip()))
            .collect();
        assert_eq!(
            words,
            [
                "dns UDP IPv4 127.0.0.1",
                "dns UDP IPv6 ::1",
                "dns-tcp TCP IPv4 127.0.0.1",
                "dns-tcp TCP IPv6 ::1"
            ]
        );
        assert_eq!(rows[0].address.port(), rows[1].address.port(), "localhost will do as a name");
    });
}
