//! The Kubernetes source against the API server's stand-in, at its best and at its worst.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use api_standin::{Options, Resource, Standin, load};
use proxy_core::objects::{Event, Kind, Object, ObjectKey};
use serde_json::{Value, json};
use switchyard::source::kube::{
    self, KubeConfig, KubeSourceError, Pacer, RequestPace, Timing, WatchHealth,
};
use tempfile::TempDir;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time,
};

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node that the source is on.
const NODE: &str = "node-1";

/// A source, and what its events add up to.
struct Rig {
    server: Standin,
    events: Receiver<Event>,
    health: WatchHealth,
    task: JoinHandle<Result<(), KubeSourceError>>,
    objects: BTreeMap<ObjectKey, Object>,
    malformed: BTreeMap<ObjectKey, (String, String)>,
    replaced: BTreeMap<Kind, usize>,
}

impl Rig {
    async fn start(options: Options, timing: Timing, fill: impl FnOnce(&Standin)) -> Self {
        let server = Standin::start(options).await.unwrap();
        fill(&server);
        let dir = tempfile::tempdir().unwrap();
        let client = kube::client(&config(&server, &dir)).await.unwrap();
        let (sender, events) = mpsc::channel(64);
        let pacer = Pacer::new(RequestPace { qps: -1.0, burst: 0 });
        let health = WatchHealth::new();
        let watches = kube::watch_all(client, pacer, timing, NODE, sender, health.clone());
        // The future borrows the node's name only, which is static.
        let task = tokio::spawn(watches);
        Self {
            server,
            events,
            health,
            task,
            objects: BTreeMap::new(),
            malformed: BTreeMap::new(),
            replaced: BTreeMap::new(),
        }
    }

    /// With everything as it is by default.
    async fn plain(fill: impl FnOnce(&Standin)) -> Self {
        Self::start(Options::default(), Timing::default(), fill).await
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Apply(object) => {
                self.malformed.remove(&object.key());
                self.objects.insert(object.key(), object);
            }
            Event::Delete(key) => {
                self.objects.remove(&key);
                self.malformed.remove(&key);
            }
            Event::Replace { kind, objects, malformed } => {
                *self.replaced.entry(kind).or_default() += 1;
                self.objects.retain(|key, _| key.kind != kind || malformed.contains(key));
                self.objects.extend(objects.into_iter().map(|object| (object.key(), object)));
            }
            Event::Malformed { object, field, message } => {
                self.malformed.insert(object, (field, message));
            }
        }
    }

    /// Takes events until the condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = time::Instant::now() + PATIENCE;
        while !condition(self) {
            match time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) => panic!("the source ended before: {what}"),
                Err(_) => panic!("in vain: {what}; {:?}", self.names(Kind::Service)),
            }
        }
    }

    async fn synced(&mut self) {
        self.until("all kinds", |rig| rig.replaced.len() == Kind::ALL.len()).await;
    }

    /// Takes whatever comes in this time.
    async fn wait(&mut self, duration: Duration) {
        let deadline = time::Instant::now() + duration;
        while let Ok(Some(event)) = time::timeout_at(deadline, self.events.recv()).await {
            self.take(event);
        }
    }

    fn names(&self, kind: Kind) -> BTreeSet<&str> {
        self.objects.keys().filter(|key| key.kind == kind).map(|key| key.name.as_str()).collect()
    }

    fn has(&self, kind: Kind, name: &str) -> bool {
        self.names(kind).contains(name)
    }

    /// The requests for a resource that contain this.
    fn requests(&self, resource: &str, part: &str) -> Vec<String> {
        let path = format!("/{resource}?");
        let requests = self.server.requests();
        requests.into_iter().filter(|r| r.contains(&path) && r.contains(part)).collect()
    }
}

fn config(server: &Standin, dir: &TempDir) -> KubeConfig {
    let path = dir.path().join("kubeconfig");
    server.write_kubeconfig(&path).unwrap();
    KubeConfig { kubeconfig: Some(path), ..KubeConfig::default() }
}

fn paged() -> Options {
    Options { streaming_lists: false, ..Options::default() }
}

fn apply(server: &Standin, object: Value) {
    server.store().apply(object).unwrap();
}

fn labelled(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"][label] = "".into();
    object
}

fn fill(server: &Standin, services: usize) {
    for name in ["node-0", NODE] {
        apply(server, load::node(name));
    }
    load::fill(server.store(), services, 5).unwrap();
}

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
    let agent = rig.server.user_agent().unwrap();
    assert!(agent.starts_with("switchyard/") && agent.ends_with(" kubernetes/v1.36.2"), "{agent}");
}

#[tokio::test]
async fn lists_are_read_in_pages_where_they_are_not_streamed() {
    let rig = first_sync(paged()).await;
    assert_eq!(rig.requests("services", "limit=500").len(), 3);
    assert_eq!(rig.requests("services", "continue=").len(), 2);
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 1);
}

#[tokio::test]
async fn changes_and_selections_are_followed() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    let proxy = "service.kubernetes.io/service-proxy-name";
    apply(&rig.server, labelled(load::service(0), proxy));
    rig.until("a Service that leaves", |rig| !rig.has(Kind::Service, "svc-0")).await;
    apply(&rig.server, load::service(0));
    rig.until("a Service that comes back", |rig| rig.has(Kind::Service, "svc-0")).await;
    let headless = labelled(load::slice(1, 0, &[5]), "service.kubernetes.io/headless");
    apply(&rig.server, headless);
    rig.until("a slice that leaves", |rig| !rig.has(Kind::EndpointSlice, "svc-1-0")).await;
    rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-2");
    rig.until("a deletion", |rig| !rig.has(Kind::Service, "svc-2")).await;
    let mut node = load::node(NODE);
    node["metadata"]["labels"]["topology.kubernetes.io/zone"] = "elsewhere".into();
    apply(&rig.server, load::node("node-7"));
    apply(&rig.server, node);
    rig.until("the node's zone", |rig| {
        rig.objects.values().any(|object| match object {
            Object::Node(n) => n.metadata.labels["topology.kubernetes.io/zone"] == "elsewhere",
            _ => false,
        })
    })
    .await;
    assert_eq!(rig.names(Kind::Node), [NODE].into());
    apply(&rig.server, load::slice(2, 0, &[77]));
    let address = load::endpoint_ip(77).to_string();
    rig.until("an endpoint", |rig| {
        rig.objects.values().any(|object| match object {
            Object::EndpointSlice(s) => s.endpoints[0].addresses[0] == address,
            _ => false,
        })
    })
    .await;
    assert!(rig.replaced.values().all(|count| *count == 1));
}

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
    rig.wait(Duration::from_millis(300)).await;
    // All that could be told from is forgotten but the newest version.
    rig.server.faults().cut_connections();
    let deadline = time::Instant::now() + PATIENCE;
    // What is told before the cut is noticed could still come by the old connection.
    while rig.requests("services", "").len() < 2 {
        assert!(time::Instant::now() < deadline, "the watch of Services is not opened again");
        rig.wait(Duration::from_millis(10)).await;
    }
    apply(&rig.server, load::service(9));
    rig.until("a change after the cut", |rig| rig.has(Kind::Service, "svc-9")).await;
    let resumed = format!("resourceVersion={version}");
    assert_eq!(rig.requests("services", &resumed).len(), 1, "{:?}", rig.requests("services", ""));
    assert_eq!(rig.replaced[&Kind::Service], 1);
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
        rig.replaced[&Kind::Service] == 2 && rig.replaced[&Kind::EndpointSlice] == 2
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
async fn a_watch_that_is_told_to_start_over_does() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    rig.server.faults().expire_watches();
    rig.until("second lists", |rig| rig.replaced.values().all(|count| *count == 2)).await;
    rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-1");
    rig.until("a change", |rig| !rig.has(Kind::Service, "svc-1")).await;
}

#[tokio::test]
async fn a_version_that_the_server_does_not_know_is_given_up() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    rig.server.faults().fail_next(Some(Resource::Services), 504, 1);
    rig.server.faults().cut_connections();
    rig.until("a second list", |rig| rig.replaced[&Kind::Service] == 2).await;
    assert_eq!(rig.replaced[&Kind::EndpointSlice], 1);
}

#[tokio::test]
async fn a_cut_connection_is_replaced_at_once() {
    let mut rig = Rig::plain(|server| fill(server, 3)).await;
    rig.synced().await;
    // Long enough not to count as a failure to begin.
    rig.wait(Duration::from_millis(1100)).await;
    rig.server.faults().cut_connections();
    let cut = Instant::now();
    apply(&rig.server, load::service(8));
    rig.until("a change after the cut", |rig| rig.has(Kind::Service, "svc-8")).await;
    println!("a change after a cut took {:?}", cut.elapsed());
    assert_eq!(rig.replaced[&Kind::Service], 1);
}

#[tokio::test]
async fn a_silent_watch_is_opened_again() {
    let timing = Timing { idle: Duration::from_millis(400), ..Timing::default() };
    let mut rig = Rig::start(Options::default(), timing, |server| fill(server, 3)).await;
    rig.synced().await;
    let before = rig.requests("services", "").len();
    rig.server.faults().stall_watches(true);
    apply(&rig.server, load::service(8));
    rig.wait(Duration::from_millis(1500)).await;
    assert!(!rig.has(Kind::Service, "svc-8"));
    let reopened = rig.requests("services", "").len() - before;
    assert!((2..=5).contains(&reopened), "{reopened}");
    rig.server.faults().stall_watches(false);
    rig.until("a change after the silence", |rig| rig.has(Kind::Service, "svc-8")).await;
    assert_eq!(rig.replaced[&Kind::Service], 1);
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
async fn errors_are_retried() {
    for options in [Options::default(), paged()] {
        let mut rig = Rig::start(options, Timing::default(), |server| {
            fill(server, 3);
            server.faults().fail_next(Some(Resource::Services), 500, 1);
            server.faults().fail_next(Some(Resource::Services), 429, 1);
            server.faults().fail_next(Some(Resource::EndpointSlices), 403, 1);
        })
        .await;
        rig.synced().await;
        assert_eq!(rig.names(Kind::Service).len(), 3);
        assert_eq!(rig.names(Kind::EndpointSlice).len(), 3);
    }
}

fn malformed_service() -> Value {
    let mut service = load::service(1);
    service["spec"]["ports"] = json!([{"port": 80}, {"port": "http"}]);
    service
}

#[tokio::test]
async fn a_malformed_object_is_reported_and_the_rest_arrives() {
    for options in [Options::default(), paged()] {
        let mut rig = Rig::start(options, Timing::default(), |server| {
            fill(server, 3);
            apply(server, malformed_service());
            let nameless = json!({"metadata": {"name": {}}, "spec": {"clusterIP": "10.0.0.1"}});
            let store = server.store();
            store.apply_as(Resource::Services, "x", "nameless", nameless).unwrap();
        })
        .await;
        rig.synced().await;
        rig.until("a report", |rig| !rig.malformed.is_empty()).await;
        assert_eq!(rig.names(Kind::Service), ["svc-0", "svc-2"].into());
        let (key, (field, message)) = rig.malformed.first_key_value().unwrap();
        assert_eq!(key.to_string(), "Service load/svc-1");
        assert_eq!(field, "spec.ports[1].port");
        assert!(message.contains("\"http\""), "{message}");
        // Repaired, and broken again: the last state stays, through a new list too.
        apply(&rig.server, load::service(1));
        rig.until("the repair", |rig| rig.malformed.is_empty()).await;
        apply(&rig.server, malformed_service());
        rig.until("the report of a change", |rig| !rig.malformed.is_empty()).await;
        assert!(rig.has(Kind::Service, "svc-1"));
        rig.server.faults().expire_watches();
        rig.until("a second list", |rig| rig.replaced[&Kind::Service] == 2).await;
        assert!(rig.has(Kind::Service, "svc-1"));
        rig.server.store().delete(Resource::Services, load::NAMESPACE, "svc-1");
        rig.until("a deletion", |rig| !rig.has(Kind::Service, "svc-1")).await;
    }
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
async fn service_cidrs_may_be_missing_or_forbidden() {
    let timing = Timing { absent: Duration::from_millis(200), ..Timing::default() };
    for (code, options) in [(403, Options::default()), (404, paged())] {
        let refuse = |server: &Standin, on| match code {
            403 => server.faults().forbid(Resource::ServiceCidrs, on),
            _ => server.faults().hide(Resource::ServiceCidrs, on),
        };
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
    assert_eq!(rig.requests("services", "sendInitialEvents").len(), 2);
    rig.server.faults().trickle(None);
    rig.synced().await;
    assert_eq!(rig.names(Kind::Service).len(), 300);
}

#[tokio::test]
async fn the_source_ends_with_its_receiver() {
    let mut rig = Rig::plain(|server| fill(server, 1)).await;
    rig.synced().await;
    drop(rig.events);
    time::timeout(PATIENCE, rig.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn the_master_overrides_the_kubeconfig() {
    let server = Standin::start(Options::default()).await.unwrap();
    fill(&server, 1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    let elsewhere = server.kubeconfig().replace(&server.url(), "https://192.0.2.1:6443");
    std::fs::write(&path, elsewhere).unwrap();
    let (sender, mut events) = mpsc::channel(64);
    let config = KubeConfig {
        kubeconfig: Some(path),
        master: Some(server.address().to_string()),
        ..KubeConfig::default()
    };
    tokio::spawn(async move { kube::run(config, NODE, sender).await });
    let event = time::timeout(PATIENCE, events.recv()).await.unwrap();
    assert!(matches!(event, Some(Event::Replace { .. })));
}

#[tokio::test]
async fn what_cannot_be_reached_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let absent =
        KubeConfig { kubeconfig: Some(dir.path().join("absent")), ..KubeConfig::default() };
    let master = KubeConfig { master: Some("http://a b".to_owned()), ..KubeConfig::default() };
    for (config, part) in [(absent, "absent"), (master, "a b"), (KubeConfig::default(), "pod")] {
        let (sender, _events) = mpsc::channel(1);
        let error = kube::run(config, NODE, sender).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
