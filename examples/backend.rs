//! Bring your own backend: one that prints what it would program, in fifty lines.
//!
//! ```text
//! cargo run -p switchyard-examples --bin backend examples
//! ```
//!
//! The program follows the directory of manifests until it is stopped: edit one, and see.

use std::{env, error::Error};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    engine::Engine,
    model::PerFamily,
    proxier::{Backend, Mode, Probed, Profile, Proxier, ProxierError, SyncReport},
    transition::{PortChange, Transition},
};
use tokio::sync::mpsc;

/// The backend as data; its mode is what a configuration would name.
const PRINT: Profile = Profile::new(Mode::new("print"));

/// The backend as a value in a program's table of backends.
struct PrintBackend;

impl Backend for PrintBackend {
    fn profile(&self) -> Profile {
        PRINT
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        Ok(Probed::new(PerFamily { v4: true, v6: true }, || Ok(Box::new(Printer))))
    }

    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        Ok(())
    }
}

/// The open backend. A real one would keep what is its kernel's own: sockets, handles, slots.
struct Printer;

#[async_trait]
impl Proxier for Printer {
    fn profile(&self) -> Profile {
        PRINT
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut report = SyncReport::default();
        // Only what has changed since the last successful sync. A backend with a kernel reads the
        // kernel instead if `change.is_resync()` is set.
        for PortChange { id, before, after } in change.ports() {
            report.removed += usize::from(before.is_some());
            let Some(port) = after else {
                println!("- {id}");
                continue;
            };
            report.added += 1;
            println!("{} {id}", if before.is_some() { "~" } else { "+" });
            for frontend in &port.frontends {
                println!("    {:?} port {}: {:?}", frontend.at, frontend.port, frontend.action);
            }
            for endpoint in port.reachable() {
                println!("    endpoint {}", endpoint.address);
            }
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let directory = env::args_os().nth(1).ok_or("usage: backend DIRECTORY")?;
    let engine = Engine::builder(NodeConfig::new("node-1")).start(PrintBackend.probe()?.open()?)?;
    let (sender, mut events) = mpsc::channel(64);
    let source = tokio::spawn(switchyard_source_manifests::run(directory.into(), sender));
    while let Some(event) = events.recv().await {
        engine.send(event).await?;
    }
    // A source ends only if it cannot start.
    Ok(source.await??)
}
