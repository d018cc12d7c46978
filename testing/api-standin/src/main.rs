//! Serves the objects of a directory of manifests, or a generated cluster with the Node `node-0`,
//! until the process is ended.
//!
//! ```text
//! api-standin KUBECONFIG [--listen ADDRESS] [--manifests DIR]
//!             [--services N --endpoints M]
//! ```
//!
//! The kubeconfig is written when the objects are there and requests are answered. Changes of the
//! directory are followed.

#![allow(clippy::expect_used, reason = "what tests are made of fails by panics")]

use std::{env, future, path::PathBuf};

use api_standin::{Manifests, Options, Standin, load};

#[tokio::main]
async fn main() {
    let mut options = Options::default();
    let (mut kubeconfig, mut directory) = (None, None);
    let (mut services, mut endpoints) = (0, 0);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--listen" => options.address = value().parse().expect("an address to listen on"),
            "--services" => services = value().parse().expect("a number of Services"),
            "--endpoints" => endpoints = value().parse().expect("a number of endpoints"),
            "--manifests" => directory = Some(PathBuf::from(value())),
            option if option.starts_with('-') => panic!("{option}: unknown"),
            _ => kubeconfig = Some(PathBuf::from(word)),
        }
    }
    let kubeconfig = kubeconfig.expect("the kubeconfig to write");
    let server = Standin::start(options).await;
    if services > 0 {
        server.store().apply(load::node("node-0"));
        load::fill(server.store(), services, endpoints);
    }
    let manifests = directory.map(|directory| Manifests::load(&directory, server.store().clone()));
    server.write_kubeconfig(&kubeconfig);
    println!("serving on {}", server.url());
    match manifests {
        Some(manifests) => manifests.follow().await,
        None => future::pending().await,
    }
}
