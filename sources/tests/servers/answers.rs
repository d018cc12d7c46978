//! The answers of the two servers to the same requests, compared.

use std::fs;

use api_standin::{
    control_plane::{Programs, User},
    load,
};
use http_body_util::BodyExt;
use hyper::Request;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Deserializer, Map, Value, json};

use crate::{
    rig::NODE,
    server::{Lists, Server},
};

/// The client that sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// A client that may read everything.
    Reader,
    /// A client without a token.
    Anonymous,
    /// A client with a token that the server does not know.
    Stranger,
}

const SERVICES: &str = "/api/v1/namespaces/load/services";
const NODES: &str = "/api/v1/nodes";

/// The requests. `NEWEST` is the version of a list, `TOKEN` its token for the next page, and
/// `FIRST` the version of its first object.
const REQUESTS: [(Asker, &str); 37] = [
    (Asker::Reader, "SERVICES"),
    (Asker::Reader, "SERVICES?limit=2"),
    (Asker::Reader, "SERVICES?limit=2&continue=TOKEN"),
    (Asker::Reader, "SERVICES?limit=2&continue=x"),
    (Asker::Reader, "SERVICES?limit=2&continue=bm90aGluZw"),
    (Asker::Reader, "SERVICES?limit=2&continue=TOKEN&resourceVersion=NEWEST"),
    (Asker::Reader, "SERVICES?resourceVersion=0"),
    (Asker::Reader, "SERVICES?resourceVersion=0&limit=1"),
    (Asker::Reader, "SERVICES?resourceVersion=FIRST"),
    (Asker::Reader, "SERVICES?resourceVersion=0&resourceVersionMatch=Exact"),
    (Asker::Reader, "SERVICES?resourceVersionMatch=NotOlderThan"),
    (Asker::Reader, "SERVICES?resourceVersion=NEWEST&resourceVersionMatch=Exact"),
    (Asker::Reader, "SERVICES?resourceVersion=NEWEST&resourceVersionMatch=NotOlderThan"),
    (Asker::Reader, "SERVICES?resourceVersion=99999999"),
    (Asker::Reader, "SERVICES?resourceVersion=99999999&resourceVersionMatch=NotOlderThan"),
    (Asker::Reader, "SERVICES?resourceVersion=x"),
    (Asker::Reader, "SERVICES?limit=x"),
    (Asker::Reader, "SERVICES?labelSelector=%3D%3D%3D"),
    (Asker::Reader, "SERVICES?labelSelector=%21app"),
    (Asker::Reader, "SERVICES?fieldSelector=spec.clusterIP%21%3DNone"),
    (Asker::Reader, "SERVICES?fieldSelector=spec.nothing%3Da"),
    (Asker::Reader, "SERVICES/absent"),
    (Asker::Reader, "NODES/node-1"),
    (Asker::Reader, "/api/v1/nonsense"),
    (Asker::Reader, "/apis/nonsense.example/v1/things"),
    (Asker::Reader, "SERVICES?watch=true&timeoutSeconds=1"),
    (Asker::Reader, "SERVICES?watch=true&timeoutSeconds=1&resourceVersion=0"),
    (Asker::Reader, "SERVICES?watch=true&timeoutSeconds=1&resourceVersion=NEWEST"),
    (Asker::Reader, "SERVICES?watch=true&timeoutSeconds=1&resourceVersion=FIRST"),
    (Asker::Reader, "SERVICES?watch=true&timeoutSeconds=1&resourceVersion=x"),
    (
        Asker::Reader,
        "SERVICES?watch=true&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan",
    ),
    (
        Asker::Reader,
        "SERVICES?watch=true&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true",
    ),
    (
        Asker::Reader,
        "SERVICES?watch=true&timeoutSeconds=6&sendInitialEvents=true&allowWatchBookmarks=true\
         &resourceVersionMatch=NotOlderThan&resourceVersion=99999999",
    ),
    (
        Asker::Reader,
        "SERVICES?watch=true&timeoutSeconds=1&resourceVersion=NEWEST\
         &resourceVersionMatch=NotOlderThan",
    ),
    (Asker::Anonymous, "SERVICES"),
    (Asker::Anonymous, "SERVICES?watch=true&timeoutSeconds=1"),
    (Asker::Stranger, "SERVICES"),
];

/// The clients of a server, and what takes the places in its requests.
struct Asked {
    reader: Client,
    anonymous: Client,
    stranger: Client,
    newest: String,
    first: String,
    token: String,
}

impl Asked {
    /// Fills a server, whose kubeconfig this is, and makes the clients.
    async fn new(server: &Server, kubeconfig: &str) -> Self {
        server.apply(load::node(NODE)).await;
        for index in 1..=5 {
            server.apply(load::service(index)).await;
        }
        let mut asked = Self {
            reader: client(kubeconfig).await,
            anonymous: client(&with_user(kubeconfig, "{}")).await,
            stranger: client(&with_user(kubeconfig, "{token: unknown}")).await,
            newest: String::new(),
            first: String::new(),
            token: String::new(),
        };
        let page = get(&asked.reader, &format!("{SERVICES}?limit=2")).await.body;
        let page: Value = serde_json::from_str(&page).unwrap();
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        asked.newest = text(&page["metadata"]["resourceVersion"]);
        asked.token = text(&page["metadata"]["continue"]);
        asked.first = text(&page["items"][0]["metadata"]["resourceVersion"]);
        asked
    }

    async fn ask(&self, asker: Asker, request: &str) -> Value {
        let path = request
            .replace("SERVICES", SERVICES)
            .replace("NODES", NODES)
            .replace("NEWEST", &self.newest)
            .replace("FIRST", &self.first)
            .replace("TOKEN", &self.token);
        let client = match asker {
            Asker::Reader => &self.reader,
            Asker::Anonymous => &self.anonymous,
            Asker::Stranger => &self.stranger,
        };
        shape(&get(client, &path).await)
    }
}

struct Answer {
    status: u16,
    headers: hyper::HeaderMap,
    body: String,
}

async fn get(client: &Client, path: &str) -> Answer {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let (head, body) = client.send(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.into()).unwrap();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// The kubeconfig with another user, as YAML in one line.
fn with_user(kubeconfig: &str, user: &str) -> String {
    let (before, rest) = kubeconfig.split_once("user: {token:").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    format!("{before}user: {user}{after}")
}

/// The parts of an answer that a client can distinguish, for a comparison.
fn shape(answer: &Answer) -> Value {
    let header = |name: &str| {
        answer.headers.get(name).map(|value| value.to_str().unwrap_or_default().to_owned())
    };
    let body: Vec<Value> = Deserializer::from_str(&answer.body)
        .into_iter()
        .map_while(Result::ok)
        .map(|value: Value| match value.get("object") {
            Some(object) => json!({"type": value["type"], "object": object_shape(object)}),
            None => object_shape(&value),
        })
        .collect();
    json!({
        "status": answer.status,
        "type": header("content-type"),
        "retryAfter": header("retry-after"),
        "body": body,
    })
}

fn object_shape(value: &Value) -> Value {
    let metadata = &value["metadata"];
    let has = |field: &str| metadata.get(field).is_some_and(|value| !value.is_null());
    let items = value["items"].as_array().map(|items| {
        items
            .iter()
            .map(|item| (item["metadata"]["name"].clone(), item.get("kind").is_some()))
            .collect::<Vec<_>>()
    });
    let mut shape = Map::new();
    for field in ["kind", "apiVersion", "status", "reason", "code", "details"] {
        // Of objects, the status is another thing.
        if value[field].is_string() || value[field].is_number() || field == "details" {
            shape.insert(field.to_owned(), value[field].clone());
        }
    }
    // The messages of causes are for people.
    if let Some(causes) = shape.get_mut("details").and_then(|d| d["causes"].as_array_mut()) {
        for cause in causes {
            cause["message"] = Value::Null;
        }
    }
    shape.insert("name".to_owned(), metadata["name"].clone());
    shape.insert("annotations".to_owned(), metadata["annotations"].clone());
    shape.insert("items".to_owned(), json!(items));
    shape.insert("versioned".to_owned(), has("resourceVersion").into());
    shape.insert("continued".to_owned(), has("continue").into());
    shape.insert("remaining".to_owned(), metadata["remainingItemCount"].clone());
    Value::Object(shape)
}

/// Asks both servers all requests.
pub async fn are_those_of_the_standin(programs: Programs) {
    let servers =
        [Server::genuine(programs, Lists::Streamed).await, Server::standin(Lists::Streamed).await];
    let [Server::Genuine(genuine), Server::Standin(standin)] = &servers else {
        unreachable!("started in this order");
    };
    let administrator = fs::read_to_string(genuine.kubeconfig(User::Administrator)).unwrap();
    let theirs = Asked::new(&servers[0], &administrator).await;
    let ours = Asked::new(&servers[1], &standin.kubeconfig()).await;
    // With an etcd that lacks progress requests, a streamed list ends in an error.
    let (asker, streamed) = REQUESTS
        .into_iter()
        .find(|(_, request)| {
            request.ends_with("allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
        })
        .unwrap();
    let is_streamed = theirs.ask(asker, streamed).await["body"][0]["type"] != "ERROR";
    standin.faults().progress_requests(is_streamed);
    let mut differences = Vec::new();
    for (asker, request) in REQUESTS {
        let [theirs, ours] = [theirs.ask(asker, request).await, ours.ask(asker, request).await];
        if theirs != ours {
            differences
                .push(format!("{asker:?} {request}\n  genuine  {theirs}\n  stand-in {ours}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
