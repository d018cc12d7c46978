//! A source that watches a stand-in.

use std::time::Duration;

use api_standin::{Options, Resource, Standin, load};
use serde_json::Value;
use switchyard_core::objects::Kind;
use switchyard_sources::kube::Timing;
use tokio::time;

pub use crate::kube::source::{AGENT, NODE, PATIENCE};

/// A source of a stand-in, and the sum of its events.
pub type Rig = crate::kube::source::Rig<Standin>;

impl Rig {
    pub async fn start(options: Options, timing: Timing, fill: impl FnOnce(&Standin)) -> Self {
        let server = Standin::start(options).await;
        fill(&server);
        let kubeconfig = server.kubeconfig();
        Self::with_kubeconfig(server, &kubeconfig, timing).await
    }

    /// Starts a source with the default options and timing.
    pub async fn plain(fill: impl FnOnce(&Standin)) -> Self {
        Self::start(Options::default(), Timing::default(), fill).await
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

    /// Returns the requests for a resource that contain `part`.
    pub fn requests(&self, resource: &str, part: &str) -> Vec<String> {
        let path = format!("/{resource}?");
        let requests = self.server.requests();
        requests.into_iter().filter(|r| r.contains(&path) && r.contains(part)).collect()
    }

    /// Returns the requests for lists of a resource that are not streamed.
    pub fn lists(&self, resource: &str) -> Vec<String> {
        self.requests(resource, "").into_iter().filter(|r| !r.contains("watch=true")).collect()
    }
}

/// Has the lists of Services and slices read in pages, in place of streams.
pub fn in_pages(server: &Standin) {
    for resource in [Resource::Services, Resource::EndpointSlices] {
        server.faults().fail_next(Some(resource), 410, 1);
    }
}

/// The options of a server that streams no lists.
pub fn paged() -> Options {
    Options { streaming_lists: false, ..Options::default() }
}

pub fn apply(server: &Standin, object: Value) {
    server.store().apply(object);
}

pub fn labelled(mut object: Value, label: &str) -> Value {
    object["metadata"]["labels"][label] = "".into();
    object
}

pub fn fill(server: &Standin, services: usize) {
    for name in ["node-0", NODE] {
        apply(server, load::node(name));
    }
    load::fill(server.store(), services, 5);
}
