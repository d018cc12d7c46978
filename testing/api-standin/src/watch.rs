//! Watches: changes from a version on, with bookmarks, and streamed lists.

use std::{future, time::Duration};

use bytes::Bytes;
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::Sender,
    time::{Instant, interval_at, sleep},
};

use crate::{
    answer::{self, Status, StreamedBody},
    faults::{Faults, Gone},
    log::Stored,
    media::MediaType,
    query::Query,
    resource::Resource,
    selector::Selector,
    store::Store,
};

/// The events that a watch starts with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// Changes after the version.
    From(u64),
    /// All objects, then changes. `marked` ends the objects with a bookmark.
    Objects { marked: bool },
    /// An error in the stream, as objects of a version that does not exist yet are asked for.
    TooLarge { version: u64, newest: u64 },
}

struct Watch {
    store: Store,
    faults: Faults,
    resource: Resource,
    namespace: Option<String>,
    selector: Selector,
    bookmarks: Option<Duration>,
    media: MediaType,
    body: Sender<Bytes>,
}

pub(crate) fn watch(
    store: &Store,
    faults: &Faults,
    resource: Resource,
    namespace: Option<&str>,
    query: &Query,
    bookmarks: Duration,
    media: MediaType,
) -> Result<Response<StreamedBody>, Status> {
    let wants_bookmarks = query.is_true("allowWatchBookmarks");
    let start = start(store, faults, query, wants_bookmarks)?;
    let limit = query.number("timeoutSeconds")?.filter(|seconds| *seconds > 0);
    let (sender, body) = StreamedBody::new();
    let watch = Watch {
        store: store.clone(),
        faults: faults.clone(),
        resource,
        namespace: namespace.map(ToOwned::to_owned),
        selector: query.selector()?,
        bookmarks: wants_bookmarks.then_some(bookmarks),
        media,
        body: sender,
    };
    tokio::spawn(async move {
        let limit = async {
            match limit {
                Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                None => future::pending().await,
            }
        };
        let mut gone = watch.faults.gone.subscribe();
        let is_gone = tokio::select! {
            _ = watch.run(start) => false,
            () = limit => false,
            () = watch.body.closed() => false,
            _ = gone.changed() => true,
        };
        if is_gone {
            let version = watch.store.version();
            let _ = watch.fail(&Status::expired(version - 1, version)).await;
        }
    });
    Ok(answer::answer(StatusCode::OK, media.watch_name(), body))
}

fn start(
    store: &Store,
    faults: &Faults,
    query: &Query,
    wants_bookmarks: bool,
) -> Result<Start, Status> {
    let matching = query.get("resourceVersionMatch");
    let version = query.watch_version()?;
    let newest = store.version();
    let too_large = version.filter(|version| *version > newest);
    if query.is_true("sendInitialEvents") {
        if matching != "NotOlderThan" {
            let message = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to \
                           NotOlderThan";
            return Err(Status::invalid("resourceVersionMatch", message));
        }
        if !faults.lock().streaming_lists {
            let message = "Forbidden: sendInitialEvents is forbidden for watch unless the \
                           WatchList feature gate is enabled";
            return Err(Status::invalid("sendInitialEvents", message));
        }
        return match too_large {
            Some(version) => Ok(Start::TooLarge { version, newest }),
            None => Ok(Start::Objects { marked: wants_bookmarks }),
        };
    }
    if !matching.is_empty() {
        let message = "Forbidden: resourceVersionMatch is forbidden for watch unless \
                       sendInitialEvents is provided";
        return Err(Status::invalid("resourceVersionMatch", message));
    }
    match version {
        None | Some(0) => Ok(Start::Objects { marked: false }),
        // Also a version that is too large: the watch opens and is silent until then.
        Some(version) => Ok(Start::From(version)),
    }
}

impl Watch {
    /// Runs until the client is gone or the watch's version is too old.
    async fn run(&self, start: Start) -> Result<(), Gone> {
        let mut version = match start {
            Start::From(_) if self.faults.lock().watches_end_at_once => return Ok(()),
            Start::From(version) => {
                if let Err(expired) = self.store.check(self.resource, version) {
                    return self.fail(&Status::expired(version, expired.oldest)).await;
                }
                version
            }
            Start::Objects { marked: true } | Start::TooLarge { .. }
                if !self.faults.lock().progress_requests =>
            {
                return self.fail(&Status::no_progress_requests()).await;
            }
            Start::TooLarge { version, newest } => {
                return self.fail(&Status::too_large(version, newest)).await;
            }
            Start::Objects { marked } => self.send_objects(marked).await?,
        };
        let first = version;
        let mut changes = self.store.subscribe();
        let period = self.bookmarks.unwrap_or(Duration::from_secs(3600));
        let mut bookmark = interval_at(Instant::now() + period, period);
        loop {
            self.send_changes(&mut version).await?;
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| Gone)?,
                _ = bookmark.tick(), if self.bookmarks.is_some() => {
                    // All changes up to `version` were sent. A server sends nothing up to the
                    // version that the watch began at.
                    if version > first {
                        self.send("BOOKMARK", &self.bookmark(version, false)).await?;
                    }
                }
            }
        }
    }

    /// Sends all objects as added, and the changes until the bookmark that ends the list may be
    /// sent. Returns the version that was reached.
    async fn send_objects(&self, marked: bool) -> Result<u64, Gone> {
        let Ok(snapshot) = self.store.snapshot(self.resource, None) else { return Err(Gone) };
        for object in snapshot.objects.values() {
            if self.is_in_namespace(object) && self.selector.matches(&object.value) {
                self.send("ADDED", &object.value).await?;
            }
        }
        let mut version = snapshot.version;
        if marked {
            let mut changes = self.store.subscribe();
            let mut withheld = self.faults.ends_withheld.subscribe();
            while *withheld.borrow_and_update() {
                self.send_changes(&mut version).await?;
                tokio::select! {
                    changed = changes.changed() => changed.map_err(|_| Gone)?,
                    changed = withheld.changed() => changed.map_err(|_| Gone)?,
                }
            }
            self.send_changes(&mut version).await?;
            self.send("BOOKMARK", &self.bookmark(version, true)).await?;
        }
        Ok(version)
    }

    /// Sends the changes after `version`, which grows by that. Fails if the log no longer has them.
    async fn send_changes(&self, version: &mut u64) -> Result<(), Gone> {
        let (events, newest) = match self.store.events(self.resource, *version, &self.selector) {
            Ok(found) => found,
            Err(expired) => {
                self.fail(&Status::expired(*version, expired.oldest)).await?;
                return Err(Gone);
            }
        };
        *version = newest.max(*version);
        for (kind, object) in events.iter().filter(|(_, object)| self.is_in_namespace(object)) {
            if self.faults.lock().omits_versions {
                let mut object = Value::clone(&object.value);
                object["metadata"]["resourceVersion"] = Value::Null;
                self.send(kind, &object).await?;
            } else {
                self.send(kind, &object.value).await?;
            }
        }
        Ok(())
    }

    fn is_in_namespace(&self, object: &Stored) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| object.value["metadata"]["namespace"] == **namespace)
    }

    fn bookmark(&self, version: u64, ends_objects: bool) -> Value {
        let mut metadata =
            json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        if ends_objects {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        json!({
            "kind": self.resource.kind(),
            "apiVersion": self.resource.api_version(),
            "metadata": metadata,
        })
    }

    async fn send(&self, kind: &str, object: &Value) -> Result<(), Gone> {
        self.faults.not_stalled().await;
        let object = self.media.object(self.resource, object);
        self.faults.write(&self.body, self.media.event(kind, &object)).await
    }

    async fn fail(&self, status: &Status) -> Result<(), Gone> {
        self.faults.not_stalled().await;
        let event = self.media.event("ERROR", &self.media.status(&status.to_json()));
        self.faults.write(&self.body, event).await
    }
}
