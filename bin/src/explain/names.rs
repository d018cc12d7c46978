//! The names of a Service's endpoints: pods, nodes and zones.
//!
//! The proxy needs none of them, and a cluster has hundreds of thousands. So they are read for who
//! asks, from where the EndpointSlices are: the API server, or the directory of manifests. A client
//! with objects cannot be asked.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kube::{
    Client,
    api::{ListParams, Request},
};
use serde::Deserialize;
use switchyard_core::{error::ErrorChain, explain::EndpointNames, model::ServiceName};
use switchyard_sources::{kube::Pacer, manifests};
use tokio::{sync::watch, task, time::timeout};

use crate::{Failure, pace::Pace};

/// The longest wait for names.
const LONGEST: Duration = Duration::from_secs(2);
/// The longest time that an API server is given.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// The time for which names are kept, and the lack of them.
const KEPT: Duration = Duration::from_secs(5);
/// The most Services whose names are kept, or waited for.
const MOST: usize = 8;
/// The label of a slice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";
/// The annotation of a slice with the time of the change of pods that it reflects.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The names of a Service's endpoints, and what else the proxy has no use for.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The names, by address and port; with port 0 those of endpoints without the port.
    pub endpoints: HashMap<SocketAddr, EndpointNames>,
    /// The time since the Service itself was last changed, but for its status, in seconds; `None`
    /// if it does not say.
    pub service_seconds: Option<u64>,
}

#[derive(Default)]
pub struct NameReader {
    source: OnceLock<Source>,
    /// The answers of a moment ago, and those that are waited for, the last first.
    answers: Mutex<Vec<Answer>>,
}

/// The names of a Service's endpoints.
struct Answer {
    service: ServiceName,
    names: watch::Receiver<Option<Found>>,
}

/// The names that were found, and the time; none where that failed.
struct Found {
    at: Instant,
    names: Option<Arc<Names>>,
}

impl Answer {
    /// Whether it is fresh, or waited for.
    fn is_kept(&self) -> bool {
        match &*self.names.borrow() {
            Some(found) => found.at.elapsed() < KEPT,
            None => self.is_waited_for(),
        }
    }

    fn is_waited_for(&self) -> bool {
        // Nothing comes from a task that has ended.
        self.names.borrow().is_none() && self.names.has_changed().is_ok()
    }
}

/// The place of EndpointSlices.
#[derive(Clone)]
enum Source {
    Cluster(Client, Pacer),
    /// Reading a directory takes time in proportion to it.
    Directory(PathBuf, Arc<Pace>),
}

impl NameReader {
    /// Has the names be read from an API server.
    pub fn read_from_cluster(&self, client: Client, pacer: Pacer) {
        // A source is started once.
        let _ = self.source.set(Source::Cluster(client, pacer));
    }

    /// Has the names be read from manifests.
    pub fn read_from_directory(&self, directory: PathBuf) {
        let _ = self.source.set(Source::Directory(directory, Arc::default()));
    }

    /// Returns the names of a Service's endpoints; `None` if there is no place to read them from, or
    /// it does not answer within two seconds. A later answer is for those who ask again.
    pub async fn of(&self, service: &ServiceName) -> Option<Arc<Names>> {
        let mut names = self.answer(service)?;
        let found = timeout(LONGEST, names.wait_for(Option::is_some)).await.ok()?.ok()?;
        found.as_ref()?.names.clone()
    }

    /// Returns the place of an answer, which is asked for unless there is one.
    fn answer(&self, service: &ServiceName) -> Option<watch::Receiver<Option<Found>>> {
        let source = self.source.get()?.clone();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(Answer::is_kept);
        if let Some(answer) = answers.iter().find(|answer| answer.service == *service) {
            return Some(answer.names.clone());
        }
        if answers.len() == MOST {
            let last = answers.iter().rposition(|answer| !answer.is_waited_for())?;
            answers.remove(last);
        }
        let (sender, names) = watch::channel(None);
        answers.insert(0, Answer { service: service.clone(), names: names.clone() });
        let service = service.clone();
        task::spawn(async move {
            let names = match read(source, &service).await {
                Ok(names) => names.map(Arc::new),
                Err(error) => {
                    let err = ErrorChain(error.as_ref());
                    tracing::debug!(%err, %service, "Failed to read the names of endpoints");
                    None
                }
            };
            sender.send_replace(Some(Found { at: Instant::now(), names }));
        });
        Some(names)
    }
}

/// Reads the names; `None` if that took long and was a moment ago.
async fn read(source: Source, service: &ServiceName) -> Result<Option<Names>, Failure> {
    Ok(match source {
        Source::Cluster(client, pacer) => {
            Some(timeout(LONGEST_READ, from_cluster(&client, &pacer, service)).await??)
        }
        Source::Directory(path, pace) => {
            let service = service.clone();
            let reading = move || pace.run(|| from_directory(&path, &service));
            task::spawn_blocking(reading).await?.transpose()?
        }
    })
}

/// Asks for one Service and its slices, as the server's cache has them.
async fn from_cluster(
    client: &Client,
    pacer: &Pacer,
    service: &ServiceName,
) -> Result<Names, Failure> {
    let (namespace, name) = service.parts();
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    let of_service = ListParams::default().labels(&format!("{SERVICE}={name}"));
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let itself = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = async |path, which: ListParams| -> Result<_, Failure> {
        pacer.permit("GET").await;
        let request = Request::new(path).list(&which.match_any())?;
        Ok(client.request_text(request).await?)
    };
    let (slices, itself) = tokio::join!(list(slices, of_service), list(services, itself));
    let (slices, service) = (slices?, service.clone());
    let decode = move || -> Result<Names, Failure> {
        let list = itself.ok().and_then(|text| serde_json::from_str::<Slice>(&text).ok());
        let changed = list.and_then(|list| list.items.iter().flatten().find_map(Slice::changed));
        let service_seconds = changed.and_then(|at| seconds(at, Timestamp::now()));
        let endpoints = names([serde_json::from_str(&slices)?], &service);
        Ok(Names { endpoints, service_seconds })
    };
    // Neither watches nor servers need wait for that of a large Service.
    task::spawn_blocking(decode).await?
}

/// Reads the slices of one Service.
///
/// # Errors
/// If the directory cannot be read. What cannot be decoded has no names.
pub fn from_directory(directory: &Path, service: &ServiceName) -> Result<Names, Failure> {
    let slices = manifests::read_documents::<Slice>(directory, service.name())?;
    Ok(Names { endpoints: names(slices, service), service_seconds: None })
}

/// An EndpointSlice, a list of them, or something else such as a Service, without what has no
/// names. An API server sends `null` for an empty list.
#[derive(Deserialize)]
struct Slice {
    metadata: Option<Metadata>,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
    items: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<Arc<str>>,
    namespace: Option<String>,
    labels: Option<HashMap<String, String>>,
    annotations: Option<HashMap<String, String>>,
    managed_fields: Option<Vec<Change>>,
}

/// An entry of `managedFields`.
#[derive(Deserialize)]
struct Change {
    time: Option<Timestamp>,
    subresource: Option<String>,
}

#[derive(Deserialize)]
struct Port {
    port: Option<u16>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    addresses: Option<Vec<String>>,
    node_name: Option<String>,
    zone: Option<String>,
    target_ref: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Option<String>,
    name: Option<String>,
}

impl Slice {
    fn is_of(&self, service: &ServiceName) -> bool {
        let Some(Metadata { namespace, labels: Some(labels), .. }) = &self.metadata else {
            return false;
        };
        namespace.as_deref().unwrap_or("default") == service.namespace()
            && labels.get(SERVICE).is_some_and(|name| **name == *service.name())
    }

    /// The age of the change that it reflects.
    fn seconds(&self, now: Timestamp) -> Option<u64> {
        let annotations = self.metadata.as_ref()?.annotations.as_ref()?;
        seconds(annotations.get(TRIGGER_TIME)?.parse().ok()?, now)
    }

    /// The time of the last change of the object, but for its status.
    fn changed(&self) -> Option<Timestamp> {
        let changes = self.metadata.as_ref()?.managed_fields.iter().flatten();
        changes.filter(|change| change.subresource.is_none()).filter_map(|change| change.time).max()
    }
}

fn seconds(since: Timestamp, now: Timestamp) -> Option<u64> {
    u64::try_from(now.duration_since(since).as_secs()).ok()
}

fn names(
    slices: impl IntoIterator<Item = Slice>,
    service: &ServiceName,
) -> HashMap<SocketAddr, EndpointNames> {
    let items =
        |mut slice: Slice| slice.items.take().unwrap_or_default().into_iter().chain([slice]);
    let mut found = HashMap::new();
    for slice in slices.into_iter().flat_map(items).filter(|slice| slice.is_of(service)) {
        let slice_seconds = slice.seconds(Timestamp::now());
        let slice_name = slice.metadata.and_then(|metadata| metadata.name);
        let ports = slice.ports.into_iter().flatten().filter_map(|port| port.port);
        let ports: Vec<u16> = ports.chain([0]).collect();
        for endpoint in slice.endpoints.into_iter().flatten() {
            let pod = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
            let names = EndpointNames {
                pod: pod.and_then(|pod| pod.name),
                node: endpoint.node_name,
                zone: endpoint.zone,
                slice: slice_name.clone(),
                slice_seconds,
            };
            let addresses = endpoint.addresses.into_iter().flatten();
            for ip in addresses.filter_map(|address| address.parse::<IpAddr>().ok()) {
                found.extend(ports.iter().map(|port| (SocketAddr::new(ip, *port), names.clone())));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such as one on a server that hangs.
    #[tokio::test]
    async fn a_slow_directory_is_read_by_one_at_a_time() {
        let directory = tempfile::TempDir::new().unwrap();
        let reader = NameReader::default();
        let service = ServiceName::new("ns", "web");
        assert!(reader.of(&service).await.is_none(), "there is no place to read from");
        reader.read_from_directory(directory.path().to_owned());
        let Some(Source::Directory(_, pace)) = reader.source.get() else { panic!("a directory") };
        let (pace, (end, ended)) = (Arc::clone(pace), std::sync::mpsc::channel::<()>());
        let (begin, begun) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            pace.run(|| {
                begin.send(()).unwrap();
                ended.recv()
            })
        });
        begun.recv().unwrap();
        // Another question reads.
        assert!(reader.of(&service).await.is_none());
        end.send(()).unwrap();
        other.join().unwrap();
        assert!(reader.of(&service).await.is_none(), "the failure is remembered");
        assert_eq!(reader.answers.lock().unwrap().len(), 1);
    }
}
