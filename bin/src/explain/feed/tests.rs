use async_trait::async_trait;
use serde_json::{Value, json};
use switchyard_core::{
    config::NodeConfig,
    engine::Engine,
    objects::Kind,
    proxier::{DegradedPort, Mode, Profile, Proxier, ProxierError},
    testing::{NODE, check_schema, endpoint, service, slice},
    track::{Problem, Reason},
};
use tokio::io::{AsyncBufReadExt, BufReader, DuplexStream, duplex, empty};

use super::*;

/// Succeeds but for UDP, and reports each Service port of TCP.
struct TcpOnly;

#[async_trait]
impl Proxier for TcpOnly {
    fn profile(&self) -> Profile {
        Profile::new(Mode::new("tcp"))
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut report = SyncReport::default();
        for port in change.ports() {
            if port.id.name.protocol.as_str() == "UDP" {
                return Err(ProxierError::unusable(Mode::new("tcp"), "no UDP"));
            }
            report.degraded.push(DegradedPort { port: port.id.clone(), reason: "slow".to_owned() });
        }
        report.drift.found(|| "a rule".to_owned());
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

/// The lines of a feed, each of which the schema describes.
struct Lines(BufReader<DuplexStream>);

impl Lines {
    /// Serves a feed to a reader who keeps the connection open.
    fn of(feed: Feed) -> Self {
        let (reader, mut writer) = duplex(1024);
        tokio::spawn(async move {
            let (open, _end) = duplex(1);
            serve(feed, open, &mut writer).await.unwrap();
        });
        Self(BufReader::new(reader))
    }

    /// Returns the next line's kind and content.
    async fn next(&mut self) -> (String, Value) {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        check_schema("feed", &line);
        let (kind, content) = line.as_object().unwrap().iter().next().unwrap();
        (kind.clone(), content.clone())
    }

    async fn expect(&mut self, kinds: &[&str]) -> Value {
        let mut last = Value::Null;
        for kind in kinds {
            let (found, content) = self.next().await;
            assert_eq!(found, *kind, "{content}");
            last = content;
        }
        last
    }
}

#[tokio::test]
async fn a_feed_begins_with_the_state_and_follows_it() {
    let feeds = Arc::<Feeds>::default();
    let node = NodeConfig::new(NODE);
    let engine = Engine::builder(node).observer(feeds.clone()).start(TcpOnly).unwrap();
    let inputs = engine.inputs();
    let open = async || {
        let feeds = Arc::clone(&feeds);
        super::super::sources::ask(&inputs, move |known| feeds.open(known)).await.unwrap()
    };
    let mut early = Lines::of(open().await.unwrap());
    assert_eq!(early.expect(&["feed", "synced"]).await, json!({"servicePorts": 0}));
    let web = service("web", "10.96.0.1").port("http", "TCP", 80).node_port(30080);
    let ready = slice("web", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    engine.send(web.apply()).await.unwrap();
    engine.send(ready.apply()).await.unwrap();
    for kind in Kind::ALL {
        engine.send(switchyard_core::objects::Event::Listed(kind)).await.unwrap();
    }
    let sync = early.expect(&["set", "report", "sync"]).await;
    assert_eq!((&sync["full"], &sync["changed"]), (&json!(true), &json!(1)), "{sync}");
    assert_eq!(sync["repairs"], json!(["a rule"]));

    let mut late = Lines::of(open().await.unwrap());
    let set = late.expect(&["feed", "set"]).await;
    assert_eq!(set["cluster"][0]["address"], "10.1.0.1:8080");
    late.expect(&["synced"]).await;
    engine.send(service("bad", "nonsense").port("", "TCP", 1).apply()).await.unwrap();
    for lines in [&mut early, &mut late] {
        assert_eq!(lines.expect(&["problem"]).await["reason"], "invalid");
    }
    engine.send(web.delete()).await.unwrap();
    let gone = late.expect(&["delete"]).await;
    assert_eq!(gone["name"]["service"]["name"], "web");
    late.expect(&["report", "sync"]).await;
    let by = Some("nft".to_owned());
    let change = switchyard_core::runner::Input::ExternallyChanged(ExternalChange::Changed { by });
    inputs.send(change).await.unwrap();
    assert_eq!(late.expect(&["drift"]).await["by"], "nft");
    late.expect(&["sync"]).await;
    engine.send(service("dns", "10.96.0.2").port("", "UDP", 53).apply()).await.unwrap();
    let failed = late.expect(&["sync"]).await;
    assert!(failed["error"].as_str().unwrap().contains("no UDP"), "{failed}");

    let mut third = Lines::of(open().await.unwrap());
    assert_eq!(third.expect(&["feed", "problem"]).await["reason"], "invalid");
    third.expect(&["synced"]).await;
    assert!(open().await.is_none());
    drop(third);
    while open().await.is_none() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_slow_reader_gets_what_waits_and_the_end() {
    let feeds = Feeds::default();
    let feed = feeds.open(&Tracker::new(NodeConfig::new(NODE))).unwrap();
    let problem = Problem {
        object: service("web", "10.96.0.1").object().key(),
        field: String::new(),
        message: "x".repeat(MOST_WAITING / 8),
        reason: Reason::Invalid,
    };
    for _ in 0..20 {
        feeds.on_event(&EngineEvent::Rejected(&problem));
    }
    assert!(feeds.readers.lock().unwrap().is_empty(), "nothing more is kept for the reader");
    let mut lines = Lines::of(feed);
    lines.expect(&["feed", "synced"]).await;
    for _ in 0..8 {
        lines.expect(&["problem"]).await;
    }
    let end = lines.expect(&["end"]).await;
    assert_eq!(end["reason"], "the reader is too slow; connect again");
}

#[tokio::test]
async fn a_feed_ends_when_its_client_has_nothing_more_to_send() {
    let feeds = Feeds::default();
    let feed = feeds.open(&Tracker::new(NodeConfig::new(NODE))).unwrap();
    let mut sent = Vec::new();
    serve(feed, empty(), &mut sent).await.unwrap();
    assert_eq!(String::from_utf8(sent).unwrap().lines().count(), 2);
    feeds.on_event(&EngineEvent::ExternallyChanged(&ExternalChange::Changed { by: None }));
    assert!(feeds.readers.lock().unwrap().is_empty());
}
