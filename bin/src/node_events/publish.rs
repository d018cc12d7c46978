//! The publisher of Events, which sends them to an API server.
//!
//! kube's recorder makes an Event that is published again within six minutes a series, whose count
//! `kubectl` shows. It does not compare notes, so each Event has its own recorder here:
//! another problem of the same object is another Event.

use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{
    Api, Client,
    api::ListParams,
    runtime::events::{self, EventType, Reporter},
};
use switchyard_core::{error::ErrorChain, model::ServiceName};
use switchyard_source_kube::Pacer;
use tokio::time;

use super::{Event, EventQueue, EventTarget, Message};

/// The time limit of an attempt.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of the request for a Service's UID. An Event may be sent without the UID.
const UID_TIMEOUT: Duration = Duration::from_secs(5);
/// The time without a repetition after which a series is over, as kube has it.
const SERIES: Duration = Duration::from_secs(6 * 60);
/// The reporting controller, under which tools look for kube-proxy's Events.
const CONTROLLER: &str = "kube-proxy";
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
    reporter: Reporter,
    patience: Patience,
    /// The Events of the last minutes, with the UIDs of the objects they are about.
    sent: HashMap<(Event, Option<String>), (events::Recorder, Instant)>,
}

impl Publisher {
    pub(super) fn new(client: Client, pacer: Pacer, node_name: &str, patience: Patience) -> Self {
        let host = fs::read_to_string("/proc/sys/kernel/hostname");
        let instance = format!("{CONTROLLER}-{}", host.as_deref().unwrap_or(node_name).trim());
        let instance = Some(clipped(&instance, LONGEST_INSTANCE).to_owned());
        let reporter = Reporter { controller: CONTROLLER.to_owned(), instance };
        let (node_name, sent) = (node_name.to_owned(), HashMap::new());
        Self { client, pacer, node_name, reporter, patience, sent }
    }

    pub(super) async fn run(mut self, mut queue: EventQueue) {
        while let Some(message) = queue.0.recv().await {
            match message {
                Message::Event(event) => self.send(event).await,
                // The caller may have stopped waiting.
                Message::Flush(sender) => drop(sender.send(())),
            }
        }
    }

    async fn send(&mut self, event: Event) {
        self.sent.retain(|_, (_, last)| last.elapsed() < SERIES);
        let regarding = self.reference(&event.regarding).await;
        let key = (event, regarding.uid.clone());
        let published = events::Event {
            type_: if key.0.is_warning { EventType::Warning } else { EventType::Normal },
            reason: key.0.reason.to_owned(),
            note: (!key.0.note.is_empty()).then(|| clipped(&key.0.note, LONGEST_NOTE).to_owned()),
            action: key.0.action.to_owned(),
            secondary: None,
        };
        if let Some((recorder, _)) = self.sent.remove(&key) {
            match self.attempt(&recorder, "PATCH", &published, &regarding).await {
                Ok(()) => {
                    self.sent.insert(key, (recorder, Instant::now()));
                    return;
                }
                // The Event was deleted in the meantime: a new one is created.
                Err(Some(kube::Error::Api(status))) if status.code == 404 => {}
                Err(error) => return log_failure(&published, error),
            }
        }
        let recorder = events::Recorder::new(self.client.clone(), self.reporter.clone());
        match self.attempt(&recorder, "POST", &published, &regarding).await {
            Ok(()) => drop(self.sent.insert(key, (recorder, Instant::now()))),
            Err(error) => log_failure(&published, error),
        }
    }

    /// Sends an Event, again and again while the server is unreachable or overloaded. Returns the
    /// error of a server that will reject the Event every time.
    async fn attempt(
        &self,
        recorder: &events::Recorder,
        method: &'static str,
        event: &events::Event,
        regarding: &ObjectReference,
    ) -> Result<(), Option<kube::Error>> {
        for attempt in 1..=self.patience.attempts {
            self.pacer.permit(method).await;
            let reason = match time::timeout(TIMEOUT, recorder.publish(event, regarding)).await {
                Ok(Ok(())) => return Ok(()),
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

    async fn reference(&self, regarding: &EventTarget) -> ObjectReference {
        let (kind, namespace, name, uid) = match regarding {
            EventTarget::Node => ("Node", None, &*self.node_name, None),
            EventTarget::Service(service) => {
                let ServiceName { namespace, name } = service;
                ("Service", Some(namespace.to_string()), &**name, self.uid(service).await)
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

fn log_failure(event: &events::Event, error: Option<kube::Error>) {
    let reason = &event.reason;
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
        kube::Error::Api(status) => (400..500).contains(&status.code) && status.code != 429,
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => true,
        _ => false,
    }
}

/// Returns the start of a text, of at most `most` bytes.
pub(super) fn clipped(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
