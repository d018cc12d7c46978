use std::{
    fs,
    io::BufReader,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream as StdStream},
    },
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use switchyard_core::{
    config::NodeConfig,
    objects::{Event, Kind},
    runner::Input,
    testing::{NODE, endpoint, service, slice},
    track::Tracker,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    time::Instant,
};

use super::*;
use crate::explain::{
    history::{ChangedPort, History, Sync},
    sources::Sources,
};

#[test]
fn an_empty_flag_turns_the_socket_off() {
    for (arguments, expected) in [
        (&[][..], "/run/switchyard/proxy.sock"),
        (&["--service-proxy-name=pilot"], "/run/switchyard/service-proxy-pilot.sock"),
        (&["--service-proxy-name=pilot", "--local-socket=/s"], "/s"),
        (&["--local-socket="], ""),
    ] {
        let flags = config::testing::flags("switchyard", arguments);
        assert_eq!(socket(&flags), Path::new(expected), "{arguments:?}");
    }
}

/// A tracker with three Services, of which one has an endpoint, and one a problem.
fn tracker() -> Tracker {
    let mut tracker = Tracker::new(NodeConfig::new(NODE));
    let ready = slice("web", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    for object in [
        service("web", "10.96.0.1").port("http", "TCP", 80),
        service("api", "10.96.0.2").port("http", "TCP", 80),
        service("odd", "10.96.0.3").annotation("switchyard/lb-algorithm", "own-value"),
        ready,
    ] {
        tracker.apply(object.apply());
    }
    for kind in Kind::ALL {
        tracker.apply(Event::Listed(kind));
    }
    tracker.resolve();
    tracker
}

/// Serves a tracker at a socket in this directory.
fn serve(directory: &Path) -> String {
    let path = directory.join("proxy.sock").display().to_string();
    let listener = crate::local_socket::open(&path).unwrap().unwrap();
    let (inputs, mut received) = mpsc::channel(1);
    tokio::spawn(async move {
        let tracker = tracker();
        while let Some(input) = received.recv().await {
            if let Input::Query(query) = input {
                query.answer(&tracker);
            }
        }
    });
    let listener = UnixListener::from_std(listener).unwrap();
    let (history, feeds) = (Arc::default(), Arc::default());
    tokio::spawn(server::serve(
        listener,
        Sources {
            engine: inputs,
            history,
            feeds,
            names: Default::default(),
            flows: None,
            tables: None,
            audits: Default::default(),
            others: None,
            top: None,
        },
    ));
    path
}

/// Sends a text, and returns the answer.
async fn ask(path: &str, text: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    // The server may have ended the connection already.
    let _ = stream.write_all(text).await;
    let _ = stream.shutdown().await;
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

#[test]
fn the_socket_is_its_users_alone_and_takes_the_place_of_a_dead_one() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("proxy.sock");
    let text = path.display().to_string();
    assert!(crate::local_socket::open("").unwrap().is_none());
    assert!(crate::local_socket::open("/does/not/exist/proxy.sock").unwrap().is_none());
    for (path, is_there) in [("proxy.sock", true), ("", false), ("/does/not/exist/x", false)] {
        assert_eq!(crate::local_socket::has_directory(Path::new(path)), is_there, "{path}");
    }
    // Of several that begin at once, one has the socket, and answers at the path.
    let opened: Vec<_> = thread::scope(|scope| {
        let open = || scope.spawn(|| crate::local_socket::open(&text));
        let opening: Vec<_> = (0..8).map(|_| open()).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [first] =
        <[_; 1]>::try_from(opened.into_iter().flatten().flatten().collect::<Vec<_>>()).unwrap();
    let _client = StdStream::connect(&path).unwrap();
    first.accept().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = crate::local_socket::open(&text).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "a live one stays");
    // So does one that hangs, with no room for another client.
    let mut waiting = Vec::new();
    while let Ok(client) = connect_at_once(&path) {
        waiting.push(client);
    }
    let error = crate::local_socket::open(&text).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "a live one stays");
    drop(waiting);
    drop(first);
    let second = crate::local_socket::open(&text).unwrap().unwrap();
    StdStream::connect(&path).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    drop(second);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "a file").unwrap();
    assert!(crate::local_socket::open(&text).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
}

/// Connects, or fails if that would have to wait.
fn connect_at_once(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?).map(|()| socket)
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_takes_little_is_not_waited_for() {
    let (mut from, mut to) = tokio::io::duplex(1);
    let reading = async {
        let mut taken = 0;
        while from.read_u8().await.is_ok() {
            taken += 1;
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        taken
    };
    let sending = async {
        let sent = crate::local_socket::send_all(&mut to, &[b'x'; 1000]).await;
        drop(to);
        sent
    };
    let (taken, sent) = tokio::join!(reading, sending);
    assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(taken < 5, "{taken}");
}

/// The clock stands still unless everything waits for it.
#[tokio::test(start_paused = true)]
async fn clients_that_hang_or_send_garbage_cost_others_nothing() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path());
    let request = b"{\"explain\":\"ns/web\"}\n";
    let mut hanging = Vec::new();
    for _ in 0..20 {
        hanging.push(UnixStream::connect(&path).await.unwrap());
    }
    let begun = Instant::now();
    let answer = ask(&path, request).await;
    assert!(answer.contains("ns/web is served"), "{answer}");
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody was waited for");
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\xff\xff\n", b"\"stop\"\n", b"", &[b'['; 100_000]]
    {
        let answer = ask(&path, garbage).await;
        assert!(answer.is_empty() || answer.starts_with("{\"error\""), "{answer}");
    }
    let answer = ask(&path, b"{\"explain\":\"a b c\"}\n").await;
    assert!(answer.contains("is neither NAMESPACE/NAME"), "{answer}");
    // A client that takes nothing of its answers.
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(b"\"snapshot\"\n").await.unwrap();
        slow.push(stream);
    }
    let answer = ask(&path, request).await;
    assert!(answer.contains("ns/web is served"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_answers_as_the_proxy() {
    let directory = TempDir::new().unwrap();
    let path = serve(directory.path());
    let asking = move || {
        let mut written = Vec::new();
        client::snapshot(Path::new(&path), &mut written).unwrap();
        let text = String::from_utf8_lossy(&written);
        assert!(text.contains("annotations[switchyard/lb-algorithm]"), "{text}");
        assert!(!text.contains("own-value"), "{text}");
        let taken = snapshot::read(BufReader::new(&written[..])).unwrap();
        assert_eq!(client::services(Path::new(&path)).unwrap(), taken);
        assert!(!taken.is_settled, "nothing is synced");
        let picture = taken.picture;
        for text in ["ns/web", "ns/api", "ns/wob", "10.1.0.5 -> 10.96.0.1:80", "10.96.0.1:81"] {
            let question: Question = text.parse().unwrap();
            let request = Request::Explain(text.to_owned());
            let (status, answer) = client::ask(Path::new(&path), &request, false).unwrap();
            let explanation = explain(&question, &picture);
            assert_eq!(answer, explanation.to_string());
            assert_eq!(status, explanation.verdict.exit_status());
            let (_, json) = client::ask(Path::new(&path), &request, true).unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json, serde_json::to_value(&explanation).unwrap());
        }
        // Half of a snapshot is none.
        let half = &written[..written.len() - 20];
        assert!(snapshot::read(BufReader::new(half)).is_err());
        let error = client::ask(Path::new("/does/not/exist"), &Request::Snapshot, false);
        assert!(error.unwrap_err().to_string().contains("cannot reach a running proxy"));
    };
    thread::spawn(asking).join().unwrap();
}

/// A sync that changed a port of a Service.
fn sync(at: &str, service: &str, port: &str, is_added: bool) -> Sync {
    let address = vec!["10.1.0.1:8080".parse().unwrap()];
    let (added, removed) = if is_added { (address, Vec::new()) } else { (Vec::new(), address) };
    Sync {
        at: at.to_owned(),
        milliseconds: 1.0,
        latency_milliseconds: Some(2.0),
        error: None,
        is_first: false,
        changed: 1,
        ports: vec![ChangedPort {
            service: service.to_owned(),
            port: port.to_owned(),
            added,
            removed,
            trigger_milliseconds: Some(5.0),
        }],
    }
}

#[test]
fn the_last_change_of_a_service_is_in_the_kernel_and_none_where_it_may_be_forgotten() {
    let history = History::default();
    let sync = |at, service| sync(at, service, service, true);
    let last = || history.last_change(Some("ns/web")).map(|change| change.at);
    assert_eq!(last(), None);
    history.add(sync("first", "ns/web"));
    history.add(sync("other", "ns/api"));
    history.add(Sync { error: Some("no space left".to_owned()), ..sync("failed", "ns/web") });
    assert_eq!(last().as_deref(), Some("first"));
    let change = history.last_change(Some("ns/web")).unwrap();
    assert_eq!((change.added.len(), change.latency_milliseconds), (1, Some(2.0)));
    history.add(Sync { changed: 2, ..sync("many", "ns/api") });
    assert_eq!(last(), None, "the second port is not remembered");
    history.add(Sync { changed: 2, ..sync("again", "ns/web") });
    assert_eq!(last().as_deref(), Some("again"));
    assert_eq!(history.last_change(None), None);
}

#[test]
fn an_endpoint_is_used_or_left_out_since_the_last_sync_that_changed_it() {
    let now: jiff::Timestamp = "2026-11-28T12:01:00Z".parse().unwrap();
    let age = |syncs: &[(&str, bool)]| {
        let history = History::default();
        for (at, is_added) in syncs {
            history.add(sync(at, "ns/web", "ns/web:http (TCP, IPv4)", *is_added));
        }
        let mut answer = explain(&"ns/web".parse().unwrap(), &tracker());
        history.show_ages(&mut answer, now);
        (answer.endpoints[0].state_seconds, answer.to_string())
    };
    let (first, last) = ("2026-11-28T12:00:00Z", "2026-11-28T12:00:46Z");
    let (seconds, text) = age(&[(first, false), (last, true)]);
    assert_eq!(seconds, Some(14));
    assert!(text.contains("ready, used for 14 s\n"), "{text}");
    assert_eq!(age(&[(first, true), (last, false)]).0, None, "it is back, which is not synced");
    assert_eq!(age(&[]).0, None);
}
