//! Watches: changes, and all that can happen to an open watch.

use std::time::Duration;

use api_standin::{Options, Resource, Standin, load};
use switchyard_core::objects::Kind;
use switchyard_sources::kube::Timing;
use tokio::time;

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

#[tokio::test]
async fn nothing_is_missed_while_the_log_expires() {
    let mut rig = Rig::plain(|server| fill(server, 10)).await;
    rig.synced().await;
    let faults = rig.server.faults();
    faults.refuse_connections(true);
    faults.cut_connections();
    rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-4");
    rig.server.store().delete(Resource::EndpointSlices, load::NAMESPACE, "svc-4-0");
    apply(&rig.server, load::service(70));
    rig.server.store().expire_log();
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
