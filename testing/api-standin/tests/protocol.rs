//! The protocol as the ordinary client of the `kube` crate sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::time::Duration;

use api_standin::{Options, Resource, Standin, load};
use futures::{Stream, StreamExt, TryStreamExt, pin_mut};
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Config,
    api::{ListParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

async fn start(options: Options) -> (Standin, Client) {
    let server = Standin::start(options).await.unwrap();
    let client = client(&server.kubeconfig()).await;
    (server, client)
}

async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

async fn request(client: &Client, path: &str) -> Result<Value, (u16, String)> {
    let request = kube::core::Request::new("").get("x", &Default::default()).unwrap();
    let mut request = request;
    *request.uri_mut() = path.parse().unwrap();
    match client.request_text(request).await {
        Ok(text) => Ok(serde_json::from_str(&text).unwrap()),
        Err(kube::Error::Api(status)) => Err((status.code, status.message.clone())),
        Err(other) => panic!("{other}"),
    }
}

fn fill(server: &Standin, services: usize) {
    load::fill(server.store(), services, 5).unwrap();
}

#[tokio::test]
async fn objects_are_listed_in_pages_of_one_snapshot() {
    let (server, client) = start(Options::default()).await;
    fill(&server, 12);
    let api: Api<Service> = Api::all(client);
    let mut params = ListParams::default().limit(5);
    let first = api.list(&params).await.unwrap();
    assert_eq!(first.items.len(), 5);
    // What changes between pages is not seen.
    server.store().delete(Resource::Services, load::NAMESPACE, "svc-9");
    server.store().apply(load::service(99)).unwrap();
    let (mut names, mut last) = (Vec::new(), first);
    loop {
        names.extend(last.items.iter().map(|s| s.metadata.name.clone().unwrap()));
        let Some(token) = last.metadata.continue_.clone() else { break };
        params = ListParams::default().limit(5).continue_token(&token);
        let next = api.list(&params).await.unwrap();
        assert_eq!(next.metadata.resource_version, last.metadata.resource_version);
        last = next;
    }
    let mut expected: Vec<_> = (0..12).map(|index| format!("svc-{index}")).collect();
    expected.sort();
    assert_eq!(names, expected);
    server.faults().expire_log();
    let error = api.list(&params).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 410));
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 12);
}

#[tokio::test]
async fn selectors_select() {
    let (server, client) = start(Options::default()).await;
    for name in ["a", "b"] {
        server.store().apply(load::node(name)).unwrap();
    }
    let nodes: Api<Node> = Api::all(client.clone());
    let list = nodes.list(&ListParams::default().fields("metadata.name=b")).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(nodes.get("a").await.unwrap().metadata.name.unwrap(), "a");
    let mut headless = load::service(0);
    headless["spec"]["clusterIP"] = "None".into();
    server.store().apply(headless).unwrap();
    server.store().apply(load::service(1)).unwrap();
    let services: Api<Service> = Api::namespaced(client, load::NAMESPACE);
    let params = ListParams::default().fields("spec.clusterIP!=None").labels("!x,app=app-1");
    assert_eq!(services.list(&params).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_watch_sends_changes_from_its_version_on() {
    let options = Options { bookmarks: Duration::from_millis(100), ..Options::default() };
    let (server, client) = start(options).await;
    fill(&server, 2);
    let api: Api<Service> = Api::all(client);
    let version = api.list(&ListParams::default()).await.unwrap().metadata.resource_version;
    let params = WatchParams::default().labels("!hidden");
    let events = api.watch(&params, &version.unwrap()).await.unwrap();
    pin_mut!(events);
    let mut next = async || match timeout(PATIENCE, events.try_next()).await.unwrap() {
        Ok(Some(WatchEvent::Added(s))) => format!("+{}", s.metadata.name.unwrap()),
        Ok(Some(WatchEvent::Modified(s))) => format!("~{}", s.metadata.name.unwrap()),
        Ok(Some(WatchEvent::Deleted(s))) => format!("-{}", s.metadata.name.unwrap()),
        Ok(Some(WatchEvent::Bookmark(b))) => format!("={}", b.metadata.resource_version),
        Ok(Some(WatchEvent::Error(e))) => format!("!{}", e.code),
        other => panic!("{other:?}"),
    };
    server.store().apply(load::service(2)).unwrap();
    server.store().apply(load::service(0)).unwrap();
    let mut hidden = load::service(1);
    hidden["metadata"]["labels"]["hidden"] = "".into();
    server.store().apply(hidden).unwrap();
    server.store().delete(Resource::Services, load::NAMESPACE, "svc-0");
    for expected in ["+svc-2", "~svc-0", "-svc-1", "-svc-0"] {
        assert_eq!(next().await, expected);
    }
    assert_eq!(next().await, format!("={}", server.store().version()));
    // Compaction does not end a watch that is up to date; `expire_watches` does.
    server.faults().expire_log();
    server.store().apply(load::service(3)).unwrap();
    assert_eq!(next().await, "+svc-3");
    server.faults().expire_watches();
    assert_eq!(next().await, "!410");
}

#[tokio::test]
async fn an_old_version_is_gone_and_a_new_version_too_large_for_lists() {
    let (server, client) = start(Options { log_capacity: 5, ..Options::default() }).await;
    fill(&server, 20);
    let api: Api<Service> = Api::all(client.clone());
    let events = api.watch(&WatchParams::default(), "2").await.unwrap();
    pin_mut!(events);
    let first = timeout(PATIENCE, events.try_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(first, WatchEvent::Error(status) if status.code == 410));
    let newer = "/api/v1/services?resourceVersion=9999&resourceVersionMatch=NotOlderThan";
    assert_eq!(request(&client, newer).await.unwrap_err().0, 504);
    let exact = "/api/v1/services?resourceVersion=2&resourceVersionMatch=Exact";
    assert_eq!(request(&client, exact).await.unwrap_err().0, 410);
}

#[tokio::test]
async fn lists_are_streamed_or_refused() {
    let (server, client) = start(Options::default()).await;
    fill(&server, 30);
    let api: Api<EndpointSlice> = Api::all(client);
    let params = WatchParams::default().initial_events();
    let stream = api.watch(&params, "0").await.unwrap();
    pin_mut!(stream);
    let mut count = 0;
    while let WatchEvent::Added(_) = next(&mut stream).await {
        count += 1;
    }
    assert_eq!(count, 30, "then a bookmark ends the list");
    server.store().apply(load::slice(50, 0, &[1])).unwrap();
    assert!(matches!(next(&mut stream).await, WatchEvent::Added(_)));
    server.faults().streaming_lists(false);
    server.faults().expire_watches();
    assert!(matches!(next(&mut stream).await, WatchEvent::Error(status) if status.code == 410));
    let Err(kube::Error::Api(refused)) = api.watch(&params, "0").await.map(drop) else {
        panic!("a stream of a server that streams no lists")
    };
    assert_eq!(refused.code, 422);
}

#[tokio::test]
async fn requests_without_the_token_are_refused() {
    let server = Standin::start(Options::default()).await.unwrap();
    let other = client(&server.kubeconfig().replace("standin-token", "other")).await;
    assert_eq!(request(&other, "/api/v1/nodes").await.unwrap_err().0, 401);
}

#[tokio::test]
async fn refusals_are_those_of_a_genuine_server() {
    let (server, reader) = start(Options::default()).await;
    fill(&server, 3);
    let path = "/api/v1/namespaces/load/services";
    let page = request(&reader, &format!("{path}?limit=2")).await.unwrap();
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    // With a selector, nothing is counted.
    let page = request(&reader, &format!("{path}?limit=2&labelSelector=app")).await.unwrap();
    assert_eq!(page["metadata"]["remainingItemCount"], Value::Null);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let anonymous = client(&server.kubeconfig_for("{}")).await;
    for (client, path, code) in [
        (&reader, format!("{path}?limit=2&continue={token}&resourceVersion=2"), 400),
        (&reader, format!("{path}?labelSelector=%3D%3D%3D"), 400),
        (&reader, format!("{path}?watch=true&resourceVersion=x"), 500),
        (&reader, format!("{path}?resourceVersion=x"), 400),
        (&anonymous, path.to_owned(), 403),
    ] {
        assert_eq!(request(client, &path).await.unwrap_err().0, code, "{path}");
    }
    // A streamed list of a version that does not exist begins as any other.
    let streamed = format!(
        "{path}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan&resourceVersion=999"
    );
    for (has_progress_requests, code) in [(true, 504), (false, 500)] {
        server.faults().progress_requests(has_progress_requests);
        let event = request(&reader, &streamed).await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &code.into()));
    }
    for (path, header, value) in [
        (format!("{path}?resourceVersion=999"), "retry-after", "1"),
        ("/apis/nonsense/v1/things".to_owned(), "content-type", "text/plain; charset=utf-8"),
        ("/api/v1/nonsense".to_owned(), "content-type", "application/json"),
    ] {
        let mut request = kube::core::Request::new("").get("x", &Default::default()).unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let answer = reader.send(request.map(Into::into)).await.unwrap();
        assert_eq!(answer.headers()[header], value, "{path}");
    }
}

#[tokio::test]
async fn faults_are_switched_on() {
    let (server, client) = start(Options::default()).await;
    server.store().apply(load::node("a")).unwrap();
    let get = async |path: &str| request(&client, path).await.map_err(|(code, _)| code);
    server.faults().fail_next(Some(Resource::Nodes), 500, 1);
    server.faults().throttle_next(None, 1, 1);
    assert_eq!(get("/api/v1/services").await.unwrap_err(), 429);
    assert_eq!(get("/api/v1/nodes").await.unwrap_err(), 500);
    assert!(get("/api/v1/nodes").await.is_ok());
    server.faults().forbid(Resource::ServiceCidrs, true);
    let (code, message) =
        request(&client, "/apis/networking.k8s.io/v1/servicecidrs").await.unwrap_err();
    assert_eq!(code, 403);
    assert!(message.contains("in API group \"networking.k8s.io\""), "{message}");
    server.faults().hide(Resource::Nodes, true);
    assert_eq!(get("/api/v1/nodes").await.unwrap_err(), 404);
    server.faults().hide(Resource::Nodes, false);
    // A trickle delays a list.
    server.faults().trickle(Some((200, Duration::from_millis(20))));
    let start = std::time::Instant::now();
    assert!(get("/api/v1/nodes").await.is_ok());
    assert!(start.elapsed() >= Duration::from_millis(40));
    server.faults().trickle(None);
    assert!(server.requests().iter().any(|request| request == "GET /api/v1/services"));
}

#[tokio::test]
async fn a_stalled_watch_is_silent_until_it_is_released_or_cut() {
    let (server, client) = start(Options::default()).await;
    let api: Api<Node> = Api::all(client);
    let version = server.store().version().to_string();
    server.faults().stall_watches(true);
    let events = api.watch(&WatchParams::default(), &version).await.unwrap();
    pin_mut!(events);
    server.store().apply(load::node("a")).unwrap();
    assert!(timeout(Duration::from_millis(200), events.try_next()).await.is_err());
    server.faults().stall_watches(false);
    let event = timeout(PATIENCE, events.try_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(event, WatchEvent::Added(_)));
    server.faults().cut_connections();
    // The client sees the end, or an error.
    assert!(!matches!(timeout(PATIENCE, events.try_next()).await.unwrap(), Ok(Some(_))));
}

#[tokio::test]
async fn events_are_kept() {
    let (server, client) = start(Options::default()).await;
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "reason": "Starting"});
    let request = kube::core::Request::new("/apis/events.k8s.io/v1/namespaces/default/events")
        .create(&Default::default(), event.to_string().into_bytes())
        .unwrap();
    client.request_text(request).await.unwrap();
    assert_eq!(server.events(), [event]);
}

#[tokio::test]
async fn a_watch_from_a_later_version_is_silent_until_then() {
    let options = Options { bookmarks: Duration::from_millis(50), ..Options::default() };
    let (server, client) = start(options).await;
    fill(&server, 3);
    let version = server.store().version();
    server.faults().restore_backup();
    let api: Api<Service> = Api::all(client);
    let events = api.watch(&WatchParams::default(), &version.to_string()).await.unwrap();
    pin_mut!(events);
    server.store().apply(load::service(7)).unwrap();
    assert!(timeout(Duration::from_millis(300), events.try_next()).await.is_err());
    while server.store().version() < version {
        server.store().apply(load::service(7)).unwrap();
    }
    server.store().apply(load::service(8)).unwrap();
    loop {
        match timeout(PATIENCE, events.try_next()).await.unwrap().unwrap().unwrap() {
            WatchEvent::Bookmark(_) => (),
            WatchEvent::Added(service) => {
                assert_eq!(service.metadata.name.as_deref(), Some("svc-8"));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn next<K>(
    events: &mut (impl Stream<Item = Result<WatchEvent<K>, kube::Error>> + Unpin),
) -> WatchEvent<K> {
    timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap()
}

#[tokio::test]
async fn streamed_lists_end_in_an_error_or_late() {
    let (server, client) = start(Options::default()).await;
    fill(&server, 1);
    let api: Api<Service> = Api::all(client);
    let params = WatchParams { send_initial_events: true, ..WatchParams::default() };
    server.faults().progress_requests(false);
    let mut events = Box::pin(api.watch(&params, "0").await.unwrap());
    let WatchEvent::Error(status) = next(&mut events).await else { panic!("no error") };
    assert_eq!(status.code, 500);
    assert!(status.message.ends_with("RequestWatchProgress is disabled"), "{}", status.message);
    server.faults().progress_requests(true);
    server.faults().withhold_list_ends(true);
    let mut events = Box::pin(api.watch(&params, "0").await.unwrap());
    assert!(matches!(next(&mut events).await, WatchEvent::Added(_)));
    server.store().delete(Resource::Services, load::NAMESPACE, "svc-0");
    assert!(matches!(next(&mut events).await, WatchEvent::Deleted(_)));
    server.faults().withhold_list_ends(false);
    let WatchEvent::Bookmark(bookmark) = next(&mut events).await else { panic!("no bookmark") };
    assert!(bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end"));
}
