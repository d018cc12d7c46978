//! One watch: lists, follows changes, and begins again when something goes wrong.

use std::{
    hash::{BuildHasher, RandomState},
    marker::PhantomData,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Client,
    api::{ListParams, WatchParams},
    core::{Request, Status, WatchEvent},
    runtime::{utils::Backoff, watcher::DefaultBackoff},
};
use proxy_core::objects::Event;
use tokio::{
    sync::mpsc::Sender,
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use super::{
    Timing,
    decode::{Item, Lean, Page, Said, ends_objects},
    health::Pulse,
    list::{Collected, malformed_event, report_nameless},
    pace::Pacer,
};

/// Objects in a page of a list.
const PAGE_SIZE: u32 = 500;
/// A watch that ends within this time and says nothing counts as failed.
const EARLY: Duration = Duration::from_secs(1);
/// A watch that lasted this long makes the back-off begin anew.
const STABLE: Duration = Duration::from_secs(10);
/// After so many streamed lists that ended without their bookmark, pages are asked for.
const MAX_UNFINISHED: u32 = 2;
/// The longest time that the server can make us wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// An open watch.
type Events<T> = BoxStream<'static, Result<Said<T>, kube::Error>>;

/// What is watched.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) path: &'static str,
    pub(super) labels: Option<&'static str>,
    pub(super) fields: Option<String>,
    /// Whether we can do without it.
    pub(super) is_optional: bool,
}

/// A watch, and what it has learnt.
pub(super) struct Watch<T> {
    client: Client,
    pacer: Pacer,
    target: Target,
    timing: Timing,
    sender: Sender<Event>,
    pulse: Pulse,
    /// Up to where everything was sent; `None` before the list is complete.
    version: Option<String>,
    is_synced: bool,
    /// Whether the server streams lists, as far as is known.
    streams: bool,
    /// Whether lists are read in pages. Not after a list that the server forgot between pages.
    pages: bool,
    unfinished: u32,
    is_absent: bool,
    item: PhantomData<fn() -> T>,
}

/// Why a watch does not go on.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Nobody listens any more.
    #[error("nobody listens")]
    Unheard,
    /// The server answered with an error, or could not be reached.
    #[error("{}", describe(.0))]
    Request(#[from] kube::Error),
    /// The watch told of an error.
    #[error("{} ({})", .0.message, .0.code)]
    Status(Box<Status>),
    /// The list is not as lists are.
    #[error("the list cannot be decoded: {0}")]
    List(serde_json::Error),
    /// The server says nothing.
    #[error("the server said nothing for {} s", .0.as_secs_f32())]
    Silence(Duration),
    /// The watch ended as soon as it began.
    #[error("the watch ended at once")]
    Early,
    /// A streamed list ended before it was complete.
    #[error("the streamed list ended before it was complete")]
    Unfinished,
    /// An object or list does not say its version, so that one cannot watch from there.
    #[error("the server told no resource version")]
    NoVersion,
}

impl Failure {
    fn status(&self) -> Option<&Status> {
        match self {
            Self::Request(kube::Error::Api(status)) | Self::Status(status) => Some(status),
            _ => None,
        }
    }

    fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// The version is one that the server no longer has, or does not have yet (it was restored
    /// from a backup, or another one is behind).
    fn is_about_version(&self) -> bool {
        let is_too_large = |status: &Status| {
            status.code == 504 && status.message.contains("Too large resource version")
        };
        self.code() == 410
            || self.status().is_some_and(is_too_large)
            || matches!(self, Self::NoVersion)
    }

    /// How long the server asks us to wait.
    fn retry_after(&self) -> Duration {
        let seconds = self
            .status()
            .and_then(|status| status.details.as_ref())
            .map_or(0, |details| details.retry_after_seconds);
        Duration::from_secs(u64::from(seconds)).min(MAX_RETRY_AFTER)
    }
}

/// The cause at the end of the chain says what happened; the client's own words do not.
fn describe(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return format!("{} ({})", status.message, status.code);
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

impl<T: Lean> Watch<T> {
    pub(super) fn new(
        (client, pacer): (Client, Pacer),
        target: Target,
        timing: Timing,
        sender: Sender<Event>,
        pulse: Pulse,
    ) -> Self {
        Self {
            client,
            pacer,
            target,
            timing,
            sender,
            pulse,
            version: None,
            is_synced: false,
            streams: true,
            pages: true,
            unfinished: 0,
            is_absent: false,
            item: PhantomData,
        }
    }

    /// Lists and watches until nobody listens.
    pub(super) async fn run(mut self) {
        let mut backoff = DefaultBackoff::default();
        loop {
            let start = Instant::now();
            let Err(failure) = self.step().await else {
                self.is_absent = false;
                continue;
            };
            if start.elapsed() > STABLE {
                backoff.reset();
            }
            match self.recover(failure).await {
                Ok(None) => (),
                Ok(Some(pause)) => time::sleep(pause.max(next(&mut backoff))).await,
                Err(Unheard) => return,
            }
        }
    }

    /// Makes one request and takes in what it brings. `Ok` if the next can follow at once.
    async fn step(&mut self) -> Result<(), Failure> {
        match self.version.clone() {
            Some(version) => self.watch(&version).await,
            None if self.streams => self.stream().await,
            None => self.list().await,
        }
    }

    /// Learns from a failure. Returns how long to wait at least, or nothing if one need not.
    async fn recover(&mut self, failure: Failure) -> Result<Option<Duration>, Unheard> {
        let kind = T::KIND;
        let is_listing = self.version.is_none();
        match &failure {
            Failure::Unheard => return Err(Unheard),
            _ if self.target.is_optional && matches!(failure.code(), 403 | 404) => {
                return self.do_without(&failure).await.map(Some);
            }
            _ if is_listing && self.streams && matches!(failure.code(), 400 | 422) => {
                debug!(%kind, %failure, "lists are not streamed by this server; asking for pages");
                self.streams = false;
                return Ok(None);
            }
            Failure::Unfinished => {
                self.unfinished += 1;
                self.streams = self.unfinished < MAX_UNFINISHED;
            }
            _ if is_listing && !self.streams && failure.code() == 410 => self.pages = false,
            _ if failure.is_about_version() => {
                info!(%kind, %failure, "watch lost its place; listing again");
                self.version = None;
                return Ok(Some(failure.retry_after()));
            }
            _ => (),
        }
        warn!(%kind, %failure, "watch failed; trying again");
        self.pulse.failed(&failure);
        match failure {
            // That took its time already.
            Failure::Silence(_) => Ok(None),
            _ => Ok(Some(failure.retry_after())),
        }
    }

    /// Goes on without a resource that the server does not have, or does not let us see.
    async fn do_without(&mut self, failure: &Failure) -> Result<Duration, Unheard> {
        if !self.is_absent {
            info!(kind = %T::KIND, %failure, "resource is not to be had; going on without it");
            self.is_absent = true;
        }
        if !self.is_synced {
            self.replace(Collected::new(T::KIND)).await?;
        }
        Ok(self.timing.absent)
    }

    /// Streams a list, and then follows the changes that come after it.
    async fn stream(&mut self) -> Result<(), Failure> {
        let params = WatchParams { send_initial_events: true, ..self.watch_params() };
        let mut events = self.open(&params, "").await?;
        let mut collected = Collected::new(T::KIND);
        loop {
            match self.hear(&mut events).await? {
                Some(WatchEvent::Added(item)) => collected.add(item),
                // The server may be behind itself: these are changes since it began.
                Some(WatchEvent::Modified(item)) => {
                    collected.remove(&item);
                    collected.add(item);
                }
                Some(WatchEvent::Deleted(item)) => collected.remove(&item),
                Some(WatchEvent::Bookmark(bookmark)) if ends_objects(&bookmark) => {
                    self.version = Some(bookmark.metadata.resource_version);
                    break;
                }
                Some(WatchEvent::Bookmark(_)) => (),
                Some(WatchEvent::Error(status)) => return Err(Failure::Status(status)),
                None => return Err(Failure::Unfinished),
            }
        }
        self.unfinished = 0;
        self.replace(collected).await?;
        self.follow(events).await
    }

    /// Reads a list in pages.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut params = ListParams {
            label_selector: self.target.labels.map(str::to_owned),
            field_selector: self.target.fields.clone(),
            limit: self.pages.then_some(PAGE_SIZE),
            ..ListParams::default()
        };
        let mut collected = Collected::new(T::KIND);
        self.pacer.permit("GET").await;
        let version = loop {
            let page = self.page(&params).await?;
            for item in page.items.into_iter().flatten() {
                collected.add(item);
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => break page.metadata.resource_version,
            }
        };
        let version = version.filter(|version| !version.is_empty()).ok_or(Failure::NoVersion)?;
        self.pages = true;
        self.version = Some(version);
        self.replace(collected).await?;
        Ok(())
    }

    async fn page(&self, params: &ListParams) -> Result<Page<T>, Failure> {
        let request = Request::new(self.target.path)
            .list(params)
            .map_err(|error| Failure::Request(kube::Error::BuildRequest(error)))?;
        let text = time::timeout(self.timing.list, self.client.request_text(request))
            .await
            .map_err(|_| Failure::Silence(self.timing.list))??;
        self.pulse.beat();
        serde_json::from_str(&text).map_err(Failure::List)
    }

    /// Watches from a version on.
    async fn watch(&mut self, version: &str) -> Result<(), Failure> {
        let opened = Instant::now();
        let events = self.open(&self.watch_params(), version).await?;
        self.follow(events).await?;
        // Nothing came, or it would have a newer version.
        match opened.elapsed() < EARLY && self.version.as_deref() == Some(version) {
            true => Err(Failure::Early),
            false => Ok(()),
        }
    }

    fn watch_params(&self) -> WatchParams {
        let seconds = self.timing.watch.as_secs().max(1);
        let seconds = seconds + RandomState::new().hash_one(T::KIND) % (seconds + 1);
        WatchParams {
            label_selector: self.target.labels.map(str::to_owned),
            field_selector: self.target.fields.clone(),
            timeout: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    async fn open(&self, params: &WatchParams, version: &str) -> Result<Events<T>, Failure> {
        let request = Request::new(self.target.path)
            .watch(params, version)
            .map_err(|error| Failure::Request(kube::Error::BuildRequest(error)))?;
        self.pacer.permit("GET").await;
        let events = time::timeout(self.timing.response, self.client.request_events(request))
            .await
            .map_err(|_| Failure::Silence(self.timing.response))??;
        self.pulse.beat();
        Ok(events.boxed())
    }

    /// What the server says next; `None` if it ended the watch.
    async fn hear(&self, events: &mut Events<T>) -> Result<Option<Said<T>>, Failure> {
        let event = time::timeout(self.timing.idle, events.try_next())
            .await
            .map_err(|_| Failure::Silence(self.timing.idle))??;
        self.pulse.beat();
        Ok(event)
    }

    /// Sends changes until the server ends the watch.
    async fn follow(&mut self, mut events: Events<T>) -> Result<(), Failure> {
        while let Some(event) = self.hear(&mut events).await? {
            match event {
                WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                    self.advance(&item)?;
                    self.apply(item).await?;
                }
                WatchEvent::Deleted(item) => {
                    self.advance(&item)?;
                    if let Some(key) = item.key {
                        self.send(Event::Delete(key)).await?;
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.version = Some(bookmark.metadata.resource_version);
                }
                WatchEvent::Error(status) => return Err(Failure::Status(status)),
            }
        }
        Ok(())
    }

    /// Notes the version of an object that was told of. One that is not even named has none.
    fn advance(&mut self, item: &Item<T>) -> Result<(), Failure> {
        match (item.version.as_str(), &item.key) {
            ("", Some(_)) => Err(Failure::NoVersion),
            ("", None) => Ok(()),
            (version, _) => {
                self.version = Some(version.to_owned());
                Ok(())
            }
        }
    }

    async fn apply(&self, item: Item<T>) -> Result<(), Failure> {
        let event = match (item.content, item.key) {
            (Ok(object), _) => Event::Apply(object),
            (Err(fault), Some(key)) => malformed_event(key, fault),
            (Err(fault), None) => {
                report_nameless(T::KIND, &fault);
                return Ok(());
            }
        };
        Ok(self.send(event).await?)
    }

    /// Sends a complete list.
    async fn replace(&mut self, collected: Collected) -> Result<(), Unheard> {
        info!(kind = %T::KIND, objects = collected.len(), "all objects are known");
        for event in collected.into_events() {
            self.send(event).await?;
        }
        self.is_synced = true;
        self.pulse.synced();
        Ok(())
    }

    async fn send(&self, event: Event) -> Result<(), Unheard> {
        self.sender.send(event).await.map_err(|_| Unheard)
    }
}

/// Nobody listens any more.
#[derive(Clone, Copy, Debug)]
struct Unheard;

impl From<Unheard> for Failure {
    fn from(_: Unheard) -> Self {
        Self::Unheard
    }
}

fn next(backoff: &mut DefaultBackoff) -> Duration {
    // It never ends.
    backoff.next().unwrap_or(Duration::from_secs(30))
}
