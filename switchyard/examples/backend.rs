//! Bring your own backend: one that prints what it would program, in fifty lines.
//!
//! ```text
//! cargo run -p switchyard --features manifests --example backend examples
//! ```
//!
//! The program follows the directory of manifests until it is stopped: edit one, and see.

use std::{env, error::Error, path::PathBuf};

use async_trait::async_trait;
use switchyard::{
    NodeConfig, Proxy, SyncReport, manifests,
    model::PerFamily,
    proxier::{Backend, Mode, Probed, Profile, Proxier, ProxierError},
    transition::{PortChange, Transition},
};

/// The backend as data; its mode is what a configuration would name.
const PRINT: Profile = Profile::new(Mode::new("print"));

/// Receives a line.
type Print = fn(String);

/// The backend as a value in a program's table of backends.
struct PrintBackend(Print);

impl Backend for PrintBackend {
    fn profile(&self) -> Profile {
        PRINT
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        let printer = Printer(self.0);
        Ok(Probed::new(PerFamily { v4: true, v6: true }, || Ok(Box::new(printer))))
    }

    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        Ok(())
    }
}

/// The open backend. A real one would keep what is its kernel's own: sockets, handles, slots.
struct Printer(Print);

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
                self.0(format!("- {id}"));
                continue;
            };
            report.added += 1;
            self.0(format!("{} {id}", if before.is_some() { "~" } else { "+" }));
            for frontend in &port.frontends {
                let (at, to) = (&frontend.at, &frontend.action);
                self.0(format!("    {at:?} port {}: {to:?}", frontend.port));
            }
            for endpoint in port.reachable() {
                self.0(format!("    endpoint {}", endpoint.address));
            }
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args_os().nth(1).ok_or("usage: backend DIRECTORY")?;
    run(directory.into(), |line| println!("{line}")).await
}

/// Follows the manifests in a directory.
pub async fn run(directory: PathBuf, print: Print) -> Result<(), Box<dyn Error>> {
    let proxy = Proxy::builder(NodeConfig::new("node-1")).backend(PrintBackend(print)).start()?;
    // A source ends only if it cannot start.
    Ok(manifests::run(directory, proxy.handle().inputs()).await?)
}
