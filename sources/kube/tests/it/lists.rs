//! Lists: streamed, in pages, and from one to the other.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use api_standin::{Options, Resource, load};
use switchyard_core::objects::{Kind, Object};
use switchyard_source_kube::Timing;

use crate::rig::{AGENT, NODE, Rig, apply, fill, labelled, paged};

async fn first_sync(options: Options) -> Rig {
    let mut rig = Rig::start(options, Timing::default(), |server| {
        fill(server, 1100);
        let mut headless = load::service(2000);
        headless["spec"]["clusterIP"] = "None".into();
        apply(server, headless);
        let label = "service.kubernetes.io/service-proxy-name";
        apply(server, labelled(load::service(2001), label));
        let label = "service.kubernetes.io/headless";
        apply(server, labelled(load::slice(2000, 0, &[1]), label));
    })
    .await;
    rig.synced().await;
    assert_eq!(rig.names(Kind::Node), [NODE].into());
    assert_eq!(rig.names(Kind::ServiceCidr), ["kubernetes"].into());
    let expected: BTreeSet<_> = (0..1100).map(|index| format!("svc-{index}")).collect();
    assert_eq!(rig.names(Kind::Service), expected.iter().map(String::as_str).collect());
    assert_eq!(rig.names(Kind::EndpointSlice).len(), 1100);
    assert!(rig.replaced.values().all(|count| *count == 1), "{:?}", rig.replaced);
    for kind in Kind::ALL {
        assert!(rig.health.is_synced(kind) && rig.health.heard(kind).is_some());
    }
    // And changes follow.
    apply(&rig.server, load::service(3000));
    rig.until("a change", |rig| rig.has(Kind::Service, "svc-3000")).await;
    rig
}

#[tokio::test]
async fn lists_are_streamed() {
    let rig = first_sync(Options::default()).await;
    for (resource, parts) in [
        ("nodes", ["fieldSelector=metadata.name%3Dnode-1", "sendInitialEvents=true"]),
        ("services", ["fieldSelector=spec.clusterIP%21%3DNone", "allowWatchBookmarks=true"]),
        (
            "services",
            [
                "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name",
                "resourceVersionMatch=NotOlderThan",
            ],
        ),
        (
            "endpointslices",
            ["labelSelector=%21service.kubernetes.io%2Fheadless", "sendInitialEvents=true"],
        ),
    ] {
        for part in parts {
            assert_eq!(rig.requests(resource, part).len(), 1, "{resource} {part}");
        }
    }
    assert_eq!(rig.server.user_agent().as_deref(), Some(AGENT));
}

#[tokio::test]
async fn lists_are_read_in_pages_where_they_are_not_streamed() {
    let rig = first_sync(paged()).await;
    assert_eq!(rig.requests("services", "limit=500").len(), 3);
    assert_eq!(rig.requests("services", "continue=").len(), 2);
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 1);
}

#[tokio::test]
async fn a_silent_list_is_asked_for_again() {
    let timing = Timing { list: Duration::from_millis(400), ..Timing::default() };
    let mut rig = Rig::start(paged(), timing, |server| {
        fill(server, 3);
        server.faults().trickle(Some((1, Duration::from_secs(5))));
    })
    .await;
    rig.wait(Duration::from_millis(1000)).await;
    assert!(rig.replaced.is_empty());
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 3);
}

#[tokio::test]
async fn a_list_that_is_forgotten_between_pages_is_read_whole() {
    let mut rig = Rig::start(paged(), Timing::default(), |server| {
        fill(server, 600);
        server.faults().trickle(Some((20_000, Duration::from_millis(20))));
    })
    .await;
    // The first pages are on their way, the second are not asked for.
    while rig.requests("services", "limit=500").is_empty()
        || rig.requests("endpointslices", "limit=500").is_empty()
    {
        rig.wait(Duration::from_millis(20)).await;
    }
    rig.server.faults().expire_log();
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 600);
    assert_eq!(rig.requests("services", "continue=").len(), 1);
    let whole = rig.requests("services", "").into_iter().filter(|r| !r.contains("watch="));
    assert_eq!(whole.filter(|request| !request.contains("limit=")).count(), 1);
}

#[tokio::test]
async fn a_list_that_streams_too_slowly_is_read_in_pages() {
    let timing = Timing { watch: Duration::from_secs(1), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| {
        fill(server, 300);
        server.faults().trickle(Some((1000, Duration::from_millis(10))));
    })
    .await;
    rig.until("pages", |rig| !rig.requests("services", "limit=500").is_empty()).await;
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 1);
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 300);
}

async fn sixty_thousand_endpoints(options: Options) {
    let start = Instant::now();
    let mut rig = Rig::start(options, Timing::default(), |server| {
        load::fill(server.store(), 12_000, 5).unwrap();
    })
    .await;
    let filled = start.elapsed();
    rig.synced().await;
    println!("filled in {filled:?}, synced in {:?}", start.elapsed() - filled);
    assert_eq!(rig.names(Kind::Service).len(), 12_000);
    let addresses: BTreeSet<_> = rig
        .objects
        .values()
        .filter_map(|object| match object {
            Object::EndpointSlice(slice) => Some(slice),
            _ => None,
        })
        .flat_map(|slice| &slice.endpoints)
        .map(|endpoint| endpoint.addresses[0].clone())
        .collect();
    assert_eq!(addresses.len(), 60_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_thousand_endpoints_arrive_in_streams() {
    sixty_thousand_endpoints(Options::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_thousand_endpoints_arrive_in_pages() {
    sixty_thousand_endpoints(paged()).await;
}

#[tokio::test]
async fn a_streamed_list_that_ends_in_an_error_is_read_in_pages() {
    let mut rig = Rig::start(Options::default(), Timing::default(), |server| {
        fill(server, 3);
        server.faults().progress_requests(false);
    })
    .await;
    rig.synced().await;
    apply(&rig.server, load::service(8));
    rig.until("a change", |rig| rig.has(Kind::Service, "svc-8")).await;
    let counts = |rig: &Rig| {
        ["sendInitialEvents", "limit=500"].map(|part| rig.requests("services", part).len())
    };
    assert_eq!(counts(&rig), [1, 1]);
    // Each new list is tried as a stream once: the server may be another one.
    rig.server.faults().expire_watches();
    rig.until("a second list", |rig| rig.replaced[&Kind::Service] == 2).await;
    assert_eq!(counts(&rig), [2, 2]);
    apply(&rig.server, load::service(9));
    rig.until("a change", |rig| rig.has(Kind::Service, "svc-9")).await;
    rig.server.faults().progress_requests(true);
    rig.server.faults().expire_watches();
    rig.until("a third list", |rig| rig.replaced[&Kind::Service] == 3).await;
    assert_eq!(counts(&rig), [3, 2]);
}

#[tokio::test]
async fn a_streamed_list_that_never_ends_is_read_in_pages() {
    let timing = Timing { idle: Duration::from_millis(400), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| {
        fill(server, 3);
        server.faults().withhold_list_ends(true);
    })
    .await;
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 3);
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 1);
}

#[tokio::test]
async fn changes_while_a_list_is_streamed_are_part_of_it() {
    let mut rig = Rig::plain(|server| {
        fill(server, 3);
        server.faults().withhold_list_ends(true);
    })
    .await;
    while rig.requests("services", "sendInitialEvents").is_empty() {
        rig.wait(Duration::from_millis(10)).await;
    }
    // Time for the objects to be sent, so that these are changes and no objects.
    rig.wait(Duration::from_millis(300)).await;
    let mut changed = load::service(0);
    changed["spec"]["clusterIP"] = "10.9.9.9".into();
    apply(&rig.server, changed);
    rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-1");
    apply(&rig.server, load::service(8));
    rig.wait(Duration::from_millis(100)).await;
    assert!(rig.replaced.is_empty());
    rig.server.faults().withhold_list_ends(false);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service), ["svc-0", "svc-2", "svc-8"].into());
    let addresses: Vec<_> = rig
        .objects
        .values()
        .filter_map(|object| match object {
            Object::Service(service) => Some(service.spec.cluster_ip.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(addresses[0], "10.9.9.9");
    assert_eq!(rig.requests("services", "").len(), 1);
    assert!(rig.replaced.values().all(|count| *count == 1));
}

#[tokio::test]
async fn a_list_that_fails_is_not_asked_for_in_one_way_for_ever() {
    let mut rig = Rig::start(Options::default(), Timing::default(), |server| {
        fill(server, 3);
        server.faults().fail_next(Some(Resource::Services), 500, 4);
    })
    .await;
    rig.synced().await;
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 2);
    assert_eq!(rig.requests("services", "limit=500").len(), 3);
}
