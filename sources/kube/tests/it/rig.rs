//! A source that watches a stand-in, and the sum of its events.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use api_standin::{Options, Standin, load};
use serde_json::Value;
use switchyard_core::objects::{Event, Kind, Object, ObjectKey};
use switchyard_source_kube::{
    self as source, KubeConfig, KubeSourceError, Pacer, RequestPace, Timing, WatchHealth,
};
use tempfile::TempDir;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time,
};

/// More time than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The node of the source.
pub const NODE: &str = "node-1";

/// The user agent of the source.
pub const AGENT: &str = "example/1.2";

/// A source and the sum of its events.
pub struct Rig {
    pub server: Standin,
    pub events: Receiver<Event>,
    pub health: WatchHealth,
    pub task: JoinHandle<Result<(), KubeSourceError>>,
    pub objects: BTreeMap<ObjectKey, Object>,
    pub malformed: BTreeMap<ObjectKey, (String, String)>,
    pub replaced: BTreeMap<Kind, usize>,
}

impl Rig {
    pub async fn start(options: Options, timing: Timing, fill: impl FnOnce(&Standin)) -> Self {
        let server = Standin::start(options).await.unwrap();
        fill(&server);
        let kubeconfig = server.kubeconfig();
        Self::with_kubeconfig(server, &kubeconfig, timing).await
    }

    /// Starts a source with this kubeconfig.
    pub async fn with_kubeconfig(server: Standin, kubeconfig: &str, timing: Timing) -> Self {
        let pacer = Pacer::new(RequestPace { qps: -1.0, burst: 0 });
        Self::with_pacer(server, kubeconfig, timing, pacer).await
    }

    /// Starts a source with this kubeconfig, whose requests are paced.
    pub async fn with_pacer(
        server: Standin,
        kubeconfig: &str,
        timing: Timing,
        pacer: Pacer,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = source::client(&config(kubeconfig, &dir)).await.unwrap();
        let (sender, events) = mpsc::channel(64);
        let health = WatchHealth::new();
        let watches = source::watch_all(client, pacer, timing, NODE, sender, health.clone());
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

    /// Starts a source with the default options and timing.
    pub async fn plain(fill: impl FnOnce(&Standin)) -> Self {
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
            other => panic!("{other:?}"),
        }
    }

    /// Takes events until the condition holds.
    pub async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let deadline = time::Instant::now() + PATIENCE;
        while !condition(self) {
            match time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) => panic!("the source ended before: {what}"),
                Err(_) => panic!("in vain: {what}; {:?}", self.names(Kind::Service)),
            }
        }
    }

    pub async fn synced(&mut self) {
        self.until("all kinds", |rig| rig.replaced.len() == Kind::ALL.len()).await;
    }

    /// Takes all events that arrive in this time.
    pub async fn wait(&mut self, duration: Duration) {
        let deadline = time::Instant::now() + duration;
        while let Ok(Some(event)) = time::timeout_at(deadline, self.events.recv()).await {
            self.take(event);
        }
    }

    /// Takes events until there are so many requests for a resource that contain `part`.
    pub async fn until_requests(&mut self, resource: &str, part: &str, count: usize) {
        let deadline = time::Instant::now() + PATIENCE;
        while self.requests(resource, part).len() < count {
            assert!(time::Instant::now() < deadline, "{:?}", self.requests(resource, ""));
            self.wait(Duration::from_millis(10)).await;
        }
    }

    /// Takes events until the server sends something more on the watch of a kind.
    pub async fn until_heard(&mut self, kind: Kind) {
        let start = time::Instant::now();
        while self.health.heard(kind).is_none_or(|ago| ago >= start.elapsed()) {
            assert!(start.elapsed() < PATIENCE, "nothing is sent about {kind}");
            self.wait(Duration::from_millis(5)).await;
        }
    }

    pub fn names(&self, kind: Kind) -> BTreeSet<&str> {
        self.objects.keys().filter(|key| key.kind == kind).map(|key| key.name.as_str()).collect()
    }

    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.names(kind).contains(name)
    }

    /// Returns the requests for a resource that contain `part`.
    pub fn requests(&self, resource: &str, part: &str) -> Vec<String> {
        let path = format!("/{resource}?");
        let requests = self.server.requests();
        requests.into_iter().filter(|r| r.contains(&path) && r.contains(part)).collect()
    }
}

/// Writes a kubeconfig to the directory and returns the configuration with it.
pub fn config(kubeconfig: &str, dir: &TempDir) -> KubeConfig {
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    KubeConfig { kubeconfig: Some(path), ..KubeConfig::new(AGENT) }
}

pub fn paged() -> Options {
    Options { streaming_lists: false, ..Options::default() }
}

pub fn apply(server: &Standin, object: Value) {
    server.store().apply(object).unwrap();
}

pub fn labelled(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"][label] = "".into();
    object
}

pub fn fill(server: &Standin, services: usize) {
    for name in ["node-0", NODE] {
        apply(server, load::node(name));
    }
    load::fill(server.store(), services, 5).unwrap();
}
