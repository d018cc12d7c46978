//! The names of a Service's endpoints: pods, nodes and zones.
//!
//! The proxy needs none of them, and a cluster has hundreds of thousands. So they are read for who
//! asks, from where the EndpointSlices are: the API server, or the directory of manifests. A client
//! with objects cannot be asked.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use kube::{
    Client,
    api::{ListParams, Request},
};
use serde::Deserialize;
use switchyard_core::{error::ErrorChain, explain::EndpointNames, model::ServiceName};
use switchyard_source_kube::Pacer;
use switchyard_source_manifests as manifests;
use tokio::{sync::Mutex, task, time::timeout};

use crate::Failure;

/// The longest wait for names.
const LONGEST: Duration = Duration::from_secs(2);
/// The time for which names are kept, and the lack of them.
const KEPT: Duration = Duration::from_secs(5);
/// The most Services whose names are kept.
const MOST: usize = 8;
/// The label of a slice with the name of its Service.
const SERVICE: &str = "kubernetes.io/service-name";

/// The names of endpoints, by address and port; with port 0 those of endpoints without the port.
pub type Names = HashMap<SocketAddr, EndpointNames>;

/// Finds names.
#[derive(Default)]
pub struct NameReader {
    source: OnceLock<Source>,
    /// The answers of a moment ago, the last first; no names where that failed.
    answers: Mutex<Vec<Answer>>,
}

/// The answer to a question for the names of a Service's endpoints.
struct Answer {
    at: Instant,
    service: ServiceName,
    names: Option<Arc<Names>>,
}

/// The place of EndpointSlices.
enum Source {
    Cluster(Client, Pacer),
    Directory(PathBuf),
}

impl NameReader {
    /// Has the names be read from an API server.
    pub fn read_from_cluster(&self, client: Client, pacer: Pacer) {
        // A source is started once.
        let _ = self.source.set(Source::Cluster(client, pacer));
    }

    /// Has the names be read from manifests.
    pub fn read_from_directory(&self, directory: PathBuf) {
        let _ = self.source.set(Source::Directory(directory));
    }

    /// Returns the names of a Service's endpoints; `None` if there is no place to read them from, or
    /// it does not answer within two seconds.
    pub async fn of(&self, service: &ServiceName) -> Option<Arc<Names>> {
        timeout(LONGEST, self.found(service)).await.ok()?
    }

    async fn found(&self, service: &ServiceName) -> Option<Arc<Names>> {
        let source = self.source.get()?;
        let mut answers = self.answers.lock().await;
        answers.retain(|answer| answer.at.elapsed() < KEPT);
        if let Some(answer) = answers.iter().find(|answer| answer.service == *service) {
            return answer.names.clone();
        }
        answers.truncate(MOST - 1);
        // Kept if the time is over before there is an answer.
        answers.insert(0, Answer { at: Instant::now(), service: service.clone(), names: None });
        let read = async {
            Ok::<_, Failure>(match source {
                Source::Cluster(client, pacer) => from_cluster(client, pacer, service).await?,
                Source::Directory(path) => {
                    let (path, service) = (path.clone(), service.clone());
                    task::spawn_blocking(move || from_directory(&path, &service)).await??
                }
            })
        };
        match read.await {
            Ok(names) => answers[0].names = Some(Arc::new(names)),
            Err(error) => {
                let err = ErrorChain(error.as_ref());
                tracing::debug!(%err, %service, "Failed to read the names of endpoints");
            }
        }
        answers[0].names.clone()
    }
}

/// Asks for the slices of one Service, as the server's cache has them.
async fn from_cluster(
    client: &Client,
    pacer: &Pacer,
    service: &ServiceName,
) -> Result<Names, Failure> {
    pacer.permit("GET").await;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", service.namespace);
    let of_service = ListParams::default().labels(&format!("{SERVICE}={}", service.name));
    let request = Request::new(path).list(&of_service.match_any())?;
    Ok(names([client.request::<Slice>(request).await?], service))
}

/// Reads the slices of one Service.
///
/// # Errors
/// If the directory cannot be read. What cannot be decoded has no names.
pub fn from_directory(directory: &Path, service: &ServiceName) -> Result<Names, Failure> {
    Ok(names(manifests::read_documents::<Slice>(directory, &service.name)?, service))
}

/// An EndpointSlice, a list of them, or something else, without what has no names. An API server
/// sends `null` for an empty list.
#[derive(Deserialize)]
struct Slice {
    metadata: Option<Metadata>,
    endpoints: Option<Vec<Endpoint>>,
    ports: Option<Vec<Port>>,
    items: Option<Vec<Slice>>,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: Option<String>,
    labels: Option<HashMap<String, String>>,
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
        let Some(Metadata { namespace, labels: Some(labels) }) = &self.metadata else {
            return false;
        };
        namespace.as_deref().unwrap_or("default") == &*service.namespace
            && labels.get(SERVICE).is_some_and(|name| **name == *service.name)
    }
}

fn names(slices: impl IntoIterator<Item = Slice>, service: &ServiceName) -> Names {
    let items =
        |mut slice: Slice| slice.items.take().unwrap_or_default().into_iter().chain([slice]);
    let mut found = Names::new();
    for slice in slices.into_iter().flat_map(items).filter(|slice| slice.is_of(service)) {
        let ports = slice.ports.into_iter().flatten().filter_map(|port| port.port);
        let ports: Vec<u16> = ports.chain([0]).collect();
        for endpoint in slice.endpoints.into_iter().flatten() {
            let pod = endpoint.target_ref.filter(|target| target.kind.as_deref() == Some("Pod"));
            let names = EndpointNames {
                pod: pod.and_then(|pod| pod.name),
                node: endpoint.node_name,
                zone: endpoint.zone,
            };
            let addresses = endpoint.addresses.into_iter().flatten();
            for ip in addresses.filter_map(|address| address.parse::<IpAddr>().ok()) {
                found.extend(ports.iter().map(|port| (SocketAddr::new(ip, *port), names.clone())));
            }
        }
    }
    found
}
