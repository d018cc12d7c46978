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
    ElementData, Family, Key, OperationKind, Refusal, Transaction, TransportError, Verdict,
    testing::InterceptingTransport,
};

use crate::common::{Node, config, in_namespace, netlink, nft, over, start, web, web_slice};

/// A node whose transactions a hook sees first.
fn intercepted(
    hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
) -> Node {
    let netlink = netlink();
    let transport = InterceptingTransport::new(netlink, hook);
    Node::new(config(), over(Box::new(transport)))
}

/// The refusal of the first operation of a kind.
fn refused(
    transaction: &Transaction,
    errno: i32,
    is_meant: impl Fn(Family, &OperationKind) -> bool,
) -> Option<TransportError> {
    let mut operations = transaction.operations().iter();
    let operation =
        operations.position(|operation| is_meant(operation.table.family, &operation.kind))?;
    let element = match &transaction.operations()[operation].kind {
        OperationKind::AddElements(_, elements) => Some(Box::new(elements[0].key)),
        _ => None,
    };
    let (subject, reason) = ("do it".to_owned(), "a test".to_owned());
    let refusal = Refusal { operation, element, subject, errno: Some(errno), reason };
    Some(TransportError::Refused(refusal, Vec::new()))
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
            let mut node = intercepted(move |transaction| {
                let mut operations = transaction.operations().iter().enumerate();
                let refusal = operations.find_map(|(operation, made)| {
                    let element = match &made.kind {
                        OperationKind::AddElements(to, elements)
                            if to.name.as_str().starts_with(set) =>
                        {
                            let is_of = |key: &Key| {
                                let key = key.as_slice();
                                key.starts_with(&[10, 96, 0, 2])
                                    || key.starts_with(&[10, 244, 0, 2])
                            };
                            Some(elements.iter().map(|element| element.key).find(is_of)?.into())
                        }
                        OperationKind::AddSet(made)
                            if set == "clients-"
                                && made.name.as_str().starts_with(set)
                                && made.name.as_str().contains("/s2/") =>
                        {
                            None
                        }
                        _ => return None,
                    };
                    let (subject, reason) = (String::new(), String::new());
                    Some(Refusal { operation, element, subject, errno: Some(libc::EINVAL), reason })
                });
                refusal.map_or(Ok(()), |refusal| Err(TransportError::Refused(refusal, Vec::new())))
            });
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
        let mut node = intercepted(move |transaction| match attempts.load(Ordering::Relaxed) {
            0 => Ok(()),
            1 => {
                let is_of_service =
                    |_, kind: &OperationKind| matches!(kind, OperationKind::AddElements(..));
                let refused = refused(transaction, libc::EEXIST, is_of_service);
                refused.map_or(Ok(()), |error| {
                    attempts.store(0, Ordering::Relaxed);
                    Err(error)
                })
            }
            left => {
                attempts.store(left - 1, Ordering::Relaxed);
                Err(TransportError::Conflict)
            }
        });
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
        let mut node = intercepted(move |transaction| {
            let is_of_service =
                |_, kind: &OperationKind| matches!(kind, OperationKind::AddElements(..));
            let errno = left.lock().expect("no panic").pop();
            errno.and_then(|it| refused(transaction, it, is_of_service)).map_or(Ok(()), Err)
        });
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
        let mut node = intercepted(move |transaction| {
            let is_meant = |family, kind: &OperationKind| {
                family == Family::Ip6 && matches!(kind, OperationKind::AddRule(..))
            };
            let refused = refused(transaction, libc::EINVAL, is_meant);
            refused.filter(|_| flag.load(Ordering::Relaxed)).map_or(Ok(()), Err)
        });
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
        let netlink = netlink();
        let transport = InterceptingTransport::altering(netlink, move |transaction| {
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
