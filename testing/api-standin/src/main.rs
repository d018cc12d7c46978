//! Serves a directory of JSON objects, or a generated cluster, until the process is ended.
//!
//! ```text
//! api-standin KUBECONFIG [--listen ADDRESS] [--node NAME] [--no-streaming]
//!             [--services N --endpoints M] [--dir DIR] [--manifests DIR]
//! ```
//!
//! The kubeconfig is written when the objects are there and requests are answered. Objects can be
//! changed with `PUT` and `DELETE` on their paths, and those of `--manifests` by changes of the
//! directory.

use std::{env, fs, future, path::PathBuf, process::ExitCode};

use api_standin::{Manifests, Options, Standin, load};

/// The command line.
#[derive(Debug, Default)]
struct Arguments {
    kubeconfig: PathBuf,
    options: Options,
    nodes: Vec<String>,
    services: usize,
    endpoints: usize,
    dir: Option<PathBuf>,
    manifests: Option<PathBuf>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: String| text.parse().map_err(|_| format!("{text}: not a number"));
            match word.as_str() {
                "--listen" => {
                    let text = value()?;
                    arguments.options.address =
                        text.parse().map_err(|_| format!("{text}: not an address"))?;
                }
                "--node" => arguments.nodes.push(value()?),
                "--no-streaming" => arguments.options.streaming_lists = false,
                "--services" => arguments.services = number(value()?)?,
                "--endpoints" => arguments.endpoints = number(value()?)?,
                "--dir" => arguments.dir = Some(value()?.into()),
                "--manifests" => arguments.manifests = Some(value()?.into()),
                option if option.starts_with('-') => return Err(format!("{option}: unknown")),
                _ => arguments.kubeconfig = word.into(),
            }
        }
        match arguments.kubeconfig.as_os_str().is_empty() {
            true => Err("name the kubeconfig to write".to_owned()),
            false => Ok(arguments),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => serve(arguments).await,
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("api-standin: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let server = Standin::start(arguments.options).await?;
    for name in &arguments.nodes {
        server.store().apply(load::node(name))?;
    }
    if arguments.services > 0 {
        load::fill(server.store(), arguments.services, arguments.endpoints)?;
    }
    if let Some(dir) = arguments.dir {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                server.store().apply(serde_json::from_slice(&fs::read(path)?)?)?;
            }
        }
    }
    let manifests = arguments.manifests.map(|dir| Manifests::load(&dir, server.store().clone()));
    let manifests = manifests.transpose()?;
    server.write_kubeconfig(&arguments.kubeconfig)?;
    println!("serving on {}", server.url());
    match manifests {
        Some(manifests) => Err(manifests.follow().await.into()),
        None => future::pending().await,
    }
}
