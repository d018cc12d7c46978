//! Real and apparent refusals of the kernel.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::json;
use switchyard_core::{
    model::IpFamily,
    proxier::Proxier,
    testing::{ManyServices, endpoint, service, slice, until},
};
use switchyard_kernel::nftables::{
    ElementData, Family, Key, Operation, OperationKind, Transaction, TransportError, Verdict,
    testing::InterceptingTransport,
};

use crate::common::{
    Node, config, in_namespace, intercepted, netlink, nft, over, refused, start, web, web_slice,
};

/// The first element of an operation that adds some.
fn of_service(made: &Operation) -> Option<Option<Key>> {
    match &made.kind {
        OperationKind::AddElements(_, elements) => Some(Some(elements[0].key)),
        _ => None,
    }
}

/// Slots are known by the beginning of their keys, and elements of own sets by their set.
#[test]
fn a_service_is_left_out_whichever_of_its_objects_is_refused() {
    for set in ["service-ips", "tcp-endpoints", "tcp-affinity", "endpoints-", "clients-"] {
        in_namespace(|| {
            let events = [1, 2, 3].map(|number| {
                let name = format!("s{number}");
                let made = service(&name, &format!("10.96.0.{number}")).port("http", "TCP", 80);
                let ports = json!([{"name": "http", "port": 80}]);
                let address = format!("10.244.0.{number}");
                [
                    made.set("spec.sessionAffinity", "ClientIP").apply(),
                    slice(&name, "a")
                        .set("ports", ports)
                        .endpoint(endpoint(&address, "elsewhere"))
                        .apply(),
                ]
            });
            let of_set = move |made: &Operation| match &made.kind {
                OperationKind::AddElements(to, elements) if to.name.as_str().starts_with(set) => {
                    let is_of = |key: &Key| {
                        let key = key.as_slice();
                        key.starts_with(&[10, 96, 0, 2]) || key.starts_with(&[10, 244, 0, 2])
                    };
                    elements.iter().map(|element| element.key).find(is_of).map(Some)
                }
                OperationKind::AddSet(made) => {
                    let name = made.name.as_str();
                    let is_map = set == "clients-" && name.starts_with(set);
                    (is_map && name.contains("/s2/")).then_some(None)
                }
                _ => None,
            };
            let hook = move |made: &Transaction| refused(made, libc::EINVAL, of_set);
            let mut node = Node::new(config(), intercepted(hook));
            let report = node.sync(events.into_iter().flatten());
            let skipped: Vec<String> =
                report.degraded.iter().map(|skipped| skipped.port.name.to_string()).collect();
            assert_eq!(skipped, ["ns/s2:http"], "{set}");
        });
    }
}

/// Another program changes the tables during each attempt, the last one included.
#[test]
fn no_service_is_left_out_for_what_another_program_changes() {
    in_namespace(|| {
        let left = Arc::new(AtomicUsize::new(0));
        let attempts = left.clone();
        let hook = move |transaction: &Transaction| match attempts.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => refused(transaction, libc::EEXIST, of_service)
                .inspect_err(|_| attempts.store(0, Ordering::Relaxed)),
            left => {
                attempts.store(left - 1, Ordering::Relaxed);
                Err(TransportError::Conflict)
            }
        };
        let mut node = Node::new(config(), intercepted(hook));
        node.sync(web());
        node.apply([web_slice(&[1, 2])]);
        node.tracker.request_resync();
        // The last attempt is the fifth.
        left.store(5, Ordering::Relaxed);
        let report = node.sync([]);
        assert_eq!(left.load(Ordering::Relaxed), 0);
        // Until the family of the table is tried again.
        assert!(report.degraded.is_empty(), "{:?}", report.degraded);
        let programs = |node: &Node| IpFamily::ALL.map(|it| node.tracker.transition().programs(it));
        assert_eq!(programs(&node), [false, true]);
        assert!(node.sync([]).degraded.is_empty());
        assert_eq!(programs(&node), [true, true]);
    });
}

/// A report of a monitor is not forgotten if the comparison that follows a rejected change is
/// refused a Service.
#[test]
fn a_report_outlives_a_refusal() {
    in_namespace(|| {
        let errnos = Arc::new(Mutex::new(Vec::new()));
        let left = errnos.clone();
        let hook = move |transaction: &Transaction| {
            let errno = left.lock().expect("no panic").pop();
            errno.map_or(Ok(()), |errno| refused(transaction, errno, of_service))
        };
        let mut node = Node::new(config(), intercepted(hook));
        node.sync(web());
        let mut monitor = node.proxier.monitor().expect("the kernel notifies");
        let services = || nft("list chain ip kube-proxy services");
        let healthy = services();
        nft("add set ip kube-proxy theirs { type ipv4_addr; }; flush chain ip kube-proxy services");
        node.runtime.block_on(monitor.externally_changed()).expect("a report");
        // The change, and then the comparison, also as a batch of single elements.
        *errnos.lock().expect("no panic") = vec![libc::EINVAL, libc::EEXIST];
        let report = node.sync([web_slice(&[4])]);
        assert_eq!(report.degraded.len(), 1);
        assert_ne!(services(), healthy, "nothing was compared");
        node.tracker.request_repair();
        node.sync([]);
        assert_eq!(services(), healthy);
    });
}

/// Unknown clients after a failed sync: an endpoint may have left before a client was remembered
/// there.
#[test]
fn clients_of_a_family_that_was_left_out_are_forgotten() {
    in_namespace(|| {
        let sticky = service("sticky", "fd00:10:96::7")
            .port("http", "TCP", 80)
            .set("spec.sessionAffinity", "ClientIP")
            .apply();
        let endpoints = slice("sticky", "a")
            .set("addressType", "IPv6")
            .port("http", "TCP", 80)
            .endpoint(endpoint("fd00:10:244::1", "elsewhere"))
            .apply();
        start(config()).sync([sticky.clone(), endpoints.clone()]);
        let list = || nft("list table ip6 kube-proxy");
        let listed = list();
        let map = listed.lines().find_map(|line| line.trim().strip_prefix("map clients-"));
        let map = map.and_then(|map| map.strip_suffix(" {")).expect("a map");
        let client = "fd00::1 : fd00:10:244::9 . 80";
        nft(&format!("add element ip6 kube-proxy clients-{map} {{ {client} }}"));
        // Something is left to do in the family.
        nft("flush chain ip6 kube-proxy filter-input");
        let refuses = Arc::new(AtomicBool::new(true));
        let flag = refuses.clone();
        let is_meant = |made: &Operation| {
            let is_rule = matches!(made.kind, OperationKind::AddRule(..));
            (made.table.family == Family::Ip6 && is_rule).then_some(None)
        };
        let hook = move |transaction: &Transaction| match flag.load(Ordering::Relaxed) {
            true => refused(transaction, libc::EINVAL, is_meant),
            false => Ok(()),
        };
        let mut node = Node::new(config(), intercepted(hook));
        node.sync([sticky, endpoints]);
        assert!(list().contains("fd00::1 "), "the family is left as it is: {}", list());
        refuses.store(false, Ordering::Relaxed);
        node.try_sync().expect("a sync");
        until("clients are forgotten", || !list().contains("fd00::1 "));
    });
}

/// Each refusal costs an attempt of the sync, however many objects it names.
#[test]
fn many_services_are_left_out_at_once() {
    in_namespace(|| {
        let many = ManyServices { services: 900, endpoints: 2 };
        let attempts = Arc::new(AtomicUsize::new(0));
        let count = attempts.clone();
        let transport = InterceptingTransport::altering(netlink(), move |transaction| {
            count.fetch_add(1, Ordering::Relaxed);
            for operation in transaction.operations_mut() {
                let OperationKind::AddElements(_, elements) = &mut operation.kind else { continue };
                for element in elements {
                    // All but one.
                    if element.comment.as_deref().is_some_and(|name| name != "ns/svc-7:http") {
                        element.data = ElementData::Verdict(Verdict::Goto("nowhere".into()));
                    }
                }
            }
            Ok(())
        });
        let proxier = over(Box::new(transport));
        let mut node = Node::new(many.node(), proxier);
        node.apply(many.lists());
        let report = node.try_sync().expect("a sync");
        assert_eq!(report.degraded.len(), 899);
        assert_eq!(attempts.load(Ordering::Relaxed), 2);
    });
}
