//! Serves the objects of a directory of manifests, or a generated cluster with the Node `node-0`,
//! until the process is ended.
//!
//! ```text
//! api-standin KUBECONFIG [--listen ADDRESS] [--manifests DIR]
//!             [--cluster SHAPE [--change-every MILLISECONDS]]
//! ```
//!
//! A shape is SERVICESxENDPOINTS, or several of them, such as 50x250+575x30. The kubeconfig is
//! written when the objects are there and requests are answered. Changes of the directory are
//! followed. Changes of the generated cluster begin with the signal USR1.

#![allow(clippy::expect_used, reason = "what tests are made of fails by panics")]

use std::{env, future, path::PathBuf, time::Duration};

use api_standin::{Manifests, Options, Standin, load};
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
    let server = Standin::start(options).await;
    if !groups.is_empty() {
        server.store().apply(load::node("node-0"));
        load::fill_with(server.store(), &groups);
    }
    let mut start = signal(SignalKind::user_defined1()).expect("a signal");
    let manifests = directory.map(|directory| Manifests::load(&directory, server.store().clone()));
    server.write_kubeconfig(&kubeconfig);
    println!("serving on {}", server.url());
    match (manifests, interval) {
        (Some(manifests), _) => manifests.follow().await,
        (None, Some(interval)) => {
            start.recv().await;
            let services = groups.iter().map(|(services, _)| services).sum();
            load::change(server.store(), services, interval).await;
        }
        (None, None) => future::pending().await,
    }
}

/// The numbers of Services and of the endpoints of each.
fn group(text: &str) -> (usize, usize) {
    let (services, endpoints) = text.split_once('x').expect("a shape: SERVICESxENDPOINTS");
    let number = |text: &str| text.parse().expect("a number in the shape");
    (number(services), number(endpoints))
}
