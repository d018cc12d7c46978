//! A source that watches a server, and the sum of its events.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use switchyard_core::objects::{Event, Kind, Object, ObjectKey};
use switchyard_sources::kube::{
    self as source, KubeConfig, KubeSourceError, Pacer, RequestPace, Timing, WatchHealth,
};
use tempfile::TempDir;
pub use test_netns::wait::PATIENCE;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
    time,
};

pub const NODE: &str = "node-1";

pub const AGENT: &str = "example/1.2";

/// A source of a server `S`, and the sum of its events.
pub struct Rig<S> {
    pub server: S,
    pub events: Receiver<Event>,
    pub health: WatchHealth,
    pub task: JoinHandle<Result<(), KubeSourceError>>,
    pub objects: BTreeMap<ObjectKey, Object>,
    pub malformed: BTreeMap<ObjectKey, (String, String)>,
    pub listed: BTreeMap<Kind, usize>,
}

impl<S> Rig<S> {
    pub async fn with_kubeconfig(server: S, kubeconfig: &str, timing: Timing) -> Self {
        let pacer = Pacer::new(RequestPace { qps: -1.0, burst: 0 });
        Self::with_pacer(server, kubeconfig, timing, pacer).await
    }

    /// Starts a source with this kubeconfig, whose requests are paced.
    pub async fn with_pacer(server: S, kubeconfig: &str, timing: Timing, pacer: Pacer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = source::connect(&config(kubeconfig, &dir)).await.unwrap().client;
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
            listed: BTreeMap::new(),
        }
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
            Event::Listed(kind) => *self.listed.entry(kind).or_default() += 1,
            Event::Replace { kind, objects, malformed } => {
                *self.listed.entry(kind).or_default() += 1;
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
        self.until("all kinds", |rig| rig.listed.len() == Kind::ALL.len()).await;
    }

    /// Takes all events that arrive in this time.
    pub async fn wait(&mut self, duration: Duration) {
        let deadline = time::Instant::now() + duration;
        while let Ok(Some(event)) = time::timeout_at(deadline, self.events.recv()).await {
            self.take(event);
        }
    }

    pub fn names(&self, kind: Kind) -> BTreeSet<&str> {
        self.objects.keys().filter(|key| key.kind == kind).map(|key| key.name.as_str()).collect()
    }

    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.names(kind).contains(name)
    }
}

/// Writes a kubeconfig to the directory and returns the configuration with it.
pub fn config(kubeconfig: &str, dir: &TempDir) -> KubeConfig {
    let path = dir.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    KubeConfig { kubeconfig: Some(path), ..KubeConfig::new(AGENT) }
}
