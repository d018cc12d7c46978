//! Kubernetes Events: what `kubectl` shows beside the Node and the Services.
//!
//! A [`Recorder`] takes them and never waits; [`publish`] sends them where there is an API server.
//! They are best effort: what cannot be sent for some minutes, or is refused, is dropped.

use std::{fs, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as ApiEvent},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use proxy_core::model::ServiceName;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time,
};

use crate::source::kube::Pacer;

/// Events that may wait to be sent.
const QUEUE: usize = 256;
/// How long an attempt may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Who reports, for whoever looks for the Events of a kube-proxy.
const CONTROLLER: &str = "kube-proxy";
/// The longest start of an Event's name: the API takes 253 characters, and a time is added.
const LONGEST_NAME: usize = 230;
/// The longest note that the API takes, in bytes.
const LONGEST_NOTE: usize = 1024;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// How often an Event is tried to be sent.
#[derive(Clone, Copy, Debug)]
struct Patience {
    attempts: u32,
    /// Between two attempts.
    pause: Duration,
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

/// Sends Events as the proxy of a node, until their recorder is gone.
pub async fn publish(client: Client, pacer: Pacer, node_name: &str, recorded: Recorded) {
    let patience = Patience { attempts: 12, pause: Duration::from_secs(10) };
    publish_patiently((client, pacer), node_name, recorded, patience).await;
}

async fn publish_patiently(
    server: (Client, Pacer),
    node_name: &str,
    mut recorded: Recorded,
    patience: Patience,
) {
    let host = fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.map_or_else(|_| node_name.to_owned(), |host| host.trim().to_owned());
    while let Some(message) = recorded.0.recv().await {
        match message {
            Message::Event(event, at) => {
                let event = as_api_event(event, at, node_name, &host);
                deliver(&server, &event, patience).await;
            }
            // Whoever asked may have lost patience.
            Message::Flushed(sender) => drop(sender.send(())),
        }
    }
}

/// Sends one, several times if the server cannot be reached or has no time.
async fn deliver((client, pacer): &(Client, Pacer), event: &ApiEvent, patience: Patience) {
    let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
    let api: Api<ApiEvent> = Api::namespaced(client.clone(), namespace);
    let parameters = PostParams::default();
    for attempt in 1..=patience.attempts {
        pacer.permit().await;
        let reason = match time::timeout(TIMEOUT, api.create(&parameters, event)).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) if is_final(&error) => {
                let error = crate::error_chain(&error);
                tracing::warn!(
                    err = error,
                    reason = event.reason,
                    "The API server refuses an Event; it is dropped"
                );
                return;
            }
            Ok(Err(error)) => crate::error_chain(&error),
            Err(_) => "timed out".to_owned(),
        };
        tracing::debug!(err = reason, attempt, "Failed to send an Event");
        if attempt < patience.attempts {
            time::sleep(patience.pause).await;
        }
    }
    tracing::warn!(reason = event.reason, "An Event could not be sent; it is dropped");
}

/// Whether the server understood, and will never take it.
fn is_final(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => (400..500).contains(&status.code) && status.code != 429,
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => true,
        _ => false,
    }
}

fn as_api_event(event: Event, at: Timestamp, node_name: &str, host: &str) -> ApiEvent {
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use hyper::{Request, StatusCode};
    use kube::Config;
    use serde_json::{Value, json};
    use tokio::task::JoinHandle;

    use super::*;
    use crate::{
        http::{Answer, Handler, listen},
        source::kube::RequestPace,
    };

    /// An API server that answers Events with statuses, the last of them for ever.
    struct Server {
        client: Client,
        asked: Arc<Mutex<Vec<(String, Value)>>>,
        task: JoinHandle<()>,
    }

    struct Api {
        statuses: Mutex<Vec<u16>>,
        asked: Arc<Mutex<Vec<(String, Value)>>>,
    }

    impl Handler for Api {
        fn answer(&self, request: &Request<Bytes>) -> Answer {
            let body: Value = serde_json::from_slice(request.body()).unwrap();
            self.asked.lock().unwrap().push((request.uri().path().to_owned(), body));
            let mut statuses = self.statuses.lock().unwrap();
            let code = if statuses.len() > 1 { statuses.remove(0) } else { statuses[0] };
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "on command", "reason": "Test", "code": code,
            });
            let body = if code == 201 {
                Bytes::copy_from_slice(request.body())
            } else {
                status.to_string().into()
            };
            let mut answer = Answer::new(body.into());
            *answer.status_mut() = StatusCode::from_u16(code).unwrap();
            answer
        }
    }

    impl Server {
        fn start(statuses: &[u16]) -> Self {
            let asked = Arc::default();
            let api = Api { statuses: Mutex::new(statuses.to_vec()), asked: Arc::clone(&asked) };
            let listener = listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
            let mut config = Config::new(url);
            config.default_retry = false;
            let client = Client::try_from(config).unwrap();
            let task = tokio::spawn(async move {
                listen::accept("test", listener, Arc::new(api)).await;
            });
            Self { client, asked, task }
        }

        fn asked(&self) -> Vec<(String, Value)> {
            self.asked.lock().unwrap().clone()
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    fn failed(port: u16) -> Event {
        Event::service_health_failed(&ServiceName::new("shop", "web"), format!("port {port}"))
    }

    #[test]
    fn events_are_kube_proxys() {
        let at: Timestamp = "2024-05-01T10:00:00.000001Z".parse().unwrap();
        let json = |event| serde_json::to_value(as_api_event(event, at, "node-1", "host")).unwrap();
        assert_eq!(
            json(Event::starting()),
            json!({
                "apiVersion": "events.k8s.io/v1",
                "kind": "Event",
                "metadata": {"name": "node-1.17cb550d96f243e8", "namespace": "default"},
                "eventTime": "2024-05-01T10:00:00.000001Z",
                "reportingController": "kube-proxy",
                "reportingInstance": "kube-proxy-host",
                "action": "StartKubeProxy",
                "reason": "Starting",
                "type": "Normal",
                "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
            })
        );
        let event = json(failed(31000));
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["type"], "Warning");
        assert_eq!(event["reason"], "FailedToStartServiceHealthcheck");
        assert_eq!(event["action"], "Listen");
        assert_eq!(event["note"], "port 31000");
        assert_eq!(
            event["regarding"],
            json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"})
        );
        let event = json(Event::mode_replaced("ipvs".into()));
        assert_eq!(event["reason"], "ProxyModeReplaced");
        assert_eq!(
            (&event["type"], &event["regarding"]["kind"]),
            (&"Warning".into(), &"Node".into())
        );
        let reason = |server| json(Event::server_failed(server, "no".into()))["reason"].clone();
        assert_eq!(reason("metrics"), "FailedToStartMetricServer");
        assert_eq!(reason("healthz"), "FailedToStartProxierHealthcheck");

        let long = json(Event { note: "ä".repeat(1000), ..failed(1) });
        assert_eq!(long["note"].as_str().unwrap().len(), 1024);
    }

    #[tokio::test]
    async fn what_is_refused_is_dropped_and_the_next_is_sent() {
        let server = Server::start(&[403, 201]);
        let (recorder, recorded) = recorder();
        recorder.record(Event::starting());
        recorder.record(failed(31000));
        let client = server.client.clone();
        let publishing = tokio::spawn(async move {
            publish(client, Pacer::new(RequestPace::default()), "node-1", recorded).await
        });
        recorder.flush(Duration::from_secs(10)).await;
        let asked = server.asked();
        let paths: Vec<&str> = asked.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "/apis/events.k8s.io/v1/namespaces/default/events",
                "/apis/events.k8s.io/v1/namespaces/shop/events"
            ]
        );
        assert_eq!(asked[1].1["note"], "port 31000");
        drop(recorder);
        publishing.await.unwrap();
    }

    #[tokio::test]
    async fn a_server_without_time_is_asked_again() {
        let server = Server::start(&[500, 429, 201, 503]);
        let (recorder, recorded) = recorder();
        recorder.record(failed(1));
        recorder.record(failed(2));
        drop(recorder);
        let patience = Patience { attempts: 4, pause: Duration::from_millis(1) };
        let pacer = Pacer::new(RequestPace::default());
        publish_patiently((server.client.clone(), pacer), "node-1", recorded, patience).await;
        let notes: Vec<Value> = server.asked().iter().map(|(_, e)| e["note"].clone()).collect();
        let [one, two] = ["port 1", "port 2"];
        assert_eq!(notes, [one, one, one, two, two, two, two]);
    }

    #[tokio::test]
    async fn nobody_waits_for_events() {
        let (full, _recorded) = recorder();
        for port in 0..=QUEUE {
            full.record(failed(port as u16));
        }
        // Nobody sends them: the flush ends anyway.
        full.flush(Duration::from_millis(10)).await;

        let (nowhere, recorded) = recorder();
        drop(recorded);
        nowhere.record(Event::starting());
        nowhere.flush(Duration::from_secs(3600)).await;
    }
}
