use std::path::Path;

use serde_json::{Value, json};
use switchyard_core::{
    config::NodeConfig,
    objects::Kind,
    testing::{NODE, check_schema},
    track::Tracker,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
};

use super::*;

/// Serves a socket in this directory for an engine without a backend. Returns the socket's path.
async fn serve(directory: &Path) -> PathBuf {
    let path = directory.join("objects.sock");
    let link = ClientLink::default();
    let problems = link.problems.clone();
    let (inputs, mut received) = mpsc::channel(1);
    tokio::spawn(run(path.clone(), NODE, inputs, link));
    tokio::spawn(async move {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        while let Some(input) = received.recv().await {
            match input {
                Input::Event(event) => {
                    let mut found = tracker.apply(event);
                    found.extend(tracker.resolve());
                    found.iter().for_each(|found| problems.on_event(&EngineEvent::Rejected(found)));
                }
                Input::Query(query) => query.answer(&tracker),
                other => panic!("{other:?}"),
            }
        }
    });
    while !path.exists() {
        tokio::task::yield_now().await;
    }
    path
}

struct Client(BufReader<UnixStream>);

impl Client {
    async fn new(path: &Path) -> Self {
        Self(BufReader::new(UnixStream::connect(path).await.unwrap()))
    }

    async fn send(&mut self, line: &Value) {
        check_schema("objects", line);
        self.raw(&line.to_string()).await;
    }

    async fn raw(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        let line = serde_json::from_str(&line).unwrap();
        check_schema("objects", &line);
        line
    }

    /// Sends a list of these objects.
    async fn list(&mut self, objects: &[Value]) {
        self.raw("\"list\"").await;
        for object in objects {
            self.send(object).await;
        }
        self.raw("\"synced\"").await;
    }

    /// Connects until the client before is gone.
    async fn welcome(path: &Path) -> Self {
        loop {
            let mut client = Self::new(path).await;
            if client.receive().await.get("hello").is_some() {
                break client;
            }
        }
    }

    async fn error_of_none(&mut self, message: &str) {
        let error = &self.receive().await["error"];
        assert!(error["line"].is_null(), "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }

    async fn error(&mut self, line: u64, object: Option<&str>, field: &str, message: &str) {
        let error = &self.receive().await["error"];
        assert_eq!((&error["line"], &error["object"]), (&json!(line), &json!(object)), "{error}");
        assert_eq!(error["field"], field, "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    }
}

fn service(name: &str, ip: &str) -> Value {
    json!({"apply": {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": ip, "ports": [{"port": 80}]},
    }})
}

#[tokio::test]
async fn a_bad_line_gets_an_answer_and_the_rest_goes_on() {
    let directory = TempDir::new().unwrap();
    let mut client = Client::new(&serve(directory.path()).await).await;
    assert_eq!(client.receive().await["hello"]["node"], NODE);
    client.raw("\"synced\"").await;
    client.error(1, None, "", "no list has begun").await;
    client.raw("{").await;
    client.error(2, None, "", "not a request: ").await;
    client.raw(&"x".repeat((2 << 20) + 1)).await;
    client.error(3, None, "", "too long").await;
    let mut broken = service("web", "10.96.0.1");
    broken["apply"]["spec"]["ports"][0]["port"] = json!("http");
    client.send(&broken).await;
    let web = Some("Service default/web");
    client.error(4, web, "spec.ports[0].port", "invalid type").await;
    client.send(&json!({"delete": {"kind": "Service", "name": "none"}})).await;
    client.raw(r#"{"delete": {"kind": "Pod", "name": "x"}}"#).await;
    client.error(6, None, "", "not read").await;
    let node = |name: &str| json!({"node": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}});
    client.send(&node("other")).await;
    client.error(7, Some("Node other"), "", "not the Node").await;
    client.send(&node(NODE)).await;
    client.send(&service("web", "nonsense")).await;
    client.send(&json!({"confirm": 7})).await;
    let problem = client.receive().await;
    assert_eq!(problem["problem"]["object"], "Service default/web");
    assert_eq!(problem["problem"]["field"], "spec.clusterIP");
    assert_eq!(client.receive().await, json!({"confirmed": 7}));
    client.list(&[service("web", "10.96.0.1")]).await;
    assert_eq!(client.receive().await, json!({"synced": {"objects": 1, "isWhole": true}}));
}

#[tokio::test]
async fn what_cannot_be_read_is_named_at_the_end_of_the_list_unless_no_such_kind_is_read() {
    let directory = TempDir::new().unwrap();
    let mut client = Client::new(&serve(directory.path()).await).await;
    client.receive().await;
    client.list(&[service("web", "10.96.0.1")]).await;
    assert_eq!(client.receive().await["synced"]["objects"], 1);
    for (object, is_whole) in [
        (json!({"apply": {"apiVersion": "v1", "kind": "Endpoints"}}), true),
        (json!({"apply": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}}), true),
        (json!({"apply": {"apiVersion": "v1", "kind": "Service"}}), false),
    ] {
        client.raw("\"list\"").await;
        client.raw(&object.to_string()).await;
        assert!(client.receive().await.get("error").is_some());
        client.raw("\"synced\"").await;
        assert_eq!(client.receive().await, json!({"synced": {"objects": 0, "isWhole": is_whole}}));
    }
}

#[tokio::test]
async fn another_client_is_told_the_problems_that_there_are() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path()).await;
    let mut client = Client::new(&path).await;
    client.receive().await;
    client.send(&service("web", "nonsense")).await;
    client.send(&service("api", "rubbish")).await;
    client.send(&json!({"confirm": 1})).await;
    let problems = [client.receive().await, client.receive().await];
    assert!(problems.iter().all(|line| line.get("problem").is_some()), "{problems:?}");
    assert_eq!(client.receive().await, json!({"confirmed": 1}));
    client.send(&json!({"confirm": 2})).await;
    assert_eq!(client.receive().await, json!({"confirmed": 2}), "once to each client");
    drop(client);
    let mut next = Client::welcome(&path).await;
    next.list(&[service("web", "nonsense"), service("api", "10.96.0.2")]).await;
    let problem = next.receive().await;
    assert_eq!(problem["problem"]["object"], "Service default/web");
    assert_eq!(next.receive().await, json!({"synced": {"objects": 2, "isWhole": true}}));
}

/// As `printf ... | nc -U PATH`.
#[tokio::test]
async fn a_client_that_sends_and_goes_loses_nothing() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path()).await;
    let mut client = Client::new(&path).await;
    client.raw("\"list\"").await;
    // Answered, with no reader of the answer.
    client.raw("nonsense").await;
    client.send(&service("web", "10.96.0.1")).await;
    drop(client);
    let mut next = Client::welcome(&path).await;
    next.raw("\"list\"").await;
    next.raw("nonsense").await;
    next.receive().await;
    next.raw("\"synced\"").await;
    assert_eq!(next.receive().await, json!({"synced": {"objects": 1, "isWhole": false}}));
}

#[tokio::test]
async fn the_second_client_is_refused_until_the_first_is_gone() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path()).await;
    let mut first = Client::new(&path).await;
    first.receive().await;
    first.send(&service("web", "10.96.0.1")).await;
    first.send(&json!({"confirm": 1})).await;
    first.receive().await;
    let mut second = Client::new(&path).await;
    let refused = second.receive().await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("another client"));
    // A line that is not whole does not count.
    first
        .0
        .get_mut()
        .write_all(br#"{"delete": {"kind": "Service", "name": "web"}}"#)
        .await
        .unwrap();
    drop(first);
    second = Client::welcome(&path).await;
    second.list(&[service("api", "10.96.0.2")]).await;
    assert_eq!(
        second.receive().await,
        json!({"synced": {"objects": 1, "isWhole": true}}),
        "web is gone"
    );
}

/// The clock stands still unless everything waits for it.
#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_loses_its_place_to_one_that_asks() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path()).await;
    let mut first = Client::new(&path).await;
    first.receive().await;
    first.list(&[service("web", "10.96.0.1")]).await;
    first.receive().await;
    for second in 0..80 {
        // What is not a whole line is nothing.
        first.0.get_mut().write_all(b"x").await.unwrap();
        sleep(Duration::from_secs(1)).await;
        if second == 50 {
            Client::new(&path).await.error_of_none("another client").await;
        }
    }
    let mut second = Client::new(&path).await;
    assert_eq!(second.receive().await["hello"]["node"], NODE);
    first.error_of_none("taken the place").await;
    assert_eq!(first.0.read_line(&mut String::new()).await.unwrap(), 0);
    second.send(&json!({"confirm": 1})).await;
    assert_eq!(second.receive().await, json!({"confirmed": 1}));
    // One that is heard from time to time is left alone.
    for number in 2..10 {
        sleep(SILENCE / 2).await;
        second.send(&json!({"confirm": number})).await;
        assert_eq!(second.receive().await, json!({"confirmed": number}));
    }
    Client::new(&path).await.error_of_none("another client").await;
    // Nothing was lost.
    second.list(&[]).await;
    assert_eq!(second.receive().await, json!({"synced": {"objects": 0, "isWhole": true}}));
}

/// The clock stands still unless everything waits for it.
#[tokio::test(start_paused = true)]
async fn a_socket_that_another_program_removes_is_opened_again() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path()).await;
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    sleep(2 * LOOK).await;
    fs::remove_file(&path).unwrap();
    while !path.exists() {
        sleep(LOOK).await;
    }
    assert_eq!(Client::new(&path).await.receive().await["hello"]["node"], NODE);
}

#[test]
fn every_kind_is_in_the_schema() {
    for kind in Kind::ALL {
        check_schema("objects", &json!({"delete": {"kind": kind.as_str(), "name": "x"}}));
    }
}

#[tokio::test]
async fn a_line_may_arrive_in_any_parts() {
    let long = "x".repeat((2 << 20) + 1);
    let text = format!("\"list\"\n\n{long}\n{{\"confirm\": 1}}\nunfinished");
    for capacity in [1, 2, 7, 8192, 4 << 20] {
        let reader = BufReader::with_capacity(capacity, text.as_bytes());
        let mut lines = lines::Lines::new(reader);
        for expected in [Some("\"list\""), Some(""), None, Some("{\"confirm\": 1}")] {
            let line = lines.next().await.unwrap().unwrap();
            assert_eq!(line, expected.map(str::as_bytes), "{capacity}");
        }
        assert!(lines.next().await.unwrap().is_none());
    }
}
