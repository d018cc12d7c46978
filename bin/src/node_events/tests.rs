//! Tests of the requests that Events become, and of failures.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use kube::{Client, Config};
use serde_json::{Value, json};
use switchyard_health::http::{
    Answer, Handler,
    connections::{Connections, Limits},
    listen, serve,
};
use switchyard_source_kube::{Pacer, RequestPace};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    publish::{Patience, Publisher, as_api_event},
    *,
};

/// An API server that answers Events with statuses, the last of them for ever.
struct Server {
    client: Client,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    task: JoinHandle<()>,
}

struct Api {
    statuses: Mutex<Vec<u16>>,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Handler for Api {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        if request.method() == Method::GET {
            // Only metadata is requested.
            let accept = request.headers()["accept"].to_str().unwrap();
            assert!(accept.contains("as=PartialObjectMetadataList"), "{accept}");
            let query = request.uri().query().unwrap();
            assert_eq!(query, "&fieldSelector=metadata.name%3Dweb&limit=1");
            let list = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": {}, "items": [{"metadata": {"name": "web", "uid": "u-1"}}],
            });
            return Answer::new(list.to_string().into());
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        self.requests.lock().unwrap().push((request.uri().path().to_owned(), body));
        let mut statuses = self.statuses.lock().unwrap();
        let code = if statuses.len() > 1 { statuses.remove(0) } else { statuses[0] };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "on command", "reason": "Test", "code": code,
        });
        let body = if code < 300 {
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
        let requests = Arc::default();
        let api = Api { statuses: Mutex::new(statuses.to_vec()), requests: Arc::clone(&requests) };
        let listener = listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let mut config = Config::new(url);
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let task = tokio::spawn(async move {
            let connections = Connections::new(Limits::new(1024));
            match serve::accept("test", listener, Arc::new(api), connections).await {}
        });
        Self { client, requests, task }
    }

    fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap().clone()
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
    let json =
        |event| serde_json::to_value(as_api_event(&event, at, "node-1", "host", None)).unwrap();
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
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&"Warning".into(), &"Node".into()));
    let reason = |server| json(Event::server_failed(server, "no".into()))["reason"].clone();
    assert_eq!(reason("metrics"), "FailedToStartMetricServer");
    assert_eq!(reason("healthz"), "FailedToStartProxierHealthcheck");

    let long = json(Event { note: "ä".repeat(1000), ..failed(1) });
    assert_eq!(long["note"].as_str().unwrap().len(), 1024);
}

#[tokio::test]
async fn a_rejected_event_is_dropped_and_the_next_is_sent() {
    let server = Server::start(&[403, 201]);
    let (recorder, queue) = recorder();
    recorder.record(Event::starting());
    recorder.record(failed(31000));
    let client = server.client.clone();
    let publishing = tokio::spawn(async move {
        publish(client, Pacer::new(RequestPace::default()), "node-1", queue).await
    });
    recorder.flush(Duration::from_secs(10)).await;
    let requests = server.requests();
    let paths: Vec<&str> = requests.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/apis/events.k8s.io/v1/namespaces/default/events",
            "/apis/events.k8s.io/v1/namespaces/shop/events"
        ]
    );
    assert_eq!(requests[1].1["note"], "port 31000");
    assert_eq!(requests[1].1["regarding"]["uid"], "u-1");
    assert_eq!(requests[0].1["regarding"].get("uid"), None);
    drop(recorder);
    publishing.await.unwrap();
}

#[tokio::test]
async fn requests_to_an_overloaded_server_are_repeated() {
    let server = Server::start(&[500, 429, 201, 503]);
    let (recorder, queue) = recorder();
    recorder.record(failed(1));
    recorder.record(failed(2));
    drop(recorder);
    let patience = Patience { attempts: 4, pause: Duration::from_millis(1) };
    let pacer = Pacer::new(RequestPace::default());
    let client = server.client.clone();
    Publisher::new(client, pacer, "node-1", patience).run(queue).await;
    let notes: Vec<Value> = server.requests().iter().map(|(_, e)| e["note"].clone()).collect();
    let [one, two] = ["port 1", "port 2"];
    assert_eq!(notes, [one, one, one, two, two, two, two]);
}

#[tokio::test]
async fn repeated_events_become_a_series() {
    let server = Server::start(&[201, 201, 200, 200, 404, 201]);
    let (recorder, queue) = recorder();
    for port in [1, 2, 1, 1, 1] {
        recorder.record(failed(port));
    }
    drop(recorder);
    let patience = Patience { attempts: 1, pause: Duration::ZERO };
    let pacer = Pacer::new(RequestPace::default());
    Publisher::new(server.client.clone(), pacer, "node-1", patience).run(queue).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 6, "{requests:#?}");
    let first = requests[0].1["metadata"]["name"].as_str().unwrap();
    for (i, count) in [(2, 2), (3, 3), (4, 4)] {
        let (path, body) = &requests[i];
        assert_eq!(*path, format!("/apis/events.k8s.io/v1/namespaces/shop/events/{first}"));
        assert_eq!(body["series"]["count"], count);
        let last: Timestamp = body["series"]["lastObservedTime"].as_str().unwrap().parse().unwrap();
        assert!(Timestamp::now().duration_since(last).as_secs() < 60);
    }
    // The server has deleted the Event: a new one is created.
    assert_eq!(requests[5].1["note"], "port 1");
    assert_ne!(requests[5].1["metadata"]["name"], first);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits() {
    let (full, mut queue) = recorder();
    let recorder_of_thread = full.clone();
    let (sender, recorded) = mpsc::channel();
    thread::spawn(move || {
        for port in 0..=QUEUE {
            recorder_of_thread.record(failed(port as u16));
        }
        sender.send(()).unwrap();
    });
    recorded.recv_timeout(Duration::from_secs(20)).expect("recording waits for the queue");
    // The queue is not read: the flush ends anyway.
    let longest = Duration::from_millis(10);
    let start = Instant::now();
    full.flush(longest).await;
    assert!(start.elapsed() >= longest && start.elapsed() < 2 * longest, "{:?}", start.elapsed());
    for port in 0..QUEUE {
        let Ok(Message::Event(event, _)) = queue.0.try_recv() else { panic!("{port} is missing") };
        assert_eq!(event, failed(port as u16), "the Event that found no room is dropped");
    }
    assert!(queue.0.try_recv().is_err());

    let (nowhere, queue) = recorder();
    drop(queue);
    nowhere.record(Event::starting());
    let start = Instant::now();
    nowhere.flush(Duration::from_secs(3600)).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}
