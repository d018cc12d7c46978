//! Kubernetes Events about the Node and about Services, as `kubectl describe` shows them.
//!
//! A [`Recorder`] queues Events and never waits; [`publish`] sends queued Events to an API server.
//! Delivery is best effort: an Event that the server rejects, or that cannot be sent in twelve
//! attempts, is dropped.

mod conntrack;
mod publish;
mod unsupported;

use std::time::Duration;

use jiff::Timestamp;
use switchyard_core::model::ServiceName;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time,
};

pub use self::{conntrack::watch_table, publish::publish, unsupported::UnsupportedEvents};

/// The number of Events that may wait to be sent.
const QUEUE: usize = 256;

/// A Kubernetes Event, without the fields that are the same in every Event of this program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The object that the Event is about.
    pub regarding: EventTarget,
    /// Whether the Event's type is `Warning`, and not `Normal`.
    pub is_warning: bool,
    /// The reason, as one word.
    pub reason: &'static str,
    /// The action, as one word.
    pub action: &'static str,
    /// The text for people.
    pub note: String,
}

/// The object that an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventTarget {
    /// The Node of this proxy.
    Node,
    Service(ServiceName),
}

impl Event {
    /// Returns the Event of a proxy that starts.
    pub fn starting() -> Self {
        let event = Self::warning(EventTarget::Node, "Starting", "StartKubeProxy", String::new());
        Self { is_warning: false, ..event }
    }

    fn warning(
        regarding: EventTarget,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) -> Self {
        Self { regarding, is_warning: true, reason, action, note }
    }

    /// Returns the Event of a proxy that ends because it cannot serve its health or its metrics.
    pub fn server_failed(server: &str, note: String) -> Self {
        let reason = match server {
            "metrics" => "FailedToStartMetricServer",
            _ => "FailedToStartProxierHealthcheck",
        };
        Self::warning(EventTarget::Node, reason, "StartKubeProxy", note)
    }

    /// Returns the Event of a proxy that runs in another mode than the configured one.
    pub fn mode_replaced(note: String) -> Self {
        Self::warning(EventTarget::Node, "ProxyModeReplaced", "StartKubeProxy", note)
    }

    /// Returns the Event of a node that is not as the proxy's mode needs it.
    pub fn node_unprepared(note: String) -> Self {
        Self::warning(EventTarget::Node, "NodeUnprepared", "Sync", note)
    }

    /// Returns the Event of a node whose table of connections is nearly full.
    pub fn conntrack_nearly_full(note: String) -> Self {
        Self::warning(EventTarget::Node, "ConntrackNearlyFull", "Sync", note)
    }

    /// Returns the Event of a configuration file that was rejected while the proxy runs.
    pub fn configuration_rejected(note: String) -> Self {
        Self::warning(EventTarget::Node, "ConfigurationRejected", "Reload", note)
    }

    /// Returns the Event of a Service whose health cannot be served.
    pub fn service_health_failed(service: &ServiceName, note: String) -> Self {
        let regarding = EventTarget::Service(service.clone());
        Self::warning(regarding, "FailedToStartServiceHealthcheck", "Listen", note)
    }

    /// Returns the Event of a Service that asks for an algorithm that the mode cannot do, or of a
    /// node whose default is one.
    pub fn algorithm_unsupported(regarding: EventTarget, note: String) -> Self {
        Self::warning(regarding, "LbAlgorithmUnsupported", "LbAlgorithm", note)
    }

    /// Returns the Event of a Service, or of all Services of a family, that the kernel or a tool
    /// refuses.
    pub fn service_refused(regarding: EventTarget, note: String) -> Self {
        Self::warning(regarding, "ServicePortRefused", "Sync", note)
    }
}

/// A message in the queue between a [`Recorder`] and [`publish`].
#[derive(Debug)]
enum Message {
    /// An Event, and the time when it was recorded.
    Event(Event, Timestamp),
    /// A request for an answer once every earlier message was sent or dropped.
    Flush(oneshot::Sender<()>),
}

/// The sending end of a queue of Events. Clones share the queue.
#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<Message>);

/// The receiving end of a queue of Events. After it is dropped, recorded Events are dropped, too.
#[derive(Debug)]
pub struct EventQueue(mpsc::Receiver<Message>);

/// Returns both ends of a new queue.
pub fn recorder() -> (Recorder, EventQueue) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Recorder(sender), EventQueue(receiver))
}

impl Recorder {
    /// Queues an Event without waiting. An Event that finds the queue full is dropped.
    pub fn record(&self, event: Event) {
        match self.0.try_send(Message::Event(event, Timestamp::now())) {
            // The queue is closed where there is no API server.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(message)) => {
                tracing::warn!(?message, "Event queue full; dropping an Event");
            }
        }
    }

    /// Waits until every queued Event was sent or dropped, but at most for `longest`.
    pub async fn flush(&self, longest: Duration) {
        let (sender, flushed) = oneshot::channel();
        let flush = async {
            if self.0.send(Message::Flush(sender)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        // After a timeout the Events are lost, as they would be without waiting.
        let _ = time::timeout(longest, flush).await;
    }
}

#[cfg(test)]
mod tests;
