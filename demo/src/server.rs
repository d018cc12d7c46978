//! A genuine API server in the node's namespace, where `KUBE_APISERVER` and `ETCD` name the programs.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Instant,
};

use control_plane::{ControlPlane, Options, Ports, Programs, User};
use packet_rig::NetNs;
use serde_json::Value;
use tokio::runtime;

use crate::error::{DemoError, Result};

/// The ports on the node's loopback address, of which the demo makes all sockets.
const PORTS: Ports = Ports { api_server: 6443, etcd: 2379, etcd_peers: 2380 };

/// Objects to send, and where to put the moment at which the first was about to be sent.
type Request = (Vec<Value>, mpsc::Sender<Result<Instant>>);

/// A running API server. It ends with the value.
pub struct ApiServer {
    kubeconfig: PathBuf,
    requests: Option<mpsc::Sender<Request>>,
    /// The thread in the node's namespace, which has the servers and their client.
    thread: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Starts the programs that the environment names, on the loopback address of a node. `None` if it names
    /// none.
    pub fn start(node: &NetNs) -> Result<Option<Self>> {
        let Some(programs) = Programs::find()? else { return Ok(None) };
        let (started, has_started) = mpsc::channel();
        let (requests, receiver) = mpsc::channel();
        let node = node.clone();
        let thread = thread::spawn(move || {
            let failed = started.clone();
            let inside = node.clone();
            // An error of the namespace is the only one that is not sent from within.
            if let Err(error) = node.run(move || serve(programs, inside, &started, &receiver)) {
                let _ = failed.send(Err(error.into()));
            }
        });
        match has_started.recv() {
            Ok(Ok(kubeconfig)) => {
                Ok(Some(Self { kubeconfig, requests: Some(requests), thread: Some(thread) }))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ended()),
        }
    }

    /// The kubeconfig of the proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Creates or replaces the objects of a manifest. Returns the moment before the first request.
    pub fn send(&self, manifest: &str) -> Result<Instant> {
        let decoded = serde_saphyr::from_multiple::<Value>(manifest);
        let objects = decoded.map_err(|error| DemoError::Manifest(error.to_string()))?;
        let (answer, answered) = mpsc::channel();
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send((objects, answer)).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // Without requests to come, the thread ends the servers.
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> DemoError {
    DemoError::io("reach the API server")(std::io::ErrorKind::BrokenPipe.into())
}

/// Starts the servers, and sends what is requested until nothing can be requested any more.
fn serve(
    programs: Programs,
    node: NetNs,
    started: &mpsc::Sender<Result<PathBuf>>,
    requests: &mpsc::Receiver<Request>,
) {
    let launch = Arc::new(move |program: &Path| node.command(program));
    let options = Options { ports: Some(PORTS), launch, ..Options::default() };
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime.map_err(DemoError::io("start a runtime")) {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    let server = match runtime.block_on(ControlPlane::start(programs, options)) {
        Ok(server) => server,
        Err(error) => return drop(started.send(Err(error.into()))),
    };
    if started.send(Ok(server.kubeconfig(User::KubeProxy))).is_err() {
        return;
    }
    for (objects, answer) in requests {
        let _ = answer.send(runtime.block_on(send(&server, objects)));
    }
}

async fn send(server: &ControlPlane, objects: Vec<Value>) -> Result<Instant> {
    let before = Instant::now();
    for object in objects {
        server.apply(object).await?;
    }
    Ok(before)
}
