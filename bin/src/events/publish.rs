//! Sends Events to an API server.
//!
//! What happens again within some minutes is no new Event: the one that is there becomes a series,
//! as `kubectl` shows it.

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
use proxy_core::model::ServiceName;
use serde_json::json;
use tokio::time;

use super::{Event, Message, Recorded, Regarding};
use crate::source::kube::Pacer;

/// How long an attempt may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to find out which Service has the name. The Event can do without.
const UID_TIMEOUT: Duration = Duration::from_secs(5);
/// After how long without a repetition a series is over.
const SERIES: jiff::SignedDuration = jiff::SignedDuration::from_mins(6);
/// Who reports, for whoever looks for the Events of a kube-proxy.
const CONTROLLER: &str = "kube-proxy";
/// The longest start of an Event's name: the API takes 253 characters, and a time is added.
const LONGEST_NAME: usize = 230;
/// The longest note that the API takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// How often an Event is tried to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) attempts: u32,
    /// Between two attempts.
    pub(super) pause: Duration,
}

/// Sends Events as the proxy of a node, until their recorder is gone.
pub async fn publish(client: Client, pacer: Pacer, node_name: &str, recorded: Recorded) {
    let patience = Patience { attempts: 12, pause: Duration::from_secs(10) };
    Publisher::new(client, pacer, node_name, patience).run(recorded).await;
}

/// What sends Events.
pub(super) struct Publisher {
    client: Client,
    pacer: Pacer,
    node_name: String,
    host: String,
    patience: Patience,
    /// What was sent lately, and about which object of the name.
    sent: HashMap<(Event, Option<String>), Sent>,
}

/// An Event that the server has.
struct Sent {
    namespace: String,
    name: String,
    count: i32,
    last: Timestamp,
}

/// Why something was not sent.
enum Failure {
    /// The server understood, and does not take it.
    Refused(Box<kube::Error>),
    /// It could not be reached, or had no time, again and again.
    Patience,
}

/// What the server is asked for.
enum Request<'a> {
    /// A new Event.
    Create(&'a ApiEvent),
    /// That an Event goes on.
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

    pub(super) async fn run(mut self, mut recorded: Recorded) {
        while let Some(message) = recorded.0.recv().await {
            match message {
                Message::Event(event, at) => {
                    if let Err(failure) = self.send(&event, at).await {
                        report(&event, failure);
                    }
                }
                // Whoever asked may have lost patience.
                Message::Flushed(sender) => drop(sender.send(())),
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
                // Somebody has tidied up.
                Err(Failure::Refused(error)) if is_not_found(&error) => {}
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

    /// Asks several times if the server cannot be reached or has no time.
    async fn attempt(&self, request: &Request<'_>) -> Result<(), Failure> {
        for attempt in 1..=self.patience.attempts {
            self.pacer.permit(request.method()).await;
            let reason = match time::timeout(TIMEOUT, request.send(&self.client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) if is_final(&error) => {
                    return Err(Failure::Refused(Box::new(error)));
                }
                Ok(Err(error)) => crate::error_chain(&error),
                Err(_) => "timed out".to_owned(),
            };
            tracing::debug!(err = reason, attempt, "Failed to send an Event");
            if attempt < self.patience.attempts {
                time::sleep(self.patience.pause).await;
            }
        }
        Err(Failure::Patience)
    }

    /// The UID of the Service that has the name now. `kubectl describe` looks for Events by that;
    /// it is asked for here because nothing else needs it. We may list Services, and not get them.
    async fn uid(&self, service: &ServiceName) -> Option<String> {
        let api: Api<Service> = Api::namespaced(self.client.clone(), &service.namespace);
        let parameters =
            ListParams::default().fields(&format!("metadata.name={}", service.name)).limit(1);
        self.pacer.permit("GET").await;
        let listed = time::timeout(UID_TIMEOUT, api.list_metadata(&parameters)).await;
        match listed {
            Ok(Ok(list)) => list.items.into_iter().next()?.metadata.uid,
            Ok(Err(error)) => {
                let err = crate::error_chain(&error);
                tracing::debug!(err, %service, "Cannot find out a Service's UID");
                None
            }
            Err(_) => None,
        }
    }
}

fn report(event: &Event, failure: Failure) {
    let reason = event.reason;
    match failure {
        Failure::Refused(error) => {
            let err = crate::error_chain(&*error);
            tracing::warn!(err, reason, "The API server refuses an Event; it is dropped");
        }
        Failure::Patience => {
            tracing::warn!(reason, "An Event could not be sent; it is dropped");
        }
    }
}

/// Whether the server understood, and will never take it.
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
            // Where Events about objects without a namespace are looked for.
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

/// At most so many bytes of a text.
fn clipped(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
