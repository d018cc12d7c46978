//! Serves the objects of a directory of manifests, or a generated cluster with the Node `node-0`,
//! until the process is ended.
//!
//! ```text
//! api-standin KUBECONFIG [--listen ADDRESS] [--manifests DIR]
//!             [--cluster SHAPE [--change-every MILLISECONDS]]
//! ```
//!
//! A shape is SERVICESxENDPOINTS, or several of them, such as 50x250+575x30. A generated cluster
//! is served by a genuine API server where KUBE_APISERVER and ETCD name the programs. The
//! kubeconfig is written when the objects are there and requests are answered. Changes of the
//! directory are followed. Changes of the generated cluster begin with the signal USR1.

#![allow(clippy::expect_used, reason = "what tests are made of fails by panics")]

use std::{
    env, fs, future,
    path::{Path, PathBuf},
    time::Duration,
};

use api_standin::{
    Manifests, Options, Standin, Store,
    control_plane::{self, ControlPlane, Programs, User},
    load,
};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() {
    let mut options = Options::default();
    let (mut kubeconfig, mut directory) = (None, None);
    let (mut groups, mut interval) = (Vec::new(), None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--listen" => options.address = value().parse().expect("an address to listen on"),
            "--cluster" => groups = value().split('+').map(group).collect(),
            "--change-every" => {
                let milliseconds = value().parse().expect("a number of milliseconds");
                interval = Some(Duration::from_millis(milliseconds));
            }
            "--manifests" => directory = Some(PathBuf::from(value())),
            option if option.starts_with('-') => panic!("{option}: unknown"),
            _ => kubeconfig = Some(PathBuf::from(word)),
        }
    }
    let kubeconfig = kubeconfig.expect("the kubeconfig to write");
    let mut start = signal(SignalKind::user_defined1()).expect("a signal");
    let server = Standin::start(options).await;
    let store = server.store();
    if !groups.is_empty() {
        store.apply(load::node("node-0"));
        load::fill_with(store, &groups);
    }
    let manifests = directory.map(|directory| Manifests::load(&directory, store.clone()));
    let genuine = match Programs::find() {
        Some(programs) if !groups.is_empty() => Some(genuine(programs, store, &kubeconfig).await),
        _ => None,
    };
    if genuine.is_none() {
        server.write_kubeconfig(&kubeconfig);
    }
    println!("serving on {}", genuine.as_ref().map_or(server.url(), ControlPlane::url));
    match (manifests, interval) {
        (Some(manifests), _) => manifests.follow().await,
        (None, Some(interval)) => {
            start.recv().await;
            let services = groups.iter().map(|(services, _)| services).sum();
            load::change(store, services, interval, genuine.as_ref()).await;
        }
        (None, None) => future::pending().await,
    }
}

/// Starts a genuine server with the objects of the store, and writes kube-proxy's kubeconfig.
async fn genuine(programs: Programs, store: &Store, kubeconfig: &Path) -> ControlPlane {
    let options = control_plane::Options {
        // Room for the cluster IPs.
        flags: vec!["--service-cluster-ip-range=10.96.0.0/12".to_owned()],
        objects: Some(store.clone()),
    };
    let server = ControlPlane::start(programs, options).await;
    let text = fs::read(server.kubeconfig(User::KubeProxy)).expect("the kubeconfig");
    fs::write(kubeconfig, text).expect("a place for the kubeconfig");
    server
}

/// The numbers of Services and of the endpoints of each.
fn group(text: &str) -> (usize, usize) {
    let (services, endpoints) = text.split_once('x').expect("a shape: SERVICESxENDPOINTS");
    let number = |text: &str| text.parse().expect("a number in the shape");
    (number(services), number(endpoints))
}
