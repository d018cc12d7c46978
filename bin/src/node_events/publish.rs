//! The publisher of Events, which sends them to an API server.
//!
//! An Event that is recorded again within six minutes does not become a new object: the existing
//! object becomes a series, whose count `kubectl` shows.

use std::{collections::HashMap, fs, time::Duration};

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
use switchyard_source_kube::Pacer;
use tokio::time;

use super::{Event, EventQueue, Message, Regarding};

/// The time limit of an attempt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of the request for a Service's UID. An Event may be sent without the UID.
const UID_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without a repetition after which a series is over.
const SERIES: jiff::SignedDuration = jiff::SignedDuration::from_mins(6);
/// The reporting controller, under which tools look for kube-proxy's Events.
const CONTROLLER: &str = "kube-proxy";
/// The limit of the object's name in an Event's name, in bytes: the API accepts 253 characters, and
/// a time is appended.
const LONGEST_NAME: usize = 230;
/// The limit of a note, in bytes, as the API has it.
const LONGEST_NOTE: usize = 1024;

/// How often and at which interval an Event is sent before it is dropped.
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
    host: String,
    patience: Patience,
    /// The Events of the last minutes, with the UIDs of the objects they are about.
    sent: HashMap<(Event, Option<String>), Sent>,
}

/// An Event that the server has accepted.
struct Sent {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
}

/// Why an Event was not sent.
enum Failure {
    /// The server rejected the Event.
    Rejected(Box<kube::Error>),
    /// The server was unreachable or overloaded in every attempt.
    Unreachable,
}

/// A request that creates or changes an Event.
enum Request<'a> {
    /// Creates an Event.
    Create(&'a ApiEvent),
    /// Makes an Event a series, or raises the series' count.
    Continue { namespace: String, name: String, series: EventSeries },
}

impl Request<'_> {
    fn method(&self) -> &'static str {
        match self {
            Self::Create(_) => "POST",
            Self::Continue { .. } => "PATCH",
        }
    }

    async fn send(&self, client: &Client) -> Result<(), kube::Error> {
        let events = |namespace| Api::<ApiEvent>::namespaced(client.clone(), namespace);
        match self {
            Self::Create(event) => {
                let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
                events(namespace).create(&PostParams::default(), event).await?;
            }
            Self::Continue { namespace, name, series } => {
                let patch = Patch::Merge(json!({"series": series}));
                events(namespace).patch(name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }
}

impl Publisher {
    pub(super) fn new(client: Client, pacer: Pacer, node_name: &str, patience: Patience) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.map_or_else(|_| node_name.to_owned(), |host| host.trim().to_owned());
        let (node_name, sent) = (node_name.to_owned(), HashMap::new());
        Self { client, pacer, node_name, host, patience, sent }
    }

    pub(super) async fn run(mut self, mut queue: EventQueue) {
        while let Some(message) = queue.0.recv().await {
            match message {
                Message::Event(event, at) => {
                    if let Err(failure) = self.send(&event, at).await {
                        log_failure(&event, failure);
                    }
                }
                // The caller may have stopped waiting.
                Message::Flush(sender) => drop(sender.send(())),
            }
        }
    }

    async fn send(&mut self, event: &Event, at: Timestamp) -> Result<(), Failure> {
        self.sent.retain(|_, sent| at.duration_since(sent.last) < SERIES);
        let uid = match &event.regarding {
            Regarding::Service(service) => self.uid(service).await,
            Regarding::Node => None,
        };
        let key = (event.clone(), uid);
        if let Some(sent) = self.sent.get_mut(&key) {
            sent.count += 1;
            sent.last = at;
            let request = Request::Continue {
                namespace: sent.namespace.clone(),
                name: sent.name.clone(),
                series: EventSeries { count: sent.count, last_observed_time: MicroTime(at) },
            };
            match self.attempt(&request).await {
                // The Event was deleted meanwhile: a new one is created.
                Err(Failure::Rejected(error)) if is_not_found(&error) => {}
                result => return result,
            }
        }
        let api_event = as_api_event(event, at, &self.node_name, &self.host, key.1.clone());
        self.attempt(&Request::Create(&api_event)).await?;
        let ObjectMeta { namespace, name, .. } = api_event.metadata;
        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
        self.sent.insert(key, Sent { namespace, name, count: 1, last: at });
        Ok(())
    }

    /// Sends a request, again and again while the server is unreachable or overloaded.
    async fn attempt(&self, request: &Request<'_>) -> Result<(), Failure> {
        for attempt in 1..=self.patience.attempts {
            self.pacer.permit(request.method()).await;
            let reason = match time::timeout(TIMEOUT, request.send(&self.client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if is_final(&error) => {
                    return Err(Failure::Rejected(Box::new(error)));
                }
                Ok(Err(error)) => ErrorChain(&error).to_string(),
                Err(_) => "timed out".to_owned(),
            };
            tracing::debug!(err = reason, attempt, "Failed to send an Event");
            if attempt < self.patience.attempts {
                time::sleep(self.patience.pause).await;
            }
        }
        Err(Failure::Unreachable)
    }

    /// Returns the UID of the Service, by which `kubectl describe` finds Events. The UID is requested
    /// when it is needed, because no other part of the program uses it. The request is a list: the
    /// role `system:node-proxier` may list Services, but not get them.
    async fn uid(&self, service: &ServiceName) -> Option<String> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.namespace);
        let parameters =
            ListParams::default().fields(&format!("metadata.name={}", service.name)).limit(1);
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

fn log_failure(event: &Event, failure: Failure) {
    let reason = event.reason;
    match failure {
        Failure::Rejected(error) => {
            let err = ErrorChain(&*error);
            tracing::warn!(%err, reason, "The API server rejected an Event; the Event is dropped");
        }
        Failure::Unreachable => {
            tracing::warn!(reason, "Failed to send an Event; the Event is dropped");
        }
    }
}

/// Whether the server will reject the request every time.
fn is_final(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => (400..500).contains(&status.code) && status.code != 429,
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => true,
        _ => false,
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Returns the Event as an object of the API. `uid` is the UID of the object that it is about.
pub(super) fn as_api_event(
    event: &Event,
    at: Timestamp,
    node_name: &str,
    host: &str,
    uid: Option<String>,
) -> ApiEvent {
    let (kind, namespace, name) = match &event.regarding {
        Regarding::Node => ("Node", None, node_name),
        Regarding::Service(ServiceName { namespace, name }) => {
            ("Service", Some(namespace.to_string()), &**name)
        }
    };
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(format!("{}.{:x}", clipped(name, LONGEST_NAME), at.as_nanosecond())),
            // Tools look here for Events about objects without a namespace.
            namespace: Some(namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(at)),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(clipped(&format!("{CONTROLLER}-{host}"), 128).to_owned()),
        action: Some(event.action.to_owned()),
        reason: Some(event.reason.to_owned()),
        type_: Some(if event.is_warning { "Warning" } else { "Normal" }.to_owned()),
        note: (!event.note.is_empty()).then(|| clipped(&event.note, LONGEST_NOTE).to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            namespace,
            name: Some(name.to_owned()),
            uid,
            ..ObjectReference::default()
        }),
        ..ApiEvent::default()
    }
}

/// Returns the start of a text, of at most `most` bytes.
fn clipped(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
