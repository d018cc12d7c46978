//! One watch: lists, follows changes, and begins again after a failure.

mod answer;
mod decode;
mod failure;
mod list;
mod pauses;
mod protobuf;

use std::{
    hash::{BuildHasher, RandomState},
    marker::PhantomData,
    mem,
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Client,
    api::{ListParams, WatchParams},
    core::{Request, WatchEvent, watch::Bookmark},
};
use switchyard_core::{error::ErrorChain, objects::Event};
use tokio::{
    sync::mpsc::Sender,
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use self::{
    answer::ask,
    decode::{Item, Page, WatchItem, ends_list},
    failure::{Failure, ReceiverDropped},
    list::{Collected, List, log_nameless, malformed_event},
};
#[cfg(feature = "testing")]
pub use self::{answer::read_answer, decode::decode_item};
pub(crate) use self::{decode::DecodableObject, pauses::Pauses};
use crate::kube::{config::Timing, content_type::ContentType, health::Pulse, pace::Pacer};

/// Objects in a page of a list.
const PAGE_SIZE: u32 = 500;
/// A watch that ends within this time without an event counts as failed.
const EARLY: Duration = Duration::from_secs(1);
/// After so many failures in a row of lists that are not streamed, the list is streamed again.
const MAX_LIST_FAILURES: u32 = 3;
/// After so many failures of streamed lists, the next list is not streamed. Answers that the server
/// is overloaded do not count.
const MAX_STREAM_ERRORS: u32 = 5;
/// After so many watches in a row that were silent from the start, and again after as many more,
/// the server is asked for its version: one that was restored from a backup sends nothing up to the
/// version of a watch, and one where no object of the kind changes may not either.
const UNSURE: u32 = 2;
/// After so many such watches, 12 minutes, the version is given up if the server's is a newer one.
/// A server knows by etcd's notifications, each 10 minutes by default, that no object of the kind
/// has changed up to a newer version, and sends a bookmark of that. If the versions of a restored
/// server have passed that of the watch, only a list shows that the server was not just quiet: one
/// for each watch that is opened again, for which all nodes would ask after each outage.
const MAX_SILENT: u32 = 8;
/// After so many answers in a row that brought nothing but a failure, a list is read that is no
/// older than the version: the server may refuse each watch from it. The heads of further answers
/// are no news.
const MAX_FRUITLESS: u32 = 5;

/// Objects of a first list that are sent together: the receiver, which needs less time for one than
/// the list does, is not woken for each.
const GATHERED: usize = 32;

type Events<T> = BoxStream<'static, Result<WatchItem<T>, Failure>>;

/// The resource that a watch is about.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) path: &'static str,
    pub(crate) labels: Option<String>,
    pub(crate) fields: Option<String>,
    /// The name or address of the server, for the log.
    pub(crate) server: Option<String>,
    /// The form in which the server is asked for objects.
    pub(crate) form: ContentType,
    /// Whether the server may lack or forbid the resource.
    pub(crate) is_optional: bool,
}

pub(crate) struct Watch<T, I> {
    client: Client,
    pacer: Pacer,
    target: Target,
    timing: Timing,
    sender: Sender<I>,
    /// The events that are not sent yet, while there is no complete list.
    gathered: Vec<Event>,
    pulse: Pulse,
    /// The version up to which all changes were sent; `None` while there is no complete list.
    version: Option<String>,
    is_synced: bool,
    /// Whether an object was sent, which may be gone when the next list is read.
    has_sent: bool,
    /// Whether the next list is streamed.
    streams: bool,
    /// The version that a list which is not streamed may not be older than: the server takes such a
    /// list from its cache, in one piece. `None` asks for the newest, which older servers read from
    /// etcd.
    least: Option<String>,
    /// Whether the newest list is read in pages. Not after a list that the server forgot between
    /// two pages.
    pages: bool,
    /// Failures of lists that count against the present way to list, in a row.
    failures: u32,
    /// Watches in a row that were silent from the start.
    silent: u32,
    /// Whether the version was compared with the server's since the last watch.
    is_compared: bool,
    /// Failures in a row that the server answered with ([`Failure::is_answered`]).
    fruitless: u32,
    /// Whether the present request is a watch that has brought something.
    has_progressed: bool,
    is_absent: bool,
    item: PhantomData<fn() -> T>,
}

impl<T: DecodableObject, I: From<Event>> Watch<T, I> {
    pub(crate) fn new(
        (client, pacer): (Client, Pacer),
        target: Target,
        timing: Timing,
        sender: Sender<I>,
        pulse: Pulse,
    ) -> Self {
        Self {
            client,
            pacer,
            target,
            timing,
            sender,
            gathered: Vec::new(),
            pulse,
            version: None,
            is_synced: false,
            has_sent: false,
            streams: true,
            // Any version, as in client-go's first list.
            least: Some("0".to_owned()),
            pages: true,
            failures: 0,
            silent: 0,
            is_compared: false,
            fruitless: 0,
            has_progressed: false,
            is_absent: false,
            item: PhantomData,
        }
    }

    /// Lists and watches until the receiver is dropped.
    pub(crate) async fn run(mut self) {
        // A server that has other versions is in reach, and is asked for a list soon, however long
        // the pauses of an outage were.
        let [mut pauses, mut relists] = [Pauses::default(), Pauses::default()];
        loop {
            let result = self.step().await;
            if self.flush().await.is_err() {
                return;
            }
            if mem::take(&mut self.has_progressed) {
                pauses = Pauses::default();
                self.fruitless = 0;
            }
            let Err(failure) = result else {
                self.is_absent = false;
                self.fruitless = 0;
                continue;
            };
            let pauses = if failure.is_about_version() { &mut relists } else { &mut pauses };
            match self.recover(failure).await {
                Ok(None) => (),
                Ok(Some(at_least)) => time::sleep(pauses.next(at_least)).await,
                Err(ReceiverDropped) => return,
            }
        }
    }

    /// Makes one request and sends the events that it brings. `Ok` if the next can follow at once.
    async fn step(&mut self) -> Result<(), Failure> {
        let is_unsure = self.silent > 0 && self.silent.is_multiple_of(UNSURE);
        match self.version.clone() {
            Some(version) if is_unsure && !self.is_compared => self.compare(&version).await,
            Some(version) => self.watch(&version).await,
            None if self.streams => self.stream().await,
            None => self.list().await,
        }
    }

    /// Prepares for the next request after a failure. Returns how long to wait at least, or `None`
    /// if the next request can follow at once.
    async fn recover(&mut self, failure: Failure) -> Result<Option<Duration>, ReceiverDropped> {
        if matches!(failure, Failure::ReceiverDropped) {
            return Err(ReceiverDropped);
        }
        if self.target.is_optional && matches!(failure.code(), 403 | 404) {
            return self.do_without(&failure).await.map(Some);
        }
        self.fruitless += u32::from(failure.is_answered());
        Ok(match (&self.version, self.streams) {
            (None, true) => self.recover_stream(&failure),
            (None, false) => self.recover_list(&failure),
            (Some(_), _) => self.recover_watch(&failure),
        })
    }

    /// Has the list asked for without a stream if the failure is about streaming, or if streams
    /// have failed too often in whatever way: behind a proxy that passes no streams on, connections
    /// break, or answers do not come. A server that is overloaded (429) is asked for a stream
    /// again, as by client-go: other lists are a greater load.
    ///
    /// An outage counts, too, but pins nothing: without a server, the two ways take turns
    /// ([`Watch::recover_list`]), and after the outage some nodes read one list from the server's
    /// cache. From the first watch on, lists are streamed again.
    fn recover_stream(&mut self, failure: &Failure) -> Option<Duration> {
        let (kind, server) = (T::KIND, self.target.server.as_deref());
        if failure.code() == 410 {
            self.least = None;
        }
        if failure.is_about_streaming() {
            debug!(%kind, server, err = %ErrorChain(failure), "WatchList failed; falling back to list");
            self.change_way(false);
            return None;
        }
        if failure.code() != 429 {
            self.failures += 1;
        }
        if self.failures >= MAX_STREAM_ERRORS {
            info!(%kind, server, failures = self.failures, "Watch failed repeatedly; trying a list");
            self.change_way(false);
        }
        self.log_and_wait(failure)
    }

    /// Has the newest list read, in pages, if the server cannot use the version, or if the list in
    /// one piece did not arrive whole; has the list read in one piece if it expired between two
    /// pages, and streamed again if it failed too often.
    fn recover_list(&mut self, failure: &Failure) -> Option<Duration> {
        let is_too_much =
            failure.is_about_version() || matches!(failure.code(), 400 | 422) || failure.is_cut();
        if !(is_too_much && self.least.take().is_some()) {
            self.pages = self.pages && failure.code() != 410;
        }
        self.failures += 1;
        if self.failures >= MAX_LIST_FAILURES {
            self.change_way(true);
        }
        self.log_and_wait(failure)
    }

    /// Has the next list streamed or not.
    fn change_way(&mut self, streams: bool) {
        self.streams = streams;
        self.failures = 0;
    }

    /// Has everything listed again if the version is of no use.
    fn recover_watch(&mut self, failure: &Failure) -> Option<Duration> {
        let (kind, server) = (T::KIND, self.target.server.as_deref());
        let is_about_version = failure.is_about_version();
        let is_silent = self.silent >= MAX_SILENT;
        if is_about_version {
            info!(%kind, server, err = %ErrorChain(failure), "Watch expired; relisting");
        } else if is_silent || self.fruitless >= MAX_FRUITLESS {
            warn!(%kind, server, err = %ErrorChain(failure), "Watch failed repeatedly; relisting");
            self.pulse.failed(&ErrorChain(failure), failure.code() == 401);
        } else {
            return self.log_and_wait(failure);
        }
        // Neither a log that is too short nor a failure says anything against the version.
        let is_known = failure.code() == 410 || !(is_about_version || is_silent);
        self.least = self.version.take().filter(|_| is_known);
        self.silent = 0;
        Some(failure.retry_after())
    }

    fn log_and_wait(&self, failure: &Failure) -> Option<Duration> {
        let server = self.target.server.as_deref();
        if let Failure::Silence(_) = failure {
            // The server may have nothing to send. The next watch shows whether the server answers.
            debug!(kind = %T::KIND, server, err = %ErrorChain(failure), "Watch is quiet; reopening");
            return None;
        }
        warn!(kind = %T::KIND, server, err = %ErrorChain(failure), "Watch failed; retrying");
        self.pulse.failed(&ErrorChain(failure), failure.code() == 401);
        Some(failure.retry_after())
    }

    /// Goes on without a resource that the server does not have or does not allow.
    async fn do_without(&mut self, failure: &Failure) -> Result<Duration, ReceiverDropped> {
        if !self.is_absent {
            let server = self.target.server.as_deref();
            info!(kind = %T::KIND, server, err = %ErrorChain(failure), "Resource not available; continuing without it");
            self.is_absent = true;
        }
        self.pulse.absent();
        self.fruitless = 0;
        if !self.is_synced {
            self.complete(List::Collected(Collected::new(T::KIND))).await?;
        }
        Ok(self.timing.absent)
    }

    /// Streams a list, and then follows the changes that come after it.
    async fn stream(&mut self) -> Result<(), Failure> {
        let params = WatchParams { send_initial_events: true, ..self.watch_params() };
        let mut events = self.open(&params, "").await?;
        let mut list = self.begin();
        let version = loop {
            match self.next_event(&mut events).await? {
                // A modified one has changed since the list began.
                Some(WatchEvent::Added(item) | WatchEvent::Modified(item)) => {
                    self.add(&mut list, item).await?;
                }
                Some(WatchEvent::Deleted(item)) => self.remove(&mut list, item).await?,
                Some(WatchEvent::Bookmark(bookmark)) if ends_list(&bookmark) => {
                    break version_of(bookmark)?;
                }
                // A server that does not know `sendInitialEvents`: others send none before the end.
                Some(WatchEvent::Bookmark(_)) => return Err(Failure::Incomplete),
                Some(WatchEvent::Error(status)) => return Err(Failure::event(status)),
                None => return Err(Failure::Incomplete),
            }
        };
        self.version = Some(version);
        self.failures = 0;
        self.complete(list).await?;
        self.follow(events).await
    }

    /// Reads a list that is not streamed: from the server's cache, or else in pages.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut params = ListParams {
            // With a limit, the server would read the list from etcd.
            limit: (self.pages && self.least.is_none()).then_some(PAGE_SIZE),
            resource_version: self.least.clone(),
            ..self.list_params()
        };
        let mut list = self.begin();
        self.pacer.permit("GET").await;
        let version = loop {
            let page = self.page(&params).await?;
            for item in page.items.into_iter().flatten() {
                self.add(&mut list, item).await?;
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => break page.metadata.resource_version,
            }
        };
        let version = version.filter(|version| !version.is_empty()).ok_or(Failure::NoVersion)?;
        self.pages = true;
        self.version = Some(version);
        self.complete(list).await?;
        Ok(())
    }

    async fn page(&self, params: &ListParams) -> Result<Page<T>, Failure> {
        let request =
            Request::new(self.target.path).list(params).map_err(kube::Error::BuildRequest)?;
        let end = Instant::now() + self.timing.list;
        let answer = ask(&self.client, request, self.target.form);
        let answer = time::timeout_at(end, answer)
            .await
            .map_err(|_| Failure::NoAnswer(self.timing.list))??;
        let page = time::timeout_at(end, answer.page()).await;
        let page = page.map_err(|_| Failure::Cut("the time is over".to_owned()))??;
        self.pulse.heard();
        Ok(page)
    }

    /// Compares a version with the newest one of the server, which must not be older. A watch comes
    /// next in any case: only that shows whether the server has changes.
    async fn compare(&mut self, version: &str) -> Result<(), Failure> {
        self.is_compared = true;
        self.pacer.permit("GET").await;
        // As such a list shows etcd's version, a server may be able to send a bookmark afterwards.
        let params = ListParams { limit: Some(1), ..self.list_params() };
        let page = time::timeout(self.timing.response, self.page(&params)).await;
        let page = page.map_err(|_| Failure::NoAnswer(self.timing.response))??;
        let newest = page.metadata.resource_version;
        let newest = newest.filter(|newest| !newest.is_empty()).ok_or(Failure::NoVersion)?;
        let numbers = [version, &newest].map(|version| version.parse::<u64>());
        match (newest == version, numbers) {
            (true, _) => self.silent = 0,
            (false, [Ok(ours), Ok(newest)]) if newest > ours => {}
            (false, _) => return Err(Failure::WentBack { from: version.to_owned(), to: newest }),
        }
        Ok(())
    }

    /// Watches from a version on.
    async fn watch(&mut self, version: &str) -> Result<(), Failure> {
        let opened = Instant::now();
        let events = self.open(&self.watch_params(), version).await?;
        self.is_compared = false;
        // The next list can be streamed: the server may have been replaced.
        self.change_way(true);
        let result = self.follow(events).await;
        // Any event would have brought a newer version; a bookmark may bring the same.
        let is_same = self.version.as_deref() == Some(version);
        self.silent = match &result {
            Err(Failure::Silence(_)) if is_same => self.silent + 1,
            _ => 0,
        };
        result?;
        match opened.elapsed() < EARLY && is_same {
            true => Err(Failure::EndedEarly),
            false => Ok(()),
        }
    }

    fn list_params(&self) -> ListParams {
        ListParams {
            label_selector: self.target.labels.clone(),
            field_selector: self.target.fields.clone(),
            ..ListParams::default()
        }
    }

    fn watch_params(&self) -> WatchParams {
        let seconds = self.timing.watch.as_secs().max(1);
        let seconds = seconds + RandomState::new().hash_one(T::KIND) % (seconds + 1);
        WatchParams {
            label_selector: self.target.labels.clone(),
            field_selector: self.target.fields.clone(),
            timeout: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    async fn open(&self, params: &WatchParams, version: &str) -> Result<Events<T>, Failure> {
        let request = Request::new(self.target.path)
            .watch(params, version)
            .map_err(kube::Error::BuildRequest)?;
        self.pacer.permit("GET").await;
        let answer = ask(&self.client, request, self.target.form);
        let answer = time::timeout(self.timing.response, answer)
            .await
            .map_err(|_| Failure::NoAnswer(self.timing.response))??;
        if self.fruitless < MAX_FRUITLESS {
            self.pulse.heard();
        }
        Ok(answer.events().boxed())
    }

    /// Returns the next event; `None` if the server ended the watch.
    async fn next_event(&self, events: &mut Events<T>) -> Result<Option<WatchItem<T>>, Failure> {
        let event = time::timeout(self.timing.idle, events.try_next())
            .await
            .map_err(|_| Failure::Silence(self.timing.idle))??;
        if !matches!(event, None | Some(WatchEvent::Error(_))) {
            self.pulse.heard();
        }
        Ok(event)
    }

    /// Sends changes until the server ends the watch.
    async fn follow(&mut self, mut events: Events<T>) -> Result<(), Failure> {
        while let Some(event) = self.next_event(&mut events).await? {
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
                    self.version = Some(version_of(bookmark)?);
                }
                WatchEvent::Error(status) => return Err(Failure::event(status)),
            }
            self.has_progressed = true;
        }
        Ok(())
    }

    /// Records the version of an object. An object without a readable name may have none.
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

    async fn apply(&mut self, item: Item<T>) -> Result<(), ReceiverDropped> {
        self.has_sent = true;
        let event = match (item.content, item.key) {
            (Ok(object), _) => Event::Apply(object),
            (Err(fault), Some(key)) => malformed_event(key, fault),
            (Err(fault), None) => {
                log_nameless(T::KIND, &fault);
                return Ok(());
            }
        };
        self.send(event).await
    }

    /// Begins a list. The objects of the first are sent as they arrive, since nothing can be gone.
    fn begin(&self) -> List {
        match self.has_sent {
            true => List::Collected(Collected::new(T::KIND)),
            false => List::Sent,
        }
    }

    async fn add(&mut self, list: &mut List, item: Item<T>) -> Result<(), ReceiverDropped> {
        match list {
            List::Sent => self.apply(item).await,
            List::Collected(collected) => {
                collected.add(item);
                Ok(())
            }
        }
    }

    /// Removes an object from a list that is streamed.
    async fn remove(&mut self, list: &mut List, item: Item<T>) -> Result<(), ReceiverDropped> {
        match (list, item.key) {
            (List::Sent, Some(key)) => self.send(Event::Delete(key)).await,
            (List::Collected(collected), Some(key)) => {
                collected.remove(&key);
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }

    /// Sends what ends a list.
    async fn complete(&mut self, list: List) -> Result<(), ReceiverDropped> {
        info!(kind = %T::KIND, "Caches are synced");
        match list {
            List::Sent => self.send(Event::Listed(T::KIND)).await?,
            List::Collected(collected) => {
                for event in collected.into_events() {
                    self.send(event).await?;
                }
            }
        }
        self.flush().await?;
        self.gathered = Vec::new();
        self.is_synced = true;
        self.has_sent = true;
        self.fruitless = 0;
        self.pulse.synced();
        Ok(())
    }

    /// Sends an event, or gathers it while there is no complete list.
    async fn send(&mut self, event: Event) -> Result<(), ReceiverDropped> {
        self.gathered.push(event);
        let most = GATHERED.min(self.sender.max_capacity());
        match self.version.is_none() && self.gathered.len() < most {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    /// Sends what is gathered.
    async fn flush(&mut self) -> Result<(), ReceiverDropped> {
        let permits = self.sender.reserve_many(self.gathered.len()).await;
        let permits = permits.map_err(|_| ReceiverDropped)?;
        permits.zip(self.gathered.drain(..)).for_each(|(permit, event)| permit.send(event.into()));
        Ok(())
    }
}

fn version_of(bookmark: Bookmark) -> Result<String, Failure> {
    let version = bookmark.metadata.resource_version;
    if version.is_empty() { Err(Failure::NoVersion) } else { Ok(version) }
}
