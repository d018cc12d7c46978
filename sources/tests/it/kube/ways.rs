//! The request after a failed list, and its time: on a paused clock, with scripted answers.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future, stream};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{Request, Response, body::Frame};
use kube::{Client, client::Body};
use serde_json::json;
use switchyard_core::objects::{Event, Kind};
use switchyard_sources::kube::{Pacer, RequestPace, Timing, WatchHealth, watch_all};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};
use tower::{BoxError, service_fn};

use crate::kube::rig::NODE;

/// An answer to a request for Services. Other kinds stay without an answer.
#[derive(Clone, Copy, Debug)]
enum Reply {
    /// This status, with so many seconds to wait. A status without a code is a gateway's.
    Status(u16, u32),
    /// A stream that holds an error of this code, with so many seconds to wait.
    Error(u16, u32),
    /// A stream without an event: it ends at once.
    Ends,
    /// A stream without an event that ends after a minute.
    Quiet,
    /// A stream that brings nothing and does not end.
    Silent,
    /// A stream whose connection breaks.
    Broken,
    /// The same after a bookmark of version 7.
    Bookmark,
    /// A stream that does not end after a bookmark without a version.
    Unversioned,
    /// A stream of an object that is no event.
    Garbage,
    /// A list without objects, of this version.
    List(u8),
    /// No connection.
    Refused,
    /// No answer.
    None,
}

/// The ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stream,
    /// A watch from a version on.
    Watch,
    /// The list of the server's cache, of a version or newer.
    Cached,
    /// The newest list, in pages.
    Newest,
    /// The newest version, by a list of one object.
    Version,
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl Reply {
    async fn answer(self) -> Result<Answer, BoxError> {
        let status = |code, seconds| {
            let message = if code == 504 { "Too large resource version: 2" } else { "as asked" };
            json!({
                "kind": "Status", "status": "Failure", "code": code, "message": message,
                "details": {"retryAfterSeconds": seconds},
            })
        };
        let (code, text) = match self {
            Self::Status(0, _) => (403, r#"{"message": "no healthy upstream"}"#.to_owned()),
            Self::Status(code, seconds) => (code, status(code, seconds).to_string()),
            Self::Error(code, seconds) => {
                let event = json!({"type": "ERROR", "object": status(code, seconds)});
                (200, format!("{event}\n"))
            }
            Self::Ends | Self::Quiet | Self::Silent | Self::Broken => (200, String::new()),
            Self::Garbage => (200, "{\"type\": \"UNKNOWN\"}\n".to_owned()),
            Self::Bookmark | Self::Unversioned => {
                let version = if matches!(self, Self::Bookmark) { "7" } else { "" };
                let metadata = json!({"resourceVersion": version});
                let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
                (200, format!("{}\n", json!({"type": "BOOKMARK", "object": object})))
            }
            Self::List(version) => {
                let metadata = json!({"resourceVersion": version.to_string()});
                let list = json!({"kind": "ServiceList", "metadata": metadata, "items": []});
                (200, list.to_string())
            }
            Self::Refused => return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Self::None => future::pending().await,
        };
        let frames = stream::iter([Ok(Frame::data(text.into()))]);
        let body = match self {
            Self::Silent | Self::Unversioned => {
                StreamBody::new(frames.chain(stream::pending())).boxed_unsync()
            }
            Self::Quiet => {
                let end = time::sleep(Duration::from_secs(60)).map(|()| Ok(Frame::data("".into())));
                StreamBody::new(frames.chain(end.into_stream())).boxed_unsync()
            }
            Self::Broken | Self::Bookmark => {
                let error = io::Error::from(io::ErrorKind::ConnectionReset);
                StreamBody::new(frames.chain(stream::iter([Err(error.into())]))).boxed_unsync()
            }
            _ => StreamBody::new(frames).boxed_unsync(),
        };
        Ok(Response::builder().status(code).body(body)?)
    }
}

/// Answers the first requests for Services so, and returns these and the next request: the way of
/// each, and the time since the one before.
async fn requests_after(replies: &[Reply]) -> Vec<(Way, Duration)> {
    requests_and_health(replies, WatchHealth::new()).await
}

async fn requests_and_health(replies: &[Reply], health: WatchHealth) -> Vec<(Way, Duration)> {
    let mut script = VecDeque::from(replies.to_vec());
    let (asked, mut received) = mpsc::unbounded_channel();
    let serve = Arc::new(Mutex::new(move |query: &str| {
        let way = match query {
            query if query.contains("sendInitialEvents=true") => Way::Stream,
            query if query.contains("watch=true") => Way::Watch,
            query if query.contains("resourceVersion=") => Way::Cached,
            query if query.ends_with("limit=1") => Way::Version,
            _ => Way::Newest,
        };
        // Fails at the end of the test only.
        let _ = asked.send((way, Instant::now()));
        script.pop_front().unwrap_or(Reply::None)
    }));
    let service = service_fn(move |request: Request<Body>| {
        // This server has the second form alone.
        let accepted = "application/vnd.kubernetes.protobuf, application/json";
        assert_eq!(request.headers()["accept"], accepted);
        let reply = match request.uri().path() {
            "/api/v1/services" => serve.lock().unwrap()(request.uri().query().unwrap_or_default()),
            _ => Reply::None,
        };
        reply.answer()
    });
    let (sender, _events) = mpsc::channel::<Event>(1);
    let pacer = Pacer::new(RequestPace { qps: -1.0, burst: 0 });
    let client = Client::new(service, "default");
    let mut last = Instant::now();
    let watches = watch_all(client, pacer, Timing::default(), NODE, sender, health);
    let watches = tokio::spawn(watches);
    let mut requests = Vec::new();
    while requests.len() <= replies.len() {
        let (way, at) = received.recv().await.unwrap();
        requests.push((way, at - last));
        last = at;
    }
    watches.abort();
    requests
}

#[tokio::test(start_paused = true)]
async fn a_list_is_streamed_until_the_server_shows_that_streaming_fails() {
    use Reply::{Ends, Error, None, Refused, Silent, Status, Unversioned};
    use Way::{Cached, Newest, Stream};
    for (reply, way, least) in [
        (Status(429, 0), Stream, 0.8),
        (Status(429, 7), Stream, 7.0),
        (Status(500, 0), Stream, 0.8),
        (Status(502, 0), Stream, 0.8),
        (Status(503, 9), Stream, 9.0),
        (Status(504, 1), Stream, 1.0),
        (Status(401, 0), Stream, 0.8),
        (Status(403, 0), Cached, 0.0),
        (Error(429, 0), Stream, 0.8),
        (Error(503, 3), Stream, 3.0),
        (Refused, Stream, 0.8),
        (None, Stream, 30.8),
        (Status(400, 0), Cached, 0.0),
        (Status(422, 0), Cached, 0.0),
        (Status(410, 0), Newest, 0.0),
        (Error(500, 0), Cached, 0.0),
        (Error(410, 0), Newest, 0.0),
        (Ends, Cached, 0.0),
        (Silent, Cached, 90.0),
        // Bookmarks before the end: not from a server that streams lists.
        (Unversioned, Cached, 0.0),
    ] {
        let requests = requests_after(&[reply]).await;
        assert_eq!((requests[0].0, requests[1].0), (Stream, way), "{reply:?}");
        let pause = requests[1].1.as_secs_f64();
        match (way, reply) {
            (Stream, _) => assert!(pause >= least, "{reply:?}: {pause}"),
            _ => assert!((pause - least).abs() < 0.1, "{reply:?}: {pause}"),
        }
    }
}

fn ways(requests: &[(Way, Duration)]) -> Vec<Way> {
    requests.iter().map(|(way, _)| *way).collect()
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_is_not_asked_for_in_one_way_for_ever() {
    use Reply::{Broken, Error, None, Refused, Status};
    use Way::{Cached, Newest, Stream};
    // None of them for the reason that lists are streamed, as far as can be known.
    for reply in [Status(500, 0), Status(503, 1), Status(401, 0), Refused, Broken, None] {
        let requests = requests_after(&[reply; 8]).await;
        // A list that is cut in the middle is asked for in parts.
        let then = if matches!(reply, Broken) { Newest } else { Cached };
        let turns = [Stream, Stream, Stream, Stream, Stream, Cached, then, then, Stream];
        assert_eq!(ways(&requests), turns, "{reply:?}: {requests:?}");
        // The pauses grow, and nothing is asked for in between.
        let least = if matches!(reply, None) { 30 } else { 10 };
        assert!(requests[5].1 > Duration::from_secs(least), "{reply:?}: {requests:?}");
    }
    // Also in any order, between which a server that is overloaded changes nothing.
    let replies =
        [Error(503, 1), Status(500, 0), Status(429, 0), None, Error(429, 0), Broken, Refused];
    let requests = requests_after(&replies).await;
    let last = [Stream, Stream, Stream, Stream, Stream, Stream, Stream, Cached];
    assert_eq!(ways(&requests), last, "{requests:?}");
    // What a server that is overloaded cannot answer, it is not asked for otherwise.
    for reply in [Status(429, 0), Error(429, 0)] {
        let requests = requests_after(&[reply; 20]).await;
        assert!(requests.iter().all(|(way, _)| *way == Stream), "{reply:?}: {requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_are_streamed_again_after_an_outage() {
    use Reply::{Error, List, Refused, Silent};
    use Way::{Cached, Stream, Watch};
    // The server is back when it is asked for a list without a stream, and later forgets the
    // version.
    let outage = [[Refused; 5].as_slice(), &[List(7), Error(410, 0), Refused, Silent]].concat();
    let requests = requests_after(&outage).await;
    assert_eq!(ways(&requests)[..5], [Stream; 5], "{requests:?}");
    assert_eq!(ways(&requests)[5..9], [Cached, Watch, Stream, Stream], "{requests:?}");
}

/// The way of the request after these answers to watches, and its pause.
async fn after_watches(replies: &[Reply]) -> (Way, Duration) {
    let requests = requests_after(&[&[Reply::Ends, Reply::List(7)], replies].concat()).await;
    let [watches @ .., next] = &requests[2..] else { panic!("{requests:?}") };
    let is_meant = |(way, reply): (Way, &Reply)| match reply {
        Reply::List(_) => way == Way::Version,
        _ => way == Way::Watch,
    };
    assert!(watches.iter().map(|asked| asked.0).zip(replies).all(is_meant), "{requests:?}");
    *next
}

/// A load balancer may cut each connection after some minutes.
#[tokio::test(start_paused = true)]
async fn a_watch_that_brings_something_is_opened_again_soon() {
    use Reply::{Bookmark, Broken, Ends, Refused};
    for (reply, is_soon) in [(Bookmark, true), (Broken, false), (Ends, false), (Refused, false)] {
        let (way, pause) = after_watches(&[reply; 4]).await;
        assert_eq!((way, pause < Duration::from_secs(2)), (Way::Watch, is_soon), "{reply:?}");
    }
}

/// A server that forgets versions, as each after its start, one that is behind, one that was
/// restored from a backup, which sends nothing up to the version, and one that is quiet.
#[tokio::test(start_paused = true)]
async fn a_version_of_no_use_is_given_up_for_a_list() {
    use Reply::{Bookmark, Error, List, Refused, Silent, Status, Unversioned};
    let outage = [[Refused; 8].as_slice(), &[Error(410, 0)]].concat();
    for replies in [&[Error(410, 0)], &[Status(410, 0)], &[Status(504, 0)], &*outage] {
        let (way, pause) = after_watches(replies).await;
        assert_ne!(way, Way::Watch, "{replies:?}");
        assert!(pause < Duration::from_secs(3), "{replies:?}: {pause:?}");
    }
    // A bookmark without a version would have the watch begin anew, without what was deleted.
    assert_ne!(after_watches(&[Unversioned]).await.0, Way::Watch);
    let quiet = |version| [Silent, Silent, List(version)];
    for (replies, next, tens) in [
        ([Silent].as_slice(), Way::Watch, 9),
        (&[Silent, Silent], Way::Version, 9),
        (&quiet(6), Way::Stream, 0),
        (&[Silent, Bookmark, Silent], Way::Watch, 9),
        // Nothing at all has changed in 12 minutes, or nothing of the kind.
        (&[quiet(7); 4].concat(), Way::Watch, 0),
        (&[quiet(8); 3].concat(), Way::Watch, 0),
        (&[&[quiet(8); 3].concat()[..], &[Silent, Bookmark, Silent]].concat(), Way::Watch, 9),
        (&[&[quiet(8); 3].concat()[..], &[Silent, Silent]].concat(), Way::Stream, 9),
    ] {
        let (way, pause) = after_watches(replies).await;
        assert_eq!((way, pause.as_secs() / 10), (next, tens), "{replies:?}");
    }
    let asked = requests_after(&[Reply::Ends, List(7), Silent, Silent, Reply::None]).await;
    assert_eq!(ways(&asked)[4..], [Way::Version, Way::Watch], "it hangs");
    assert_eq!(asked[5].1.as_secs() / 10, 3, "{asked:?}");
    let refused = |times| [&quiet(8), &*[Status(500, 0)].repeat(times)].concat();
    assert_eq!(after_watches(&refused(4)).await.0, Way::Watch);
    assert_ne!(after_watches(&refused(5)).await.0, Way::Watch, "each is refused");
    let health = WatchHealth::new();
    let replies = [&[Reply::Ends, List(7)][..], &quiet(8), &[Silent]].concat();
    requests_and_health(&replies, health.clone()).await;
    assert_eq!(health.failed(Kind::Service), None, "a quiet server does not fail");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_the_cache_cannot_answer_is_asked_for_as_the_newest() {
    use Way::{Cached, Newest, Stream};
    for (code, next) in [(410, Newest), (504, Newest), (400, Newest), (429, Cached), (500, Cached)]
    {
        let requests = requests_after(&[Reply::Status(422, 0), Reply::Status(code, 1)]).await;
        assert_eq!(ways(&requests), [Stream, Cached, next], "{code}");
    }
}

/// Whatever the reason, of which a server may give any for a version that it cannot serve.
#[tokio::test(start_paused = true)]
async fn watches_that_bring_nothing_but_failures_are_given_up_for_a_list() {
    use Reply::{Bookmark, Broken, Ends, Error, Garbage, Quiet, Refused, Status};
    for reply in
        [Status(400, 0), Status(403, 0), Status(500, 0), Error(500, 0), Garbage, Ends, Broken]
    {
        assert_eq!(after_watches(&[reply; 4]).await.0, Way::Watch, "{reply:?}");
        assert_ne!(after_watches(&[reply; 5]).await.0, Way::Watch, "{reply:?}");
        for well in [Bookmark, Quiet] {
            let progress = [reply, reply, reply, reply, well, reply];
            assert_eq!(after_watches(&progress).await.0, Way::Watch, "{reply:?}");
        }
    }
    // These say nothing about the version.
    for code in [401, 429, 502, 0] {
        assert_eq!(after_watches(&[Status(code, 0); 8]).await.0, Way::Watch, "{code}");
    }
    for reply in [Refused, Error(503, 0)] {
        assert_eq!(after_watches(&[reply; 8]).await.0, Way::Watch, "{reply:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_given_up_for_failures_is_still_the_least_of_the_list() {
    use Reply::{Ends, List, Silent, Status};
    let failures = [Status(500, 0); 5];
    for (watches, way) in [
        (failures.as_slice(), Way::Cached),
        (&[Status(410, 0)], Way::Cached),
        (&[Status(504, 0)], Way::Newest),
        (&[Silent, Silent, List(6)], Way::Newest),
    ] {
        let replies = [&[Ends, List(7)], watches, &[Status(422, 0)]].concat();
        let ways = ways(&requests_after(&replies).await);
        let list = ways[2..].iter().find(|way| matches!(way, Way::Cached | Way::Newest));
        assert_eq!(list, Some(&way), "{watches:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_bring_nothing_but_failures_are_no_news() {
    use Reply::{Error, Status};
    let failures = [Error(500, 0), Status(500, 0), Status(500, 0), Status(500, 0)];
    let health = WatchHealth::new();
    let requests = requests_and_health(&[failures; 4].concat(), health.clone()).await;
    let streams = requests.iter().filter(|(way, _)| *way == Way::Stream).count();
    assert_eq!(streams, 5, "{requests:?}");
    let since_third: Duration = requests[9..].iter().map(|(_, pause)| *pause).sum();
    assert!(health.heard(Kind::Service).unwrap() > since_third, "{requests:?}");
    // Nor are lists that are none.
    let health = WatchHealth::new();
    let requests = requests_and_health(&[Reply::Garbage; 12], health.clone()).await;
    let since_fifth: Duration = requests[6..].iter().map(|(_, pause)| *pause).sum();
    assert!(health.heard(Kind::Service).unwrap() > since_fifth, "{requests:?}");
}
