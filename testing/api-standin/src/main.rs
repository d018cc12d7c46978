//! Serves the objects of a directory of manifests until the process is ended.
//!
//! ```text
//! api-standin KUBECONFIG [--listen ADDRESS] [--manifests DIR]
//! ```
//!
//! The kubeconfig is written when the objects are there and requests are answered. Changes of the
//! directory are followed.

#![allow(clippy::expect_used, reason = "what tests are made of fails by panics")]

use std::{env, future, path::PathBuf};

use api_standin::{Manifests, Options, Standin};

#[tokio::main]
async fn main() {
    let mut options = Options::default();
    let (mut kubeconfig, mut directory) = (None, None);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--listen" => options.address = value().parse().expect("an address to listen on"),
            "--manifests" => directory = Some(PathBuf::from(value())),
            option if option.starts_with('-') => panic!("{option}: unknown"),
            _ => kubeconfig = Some(PathBuf::from(word)),
        }
    }
    let kubeconfig = kubeconfig.expect("the kubeconfig to write");
    let server = Standin::start(options).await;
    let manifests = directory.map(|directory| Manifests::load(&directory, server.store().clone()));
    server.write_kubeconfig(&kubeconfig);
    println!("serving on {}", server.url());
    match manifests {
        Some(manifests) => manifests.follow().await,
        None => future::pending().await,
    }
}
