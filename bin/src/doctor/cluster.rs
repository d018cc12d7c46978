//! The API server: whether it answers this node, lets the proxy read what it needs, and has the
//! same time.

use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use kube::{
    Client,
    api::{ListParams, Request, WatchParams},
    client::Body,
};
use serde_json::Value;
use switchyard_core::{
    error::ErrorChain,
    model::Code,
    objects::{Event, Kind},
};
use switchyard_sources::manifests::decode_object;
use tokio::{runtime, time::timeout};

use super::{
    Known,
    report::{Finding, Level, NotMade, Outcome},
    unanswered,
};
use crate::{Failure, config::settings::SourceSettings, source_task};

/// The longest time for all requests.
const LONGEST: Duration = Duration::from_secs(10);
/// The largest answer that is read, in bytes.
pub(super) const LARGEST: usize = 16 << 20;
/// The Services that are read: enough to have the node ports of most clusters.
pub(super) const MOST_SERVICES: u32 = 500;
/// The difference of clocks from which on it is named: certificates and tokens are made for clocks
/// that differ by seconds.
const SKEW: SignedDuration = SignedDuration::from_secs(30);

/// The answers of the API server.
#[derive(Default)]
pub(super) struct Cluster {
    /// The requests that were refused, with the reasons.
    refused: Vec<String>,
    /// The server's time less that of this node.
    ahead: Option<SignedDuration>,
    /// Whether there is no Node of the name.
    lacks_node: bool,
    /// The node, and Services.
    pub(super) objects: Vec<Event>,
    /// The kind of objects whose list is too large to be read.
    pub(super) too_large: Option<Kind>,
    /// Whether there are more Services than were read.
    pub(super) is_cut: bool,
}

/// Why there are no answers.
pub(super) enum Unanswered {
    /// There is no server to ask.
    NoServer(String),
    /// The server did not answer.
    Failed(String),
}

impl Unanswered {
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::NoServer(reason) | Self::Failed(reason) => reason,
        }
    }
}

impl Cluster {
    /// Makes the requests of a proxy with this configuration.
    pub(super) fn ask(source: &SourceSettings, node: &str) -> Result<Self, Unanswered> {
        let SourceSettings::Cluster(settings) = source else {
            let reason = "the configuration names another source of objects than an API server";
            return Err(Unanswered::NoServer(reason.to_owned()));
        };
        let started = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = started.map_err(|error| Unanswered::NoServer(error.to_string()))?;
        let failed = Unanswered::Failed;
        let answers = async {
            // Credentials may be where only a pod of the proxy finds them.
            let client = source_task::client(settings).await;
            let client =
                client.map_err(|error| Unanswered::NoServer(ErrorChain(&error).to_string()))?;
            let answered = requests(&client, node).await;
            answered.map_err(|error| failed(ErrorChain(error.as_ref()).to_string()))
        };
        let asked = runtime.block_on(async { timeout(LONGEST, answers).await });
        // A resolver may hang.
        runtime.shutdown_background();
        let too_long = |_| Err(failed(format!("it took longer than {} s", LONGEST.as_secs())));
        asked.unwrap_or_else(too_long)
    }
}

async fn requests(client: &Client, node: &str) -> Result<Cluster, Failure> {
    let mut cluster = Cluster::default();
    let field = format!("metadata.name={node}");
    for (kind, path, fields, most) in [
        (Kind::Node, "/api/v1/nodes", Some(&*field), 1),
        (Kind::Service, "/api/v1/services", None, MOST_SERVICES),
        (Kind::EndpointSlice, "/apis/discovery.k8s.io/v1/endpointslices", None, 1),
    ] {
        let mut list = ListParams::default().limit(most);
        let mut watch = WatchParams::default().timeout(1);
        if let Some(fields) = fields {
            (list, watch) = (list.fields(fields), watch.fields(fields));
        }
        let begun = Timestamp::now();
        let response = client.send(Request::new(path).list(&list)?.map(Body::from)).await?;
        let (status, date) = (response.status(), response.headers().get("date").cloned());
        // As much later as the answer may have been on its way.
        let here = begun + begun.duration_until(Timestamp::now()) / 2;
        let date = date.as_ref().and_then(|date| date.to_str().ok());
        let there = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        cluster.ahead = there.map(|there| here.duration_until(there)).or(cluster.ahead);
        let answer = match Limited::new(response.into_body(), LARGEST).collect().await {
            Ok(body) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
            Err(error) if error.is::<LengthLimitError>() => {
                cluster.too_large = Some(kind);
                Value::Null
            }
            Err(_) => return Err("an answer of the API server ended early".into()),
        };
        let mut refuse = |verb: &str, status: StatusCode, why: &str| {
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            cluster.refused.push(format!("{verb} {}: {status}{why}", kind.as_str()));
        };
        if is_refusal(status) {
            refuse("list", status, answer["message"].as_str().unwrap_or_default());
            continue;
        }
        // Others pass: too many requests, or a server that begins.
        if !status.is_success() {
            return Err(format!("the API server answers {status}").into());
        }
        let list = format!("{}List", kind.as_str());
        if answer["kind"] != *list && cluster.too_large != Some(kind) {
            return Err(format!("what answers {path} is no API server: it sent no {list}").into());
        }
        let is_empty = answer["items"].as_array().is_none_or(Vec::is_empty);
        cluster.lacks_node |= kind == Kind::Node && is_empty && cluster.too_large.is_none();
        let version = answer["metadata"]["resourceVersion"].as_str().unwrap_or("0");
        // The watch ends by itself, or with the connection.
        let watching = client.send(Request::new(path).watch(&watch, version)?.map(Body::from));
        let status = watching.await?.status();
        if is_refusal(status) {
            refuse("watch", status, "");
        }
        if kind != Kind::EndpointSlice {
            cluster.is_cut |=
                answer["metadata"]["continue"].as_str().is_some_and(|at| !at.is_empty());
            cluster.objects.extend(objects(answer, kind));
        }
    }
    Ok(cluster)
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// The items of a list, which lack their kind.
fn objects(mut list: Value, kind: Kind) -> Vec<Event> {
    let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
        return Vec::new();
    };
    let decode = |mut item: Value| {
        item["apiVersion"] = "v1".into();
        item["kind"] = kind.as_str().into();
        decode_object(&item.to_string()).ok()?
    };
    items.into_iter().filter_map(decode).collect()
}

/// Finds an API server that does not answer, refuses what the proxy reads, or has no Node of this
/// node's name.
pub(super) fn answers(known: &Known) -> Outcome {
    let refused = match known.cluster() {
        Ok(Cluster { refused, lacks_node: true, .. }) if refused.is_empty() => {
            return no_node(known);
        }
        Ok(cluster) if cluster.refused.is_empty() => return Ok(Vec::new()),
        Ok(cluster) => cluster.refused.join("; "),
        Err(Unanswered::NoServer(reason)) => return Err(NotMade(reason.clone())),
        Err(Unanswered::Failed(reason)) => {
            return Ok(vec![Finding {
                code: Code::new("SWY0501"),
                level: Level::Error,
                finding: "The API server does not answer this node, whose Services stay as they are"
                    .to_owned(),
                because: format!("{reason}{}", of_service(&known.loaded.settings.source)),
                remedy: "see whether the address in the kubeconfig is right, whether the server runs, and what \
                         lies between; it must be no cluster IP"
                    .to_owned(),
            }]);
        }
    };
    Ok(vec![Finding {
        code: Code::new("SWY0502"),
        level: Level::Error,
        finding: "The API server refuses what the proxy has to read".to_owned(),
        because: refused,
        remedy: "bind the proxy's account to the ClusterRole system:node-proxier, and see whether its credentials \
                 are still valid"
            .to_owned(),
    }])
}

/// Returns what to add to the reason why the server of this configuration does not answer.
fn of_service(source: &SourceSettings) -> &'static str {
    match source {
        SourceSettings::Cluster(settings)
            if settings.kubeconfig.is_none() && settings.master.is_none() =>
        {
            "; without a kubeconfig, the address is that of the Service default/kubernetes, which needs the proxy"
        }
        _ => "",
    }
}

/// A running proxy, which may have another name, reports a missing Node itself (SWY0504).
fn no_node(known: &Known) -> Outcome {
    let problems = known.problems();
    if let (Err(error), true) = (&problems, known.proxies.is_ours || known.proxies.mode.is_some()) {
        return Err(NotMade(unanswered(error)));
    }
    let found = problems.is_err().then(|| Finding {
        code: Code::new("SWY0505"),
        level: Level::Error,
        finding: format!("The API server has no Node {}", known.loaded.settings.node.node_name),
        because: format!(
            "the name is {}; without a Node, no endpoint is one of this node, and load balancers leave it \
             out",
            known.name_from
        ),
        remedy: "name the Node by --hostname-override or hostnameOverride, as kubectl get nodes lists it"
            .to_owned(),
    });
    Ok(Vec::from_iter(found))
}

/// Finds a clock that differs from the API server's.
pub(super) fn clock(known: &Known) -> Outcome {
    match known.cluster() {
        Ok(Cluster { ahead: Some(ahead), .. }) => Ok(Vec::from_iter(skew(*ahead))),
        Ok(_) => Err(NotMade("the API server states no time".to_owned())),
        Err(error) => Err(NotMade(error.reason().to_owned())),
    }
}

fn skew(ahead: SignedDuration) -> Option<Finding> {
    let how = if ahead.is_positive() { "behind" } else { "ahead of" };
    (ahead.abs() > SKEW).then(|| Finding {
        code: Code::new("SWY0503"),
        level: Level::Warning,
        finding: format!("The clock of this node is {} s {how} the API server's", ahead.abs().as_secs()),
        because: "the Date of its answer differs: certificates and tokens may not be valid yet, or no more, and the \
                  times of Events and of switchyard explain are wrong"
            .to_owned(),
        remedy: "have chrony or systemd-timesyncd set the clock (timedatectl status)".to_owned(),
    })
}

/// Finds problems that the running proxy has itself, such as watches without news.
pub(super) fn running(known: &Known) -> Outcome {
    let mut problems = known.problems().map_err(|error| NotMade(unanswered(&error)))?;
    // It is a finding of its own.
    problems.retain(|problem| !problem.starts_with("connection tracking"));
    let found = (!problems.is_empty()).then(|| Finding {
        code: Code::new("SWY0504"),
        level: Level::Warning,
        finding: "The running proxy has problems".to_owned(),
        because: format!("it says: {}", problems.join("; ")),
        remedy: "see its log and its page /status; what it has programmed goes on to serve"
            .to_owned(),
    });
    Ok(Vec::from_iter(found))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpListener,
        thread,
    };

    use super::*;
    use crate::config::settings::ClientSettings;

    /// Such as the page of a proxy for browsers.
    #[test]
    fn a_server_that_sends_something_else_is_no_api_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let master = Some(format!("http://{}", listener.local_addr().unwrap()));
        thread::spawn(move || {
            let page = "<html>ok</html>";
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", page.len());
                let _ = stream.write_all((head + page).as_bytes());
            }
        });
        let source = SourceSettings::Cluster(ClientSettings { master, ..Default::default() });
        let Err(Unanswered::Failed(why)) = Cluster::ask(&source, "node-1") else { panic!("taken") };
        assert_eq!(why, "what answers /api/v1/nodes is no API server: it sent no NodeList");
    }

    #[test]
    fn clocks_may_differ_by_seconds() {
        let found = |seconds| skew(SignedDuration::from_secs(seconds)).map(|found| found.finding);
        assert_eq!((found(30), found(-30)), (None, None));
        assert_eq!(found(31).unwrap(), "The clock of this node is 31 s behind the API server's");
        assert!(found(-90).unwrap().contains("90 s ahead of"));
    }
}
