//! The publisher of Events, which sends them to an API server.
//!
//! An Event that is recorded again within six minutes becomes a series, whose count `kubectl` shows.
//! kube's own recorder does not compare notes, and gives an Event another name at each attempt, so
//! that an Event whose answer was lost is there twice.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{ObjectReference, Service},
        events::v1::{Event as ApiEvent, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use switchyard_core::{error::ErrorChain, model::ServiceName};
use switchyard_sources::kube::Pacer;
use tokio::time;

use super::{Event, EventQueue, EventTarget, Message};

/// The time limit of an attempt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of the request for a Service's UID. An Event may be sent without the UID.
const UID_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without a repetition after which a series is over.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// The reporting controller, under which tools look for kube-proxy's Events.
const CONTROLLER: &str = "kube-proxy";
/// The limit of the object's name in an Event's name, in bytes: the API accepts 253 characters, and
/// a time is appended.
const LONGEST_NAME: usize = 230;
/// The limits of a reporting instance and of a note, in bytes, as the API has them.
const LONGEST_INSTANCE: usize = 128;
const LONGEST_NOTE: usize = 1024;

/// The number of times, and the interval, at which an Event is sent before it is dropped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) attempts: u32,
    /// The wait between two attempts.
    pub(super) pause: Duration,
}

/// Sends queued Events as the proxy of a node, until the last [`Recorder`](super::Recorder) is
/// dropped.
pub async fn publish(client: Client, pacer: Pacer, node_name: &str, queue: EventQueue) {
    let patience = Patience { attempts: 12, pause: Duration::from_secs(10) };
    Publisher::new(client, pacer, node_name, patience).run(queue).await;
}

/// A client that sends Events, and remembers the Events that may become series.
pub(super) struct Publisher {
    client: Client,
    pacer: Pacer,
    node_name: String,
    instance: String,
    patience: Patience,
    /// The Events of the last minutes as they were sent, and when, by the UIDs of the objects they
    /// are about.
    sent: HashMap<(Event, Option<String>), (ApiEvent, Instant)>,
}

impl Publisher {
    pub(super) fn new(client: Client, pacer: Pacer, node_name: &str, patience: Patience) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname");
        let instance = format!("{CONTROLLER}-{}", host.as_deref().unwrap_or(node_name).trim());
        let instance = clipped(&instance, LONGEST_INSTANCE).to_owned();
        let (node_name, sent) = (node_name.to_owned(), HashMap::new());
        Self { client, pacer, node_name, instance, patience, sent }
    }

    pub(super) async fn run(mut self, mut queue: EventQueue) {
        while let Some(message) = queue.0.recv().await {
            match message {
                Message::Event(event, at) => self.send(event, at).await,
                // The caller may have stopped waiting.
                Message::Flush(sender) => drop(sender.send(())),
            }
        }
    }

    async fn send(&mut self, event: Event, at: Timestamp) {
        self.sent.retain(|_, (_, last)| last.elapsed() < SERIES);
        let regarding = self.reference(&event.regarding).await;
        let key = (event, regarding.uid.clone());
        let mut published = match self.sent.remove(&key) {
            Some((sent, _)) => {
                let count = sent.series.as_ref().map_or(1, |series| series.count) + 1;
                let series = EventSeries { count, last_observed_time: MicroTime(at) };
                ApiEvent { series: Some(series), ..sent }
            }
            None => self.api_event(&key.0, regarding.clone(), at),
        };
        let mut result = self.attempt(&published).await;
        // The Event was deleted in the meantime: a new one is created.
        if let Err(Some(kube::Error::Api(status))) = &result
            && (status.code, published.series.is_some()) == (404, true)
        {
            published = self.api_event(&key.0, regarding, at);
            result = self.attempt(&published).await;
        }
        match result {
            Ok(()) => drop(self.sent.insert(key, (published, Instant::now()))),
            Err(error) => log_failure(key.0.reason, error),
        }
    }

    /// Sends an Event, again and again while the server is unreachable or overloaded. Returns the
    /// error of a server that will reject the Event every time.
    async fn attempt(&self, event: &ApiEvent) -> Result<(), Option<kube::Error>> {
        let creates = event.series.is_none();
        let method = if creates { "POST" } else { "PATCH" };
        for attempt in 1..=self.patience.attempts {
            self.pacer.permit(method).await;
            let reason = match time::timeout(TIMEOUT, self.request(event)).await {
                Ok(Ok(())) => return Ok(()),
                // An earlier attempt created the Event, and its answer was lost.
                Ok(Err(kube::Error::Api(status))) if status.code == 409 && creates => return Ok(()),
                Ok(Err(error)) if is_final(&error) => return Err(Some(error)),
                Ok(Err(error)) => ErrorChain(&error).to_string(),
                Err(_) => "timed out".to_owned(),
            };
            tracing::debug!(err = reason, attempt, "Failed to send an Event");
            if attempt < self.patience.attempts {
                time::sleep(self.patience.pause).await;
            }
        }
        Err(None)
    }

    /// Creates an Event, or raises the count of its series.
    async fn request(&self, event: &ApiEvent) -> Result<(), kube::Error> {
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        // Tools look there for Events about objects without a namespace.
        let namespace = namespace.as_deref().unwrap_or("default");
        let events: Api<ApiEvent> = Api::namespaced(self.client.clone(), namespace);
        match &event.series {
            None => events.create(&PostParams::default(), event).await?,
            Some(series) => {
                let patch = Patch::Merge(json!({"series": series}));
                let name = name.as_deref().unwrap_or_default();
                events.patch(name, &PatchParams::default(), &patch).await?
            }
        };
        Ok(())
    }

    /// Returns the Event, which was recorded at the time `at`, as an object of the API.
    fn api_event(&self, event: &Event, regarding: ObjectReference, at: Timestamp) -> ApiEvent {
        let about = clipped(regarding.name.as_deref().unwrap_or_default(), LONGEST_NAME);
        ApiEvent {
            metadata: ObjectMeta {
                name: Some(format!("{about}.{:x}", at.as_nanosecond())),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(at)),
            reporting_controller: Some(CONTROLLER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(event.reason.to_owned()),
            action: Some(event.action.to_owned()),
            note: (!event.note.is_empty()).then(|| clipped(&event.note, LONGEST_NOTE).to_owned()),
            regarding: Some(regarding),
            ..ApiEvent::default()
        }
    }

    async fn reference(&self, regarding: &EventTarget) -> ObjectReference {
        let (kind, namespace, name, uid) = match regarding {
            EventTarget::Node => ("Node", None, &*self.node_name, None),
            EventTarget::Service(service) => {
                let (namespace, name) = service.parts();
                ("Service", Some(namespace.to_owned()), name, self.uid(service).await)
            }
        };
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name.to_owned()),
            uid,
            ..ObjectReference::default()
        }
    }

    /// Returns the UID of the Service, by which `kubectl describe` finds Events. The UID is
    /// requested when it is needed, because no other part of the program uses it. The request is a
    /// list: the role `system:node-proxier` may list Services, but not get them.
    async fn uid(&self, service: &ServiceName) -> Option<String> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), service.namespace());
        let parameters =
            ListParams::default().fields(&format!("metadata.name={}", service.name())).limit(1);
        self.pacer.permit("GET").await;
        let listed = time::timeout(UID_TIMEOUT, api.list_metadata(&parameters)).await;
        match listed {
            Ok(Ok(list)) => list.items.into_iter().next()?.metadata.uid,
            Ok(Err(error)) => {
                tracing::debug!(err = %ErrorChain(&error), %service, "Failed to get the UID of a Service");
                None
            }
            Err(_) => None,
        }
    }
}

fn log_failure(reason: &str, error: Option<kube::Error>) {
    match error {
        Some(error) => {
            let err = ErrorChain(&error);
            tracing::warn!(%err, reason, "API server rejected an Event; dropping it");
        }
        None => tracing::warn!(reason, "Failed to send an Event; dropping it"),
    }
}

/// Whether the server will reject the request every time.
fn is_final(error: &kube::Error) -> bool {
    match error {
        // A change in the meantime (409) or too many requests (429) pass.
        kube::Error::Api(status) => {
            (400..500).contains(&status.code) && !matches!(status.code, 409 | 429)
        }
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => true,
        _ => false,
    }
}

/// Returns the start of a text, of at most `most` bytes.
pub(super) fn clipped(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
