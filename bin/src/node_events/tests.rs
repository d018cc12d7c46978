//! Tests of the requests that Events become, and of failures.

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
};

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use kube::{Client, Config};
use serde_json::{Value, json};
use switchyard::health::http::{
    Answer, Handler,
    connections::{Connections, Limits},
    listen, serve,
};
use switchyard_sources::kube::{Pacer, RequestPace};
use tokio::{task::JoinHandle, time::Instant};

use super::{
    publish::{Patience, Publisher, clipped},
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

/// Publishes Events one after the other, each so often and without a pause between two attempts.
async fn publish_all(server: &Server, attempts: u32, events: impl IntoIterator<Item = Event>) {
    let (recorder, queue) = recorder();
    events.into_iter().for_each(|event| recorder.record(event));
    drop(recorder);
    let patience = Patience { attempts, pause: Duration::from_millis(1) };
    let pacer = Pacer::new(RequestPace::default());
    Publisher::new(server.client.clone(), pacer, "node-1", patience).run(queue).await;
}

#[test]
fn notes_are_clipped_between_characters() {
    assert_eq!(clipped("äää", 5), "ää");
    assert_eq!(clipped("äää", 6), "äää");
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
    publish_all(&server, 4, [failed(1), failed(2)]).await;
    let notes: Vec<Value> = server.requests().iter().map(|(_, e)| e["note"].clone()).collect();
    let [one, two] = ["port 1", "port 2"];
    assert_eq!(notes, [one, one, one, two, two, two, two]);
}

/// The first answer was lost: the attempts have one name and one time, so that there is one Event.
#[tokio::test]
async fn an_event_that_the_server_has_already_is_sent() {
    let server = Server::start(&[500, 409, 409, 200]);
    publish_all(&server, 3, [failed(1), failed(1)]).await;
    let requests = server.requests();
    let [first, second, changed, again] = &requests[..] else { panic!("{requests:#?}") };
    assert_eq!(first, second);
    assert_eq!(changed, again, "a conflict about a change is no success");
    let (path, series) = changed;
    let name = first.1["metadata"]["name"].as_str().unwrap();
    assert_eq!(*path, format!("/apis/events.k8s.io/v1/namespaces/shop/events/{name}"));
    assert_eq!(series["series"]["count"], 2);
}

#[tokio::test]
async fn repeated_events_become_a_series() {
    let server = Server::start(&[201, 201, 200, 200, 404, 201]);
    publish_all(&server, 1, [1, 2, 1, 1, 1].map(failed)).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 6, "{requests:#?}");
    let first = requests[0].1["metadata"]["name"].as_str().unwrap();
    for (i, count) in [(2, 2), (3, 3), (4, 4)] {
        let (path, body) = &requests[i];
        assert_eq!(*path, format!("/apis/events.k8s.io/v1/namespaces/shop/events/{first}"));
        assert_eq!(body["series"]["count"], count);
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
