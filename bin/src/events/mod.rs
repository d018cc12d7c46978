//! Kubernetes Events: what `kubectl` shows beside the Node and the Services.
//!
//! A [`Recorder`] takes them and never waits; [`publish`] sends them where there is an API server.
//! They are best effort: what cannot be sent for some minutes, or is refused, is dropped.

mod publish;

use std::time::Duration;

use jiff::Timestamp;
use proxy_core::model::ServiceName;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time,
};

pub use self::publish::publish;

/// Events that may wait to be sent.
const QUEUE: usize = 256;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// What it is about.
    pub regarding: Regarding,
    /// Whether somebody should look after it.
    pub is_warning: bool,
    /// Why something was done, as one word.
    pub reason: &'static str,
    /// What was done, as one word.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

/// What an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Regarding {
    /// The node that we run on.
    Node,
    /// A Service.
    Service(ServiceName),
}

impl Event {
    /// The proxy starts.
    pub fn starting() -> Self {
        Self {
            regarding: Regarding::Node,
            is_warning: false,
            reason: "Starting",
            action: "StartKubeProxy",
            note: String::new(),
        }
    }

    /// The proxy ends because it cannot serve its health or its metrics.
    pub fn server_failed(server: &str, note: String) -> Self {
        let reason = match server {
            "metrics" => "FailedToStartMetricServer",
            _ => "FailedToStartProxierHealthcheck",
        };
        Self { is_warning: true, reason, note, ..Self::starting() }
    }

    /// Another mode is used than the one that is configured.
    pub fn mode_replaced(note: String) -> Self {
        Self { is_warning: true, reason: "ProxyModeReplaced", note, ..Self::starting() }
    }

    /// The configuration file says something that cannot be used; the proxy goes on without it.
    pub fn configuration_rejected(note: String) -> Self {
        Self {
            is_warning: true,
            reason: "ConfigurationRejected",
            action: "Reload",
            note,
            ..Self::starting()
        }
    }

    /// The health of a Service cannot be served.
    pub fn service_health_failed(service: &ServiceName, note: String) -> Self {
        Self {
            regarding: Regarding::Service(service.clone()),
            is_warning: true,
            reason: "FailedToStartServiceHealthcheck",
            action: "Listen",
            note,
        }
    }
}

/// What waits to be sent.
#[derive(Debug)]
enum Message {
    Event(Event, Timestamp),
    /// Everything before it has been sent or dropped.
    Flushed(oneshot::Sender<()>),
}

/// Takes Events. Clones share a queue.
#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<Message>);

/// What a [`Recorder`] took. If it is dropped, Events go nowhere.
#[derive(Debug)]
pub struct Recorded(mpsc::Receiver<Message>);

/// A recorder, and what it will have taken.
pub fn recorder() -> (Recorder, Recorded) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Recorder(sender), Recorded(receiver))
}

impl Recorder {
    /// Takes an Event, to be sent soon. Never waits: if too many are there already, it is dropped.
    pub fn record(&self, event: Event) {
        match self.0.try_send(Message::Event(event, Timestamp::now())) {
            // Without an API server there is nobody to be told.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(message)) => {
                tracing::warn!(?message, "Too many Events wait to be sent; one is dropped");
            }
        }
    }

    /// Waits until what was taken has been sent, or for so long.
    pub async fn flush(&self, longest: Duration) {
        let (sender, flushed) = oneshot::channel();
        let flush = async {
            if self.0.send(Message::Flushed(sender)).await.is_ok() {
                let _ = flushed.await;
            }
        };
        // If it takes longer, the Events are lost, as they would be without waiting.
        let _ = time::timeout(longest, flush).await;
    }
}

#[cfg(test)]
mod tests;
