//! Watches: changes, and all that can happen to an open watch.

use std::{
    io,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use api_standin::{Options, Resource, Standin, load};
use hyper::{Request, Response};
use kube::{Client, client::Body};
use serde_json::json;
use switchyard_core::objects::{Event, Kind};
use switchyard_sources::kube::{self as source, Pacer, RequestPace, Timing, WatchHealth};
use tokio::{sync::mpsc, time};
use tower::service_fn;

use crate::kube::rig::{PATIENCE, Rig, apply, fill, paged};

#[tokio::test]
async fn a_watch_resumes_from_its_last_bookmark() {
    let options = Options { bookmarks: Duration::from_millis(50), ..Options::default() };
    let mut rig = Rig::start(options, Timing::default(), |server| fill(server, 2)).await;
    rig.synced().await;
    // Only slices change; the watch of Services knows by bookmarks.
    for number in 0..20 {
        apply(&rig.server, load::slice(0, 0, &[number]));
    }
    let version = rig.server.store().version();
    // The first bookmark that arrives from now on may have been sent before.
    for _ in 0..2 {
        rig.until_heard(Kind::Service).await;
    }
    rig.server.faults().cut_connections();
    // A change before the cut is noticed could still arrive by the old connection.
    rig.until_requests("services", "", 2).await;
    apply(&rig.server, load::service(9));
    rig.until("a change after the cut", |rig| rig.has(Kind::Service, "svc-9")).await;
    let resumed = format!("resourceVersion={version}");
    assert_eq!(rig.requests("services", &resumed).len(), 1, "{:?}", rig.requests("services", ""));
    assert_eq!(rig.listed[&Kind::Service], 1);
}

async fn nothing_is_missed_while_the_log_expires(options: Options) {
    let mut rig = Rig::start(options, Timing::default(), |server| fill(server, 10)).await;
    rig.synced().await;
    let faults = rig.server.faults();
    faults.refuse_connections(true);
    faults.cut_connections();
    rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-4");
    rig.server.store().delete(Resource::EndpointSlices, load::NAMESPACE, "svc-4-0");
    apply(&rig.server, load::service(70));
    rig.server.faults().expire_log();
    // The last state stays while the server is away.
    rig.wait(Duration::from_millis(300)).await;
    assert_eq!(rig.names(Kind::Service).len(), 10);
    rig.server.faults().refuse_connections(false);
    rig.until("a second list", |rig| {
        rig.listed[&Kind::Service] == 2 && rig.listed[&Kind::EndpointSlice] == 2
    })
    .await;
    assert!(!rig.has(Kind::Service, "svc-4") && !rig.has(Kind::EndpointSlice, "svc-4-0"));
    assert!(rig.has(Kind::Service, "svc-70"));
}

#[tokio::test]
async fn nothing_is_missed_while_the_log_expires_with_streams() {
    nothing_is_missed_while_the_log_expires(Options::default()).await;
}

#[tokio::test]
async fn nothing_is_missed_while_the_log_expires_with_pages() {
    nothing_is_missed_while_the_log_expires(paged()).await;
}

#[tokio::test]
async fn a_version_that_the_server_does_not_know_is_given_up() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    rig.server.faults().fail_next(Some(Resource::Services), 504, 1);
    rig.server.faults().cut_connections();
    rig.until("a second list", |rig| rig.listed[&Kind::Service] == 2).await;
    assert_eq!(rig.listed[&Kind::EndpointSlice], 1);
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let timing = Timing { idle: Duration::from_millis(1000), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| fill(server, 3)).await;
    rig.synced().await;
    let before = rig.requests("services", "").len();
    rig.server.faults().stall_watches(true);
    apply(&rig.server, load::service(8));
    rig.until_requests("services", "", before + 1).await;
    assert!(!rig.has(Kind::Service, "svc-8"));
    rig.server.faults().stall_watches(false);
    rig.until("a change after the silence", |rig| rig.has(Kind::Service, "svc-8")).await;
    assert_eq!(rig.listed[&Kind::Service], 1);
}

#[tokio::test]
async fn a_server_restored_from_a_backup_is_listed_again() {
    let timing = Timing { idle: Duration::from_millis(400), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| fill(server, 3)).await;
    rig.synced().await;
    rig.server.faults().restore_backup();
    rig.server.faults().cut_connections();
    // The new version is below that of the watch, which is therefore not sent the change.
    apply(&rig.server, load::service(8));
    rig.until("a change after the restoration", |rig| rig.has(Kind::Service, "svc-8")).await;
    assert!(rig.listed[&Kind::Service] > 1);
}

#[tokio::test]
async fn a_server_that_ends_watches_at_once_is_not_asked_in_a_tight_loop() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    let before = rig.requests("services", "").len();
    rig.server.faults().end_watches_at_once(true);
    rig.server.faults().cut_connections();
    rig.wait(Duration::from_millis(2000)).await;
    let reopened = rig.requests("services", "").len() - before;
    assert!((1..10).contains(&reopened), "{reopened}");
    rig.server.faults().end_watches_at_once(false);
    apply(&rig.server, load::service(8));
    rig.until("a change", |rig| rig.has(Kind::Service, "svc-8")).await;
}

#[tokio::test]
async fn a_server_that_is_busy_is_given_the_time_it_asks_for() {
    let start = Instant::now();
    let mut rig = Rig::plain(|server| {
        fill(server, 3);
        server.faults().throttle_next(Some(Resource::Services), 4, 1);
    })
    .await;
    rig.synced().await;
    assert!(start.elapsed() >= Duration::from_secs(4));
}

#[tokio::test]
async fn an_object_without_a_version_leads_to_a_list() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    rig.server.faults().omit_versions(true);
    apply(&rig.server, load::service(8));
    rig.until("a second list", |rig| rig.listed[&Kind::Service] == 2).await;
    assert!(rig.has(Kind::Service, "svc-8"));
    assert_eq!(rig.listed[&Kind::EndpointSlice], 1);
}

/// Has ServiceCIDRs answered by an error, or no longer.
fn refuse_cidrs(server: &Standin, code: u16, on: bool) {
    match code {
        403 => server.faults().forbid(Resource::ServiceCidrs, on),
        _ => server.faults().hide(Resource::ServiceCidrs, on),
    }
}

#[tokio::test]
async fn service_cidrs_may_be_missing_or_forbidden() {
    let timing = Timing { absent: Duration::from_millis(200), ..Timing::default() };
    for (code, options) in [(403, Options::default()), (404, paged())] {
        let refuse = |server: &Standin, on| refuse_cidrs(server, code, on);
        let mut rig = Rig::start(options, timing, |server| {
            fill(server, 1);
            refuse(server, true);
        })
        .await;
        rig.synced().await;
        assert!(rig.names(Kind::ServiceCidr).is_empty());
        refuse(&rig.server, false);
        rig.until("ServiceCIDRs", |rig| rig.has(Kind::ServiceCidr, "kubernetes")).await;
    }
}

#[tokio::test]
async fn service_cidrs_that_disappear_are_not_silent() {
    let timing = Timing { absent: Duration::from_millis(200), ..Timing::default() };
    for code in [403, 404] {
        let refuse = |server: &Standin, on| refuse_cidrs(server, code, on);
        let mut rig = Rig::start(Options::default(), timing, |server| fill(server, 1)).await;
        rig.synced().await;
        assert!(rig.health.heard(Kind::ServiceCidr).is_some());
        refuse(&rig.server, true);
        rig.server.faults().cut_connections();
        let deadline = time::Instant::now() + PATIENCE;
        while rig.health.heard(Kind::ServiceCidr).is_some() {
            assert!(time::Instant::now() < deadline, "the watch still counts as heard from");
            rig.wait(Duration::from_millis(10)).await;
        }
        assert!(rig.health.heard(Kind::Service).is_some());
        assert!(rig.has(Kind::ServiceCidr, "kubernetes"), "the last state stays");
        refuse(&rig.server, false);
        while rig.health.heard(Kind::ServiceCidr).is_none() {
            assert!(time::Instant::now() < deadline, "the watch is not heard from again");
            rig.wait(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn the_source_ends_with_its_receiver() {
    let mut rig = Rig::plain(|server| fill(server, 1)).await;
    rig.synced().await;
    drop(rig.events);
    time::timeout(PATIENCE, rig.task).await.unwrap().unwrap().unwrap();
}

/// A list, an outage, and a server that has forgotten the version, as each API server after its
/// start.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_back_without_the_version_is_listed_soon() {
    const OUTAGE: usize = 8;
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let service = service_fn(move |request: Request<Body>| {
        let mut requests = seen.lock().unwrap();
        let is_service = request.uri().path() == "/api/v1/services";
        if is_service {
            requests.push(time::Instant::now());
        }
        let bookmark = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"},
            },
        });
        let forgotten = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "reason": "Expired", "code": 410, "message": "too old resource version",
        });
        let event = match requests.len() {
            _ if !is_service => None,
            1 | 11 => Some(json!({"type": "BOOKMARK", "object": bookmark})),
            10 => Some(json!({"type": "ERROR", "object": forgotten})),
            _ => None,
        };
        async move {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let event = event.ok_or_else(refused)?;
            Ok::<_, io::Error>(Response::new(Body::from(format!("{event}\n").into_bytes())))
        }
    });
    let (sender, mut events) = mpsc::channel::<Event>(64);
    let (client, pacer) = (Client::new(service, "default"), Pacer::new(RequestPace::default()));
    tokio::spawn(async move {
        let health = WatchHealth::new();
        source::watch_all(client, pacer, Timing::default(), "node", sender, health).await
    });
    for _ in 0..2 {
        while !matches!(
            time::timeout(PATIENCE * 100, events.recv()).await.unwrap().unwrap(),
            Event::Listed(Kind::Service) | Event::Replace { kind: Kind::Service, .. }
        ) {}
    }
    let requests = requests.lock().unwrap();
    let pauses: Vec<_> = requests.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[OUTAGE - 1] > Duration::from_secs(20), "{pauses:?}");
    assert!(pauses[OUTAGE + 1] < Duration::from_secs(3), "{pauses:?}");
}
