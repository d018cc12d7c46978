//! Lists: streamed, in pages, and from one to the other.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api_standin::{Options, Resource, Standin, load};
use serde_json::{Value, json};
use switchyard_core::objects::{Event, Kind, Object};
use switchyard_sources::kube::{
    self as source, ContentType, KubeConfig, Pacer, RequestObserver, RequestPace, Timing,
};
use tokio::{sync::mpsc, time};

use crate::kube::{
    rig::{AGENT, NODE, PATIENCE, Rig, apply, fill, in_pages, labelled, paged},
    source::config,
};

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
    assert!(rig.listed.values().all(|count| *count == 1), "{:?}", rig.listed);
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
async fn lists_are_taken_from_the_servers_cache_where_they_are_not_streamed() {
    let mut rig = first_sync(paged()).await;
    let seconds = |request: &String| -> u64 {
        let rest = request.split_once("timeoutSeconds=").expect(request).1;
        rest.split('&').next().unwrap().parse().unwrap()
    };
    let watches = rig.requests("services", "watch=true");
    assert!(watches.iter().all(|watch| (300..=600).contains(&seconds(watch))), "{watches:?}");
    let lists = rig.lists("services");
    assert_eq!(lists.len(), 1, "{lists:?}");
    assert!(lists[0].contains("resourceVersion=0") && !lists[0].contains("limit="), "{lists:?}");
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 1);
    // A list that follows may not be older than what is known.
    let version = rig.server.store().version();
    rig.server.faults().expire_watches();
    rig.until("a second list", |rig| rig.listed[&Kind::Service] == 2).await;
    let lists = rig.lists("services");
    assert!(lists[1].contains(&format!("resourceVersion={version}")), "{lists:?}");
    assert!(!lists[1].contains("limit="), "{lists:?}");
}

/// Counts the requests that a pacer let through, and the bytes of lists.
#[derive(Debug, Default)]
struct Counts {
    permits: AtomicUsize,
    bytes: AtomicUsize,
}

impl RequestObserver for Counts {
    fn sent(&self, _verb: &str, _bytes: u64) {}

    fn answered(&self, _verb: &str, _status: Option<u16>, _elapsed: Duration) {}

    fn received(&self, _verb: &str, bytes: u64) {
        self.bytes.fetch_add(bytes as usize, Ordering::Relaxed);
    }

    fn held_back(&self, _verb: &str, _wait: Duration) {
        self.permits.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn managed_fields_are_left_out_by_servers_that_can() {
    for (options, can) in
        [(paged(), true), (paged(), false), (Options::default(), true), (Options::default(), false)]
    {
        let server = Standin::start(options.clone()).await;
        server.faults().drop_fields(can);
        fill(&server, 3);
        let managed = "x".repeat(100_000);
        let with_managed = |mut object: Value| {
            object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:metadata": &managed}}]);
            object
        };
        for index in 0..3 {
            apply(&server, with_managed(load::service(index)));
        }
        let dir = tempfile::tempdir().unwrap();
        let counts = Arc::new(Counts::default());
        let config = KubeConfig {
            observer: Some(counts.clone()),
            content_type: ContentType::Json,
            ..config(&server.kubeconfig(), &dir)
        };
        let (sender, mut events) = mpsc::channel(64);
        let source = tokio::spawn(async move { source::run(config, NODE, sender).await });
        let mut services = 0;
        loop {
            match time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap() {
                Event::Apply(Object::Service(_)) => services += 1,
                Event::Listed(Kind::Service) => break,
                _ => {}
            }
        }
        assert_eq!(services, 3);
        if !options.streaming_lists {
            let bytes = counts.bytes.load(Ordering::Relaxed);
            assert_eq!(bytes < 100_000, can, "{bytes}");
        }
        source.abort();
    }
}

#[tokio::test]
async fn a_list_counts_once_for_the_pace() {
    let server = Standin::start(paged()).await;
    fill(&server, 1100);
    in_pages(&server);
    let kubeconfig = server.kubeconfig();
    let counts = Arc::new(Counts::default());
    let pacer = Pacer::new(RequestPace { qps: 1e6, burst: 1000 }).observed_by(counts.clone());
    let mut rig = Rig::with_pacer(server, &kubeconfig, Timing::default(), pacer).await;
    rig.synced().await;
    // Each kind is asked for as a stream, in pages, and then watched.
    for resource in Resource::ALL {
        rig.until_requests(resource.name(), "watch=true", 2).await;
    }
    let further_pages = |resource| rig.requests(resource, "continue=").len();
    assert_eq!(["services", "endpointslices"].map(further_pages), [2, 2]);
    assert_eq!(rig.server.requests().len(), 3 * Kind::ALL.len() + 4);
    assert_eq!(counts.permits.load(Ordering::Relaxed), 3 * Kind::ALL.len());
}

#[tokio::test]
async fn a_list_without_a_version_is_not_taken() {
    let mut rig = Rig::start(paged(), Timing::default(), |server| {
        fill(server, 3);
        server.faults().omit_versions(true);
    })
    .await;
    rig.until_requests("services", "limit=500", 2).await;
    assert!(rig.listed.is_empty());
    rig.server.faults().omit_versions(false);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 3);
}

#[tokio::test]
async fn what_is_deleted_before_a_first_list_begins_again_is_gone() {
    let timing = Timing { idle: Duration::from_millis(400), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| {
        fill(server, 30);
        server.faults().trickle(Some((6000, Duration::from_secs(5))));
    })
    .await;
    rig.until("a part of the list", |rig| !rig.names(Kind::Service).is_empty()).await;
    let sent = rig.names(Kind::Service).first().unwrap().to_string();
    assert!(rig.listed.is_empty());
    rig.server.store().delete(Resource::Services, load::NAMESPACE, &sent);
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert!(!rig.has(Kind::Service, &sent));
    assert_eq!(rig.names(Kind::Service).len(), 29);
}

#[tokio::test]
async fn a_list_that_is_forgotten_between_pages_is_read_whole() {
    let mut rig = Rig::start(paged(), Timing::default(), |server| {
        fill(server, 600);
        in_pages(server);
        server.faults().trickle(Some((20_000, Duration::from_millis(20))));
    })
    .await;
    // The first pages are on their way, the second are not asked for.
    while rig.requests("services", "limit=500").is_empty()
        || rig.requests("endpointslices", "limit=500").is_empty()
    {
        rig.wait(Duration::from_millis(20)).await;
    }
    rig.server.store().expire_log();
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 600);
    assert_eq!(rig.requests("services", "continue=").len(), 1);
    let lists = rig.lists("services");
    assert_eq!(lists.iter().filter(|list| !list.contains("limit=")).count(), 1, "{lists:?}");
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
    assert!(rig.listed.is_empty());
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
    assert!(rig.listed.values().all(|count| *count == 1));
}
