//! The manifest source: a directory of YAML and JSON files in place of an API server.
//!
//! Every `*.yaml`, `*.yml` and `*.json` file below the directory is read, hidden ones excepted.
//! A file may hold several documents and lists. Services, EndpointSlices, Nodes and ServiceCIDRs
//! count, other kinds are passed over. As the API server's watches would, the source leaves out
//! what belongs to another proxy: Services labelled `service.kubernetes.io/service-proxy-name` and
//! EndpointSlices labelled `service.kubernetes.io/headless`.
//!
//! - An object that cannot be decoded keeps its last good state, and so does everything in a
//!   document that is no YAML at all.
//! - If two files hold the same object, the one whose path sorts last counts. When that one goes
//!   away the other's takes its place.
//! - Changes are noticed by inotify and sent some 3 ms after the file was closed or renamed. What
//!   inotify cannot see (network file systems, targets of symbolic links) is found by comparing
//!   file times every ten seconds.

mod directory;
mod document;
mod problem;
mod reader;
mod store;
mod syntax;
mod watch;

use std::{
    io,
    path::{Path, PathBuf},
};

use proxy_core::objects::{Event, Object};
use tokio::{sync::mpsc::Sender, task::JoinError};

pub use self::problem::{Problem, Severity};
use self::{reader::Reader, watch::Watcher};

/// Why the manifest source cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestsError {
    /// The directory does not exist, is not a directory, or cannot be read.
    #[error("cannot read the manifest directory `{}`", dir.display())]
    Directory {
        /// The directory as it was given.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The kernel gives us no inotify instance.
    #[error("cannot follow changes of `{}` with inotify", dir.display())]
    Inotify {
        /// The directory as it was given.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The task that reads the files panicked.
    #[error("the manifest reader ended unexpectedly")]
    Reader(#[source] JoinError),
}

/// Reads all manifests below `dir` once.
///
/// Returns the objects that count, sorted by key, and what is wrong with the rest.
///
/// # Errors
/// If `dir` itself cannot be read. Trouble with single files is among the problems.
pub fn read_dir(dir: &Path) -> Result<(Vec<Object>, Vec<Problem>), ManifestsError> {
    let mut reader = Reader::new(dir)?;
    let batch = reader.rescan(&mut |_| ());
    Ok((reader.into_objects(), batch.problems))
}

/// Reads all manifests below `dir`, sends one [`Event::Replace`] per kind, and then follows
/// changes until the receiver is dropped. Problems are logged.
///
/// # Errors
/// If `dir` cannot be read at the start, or inotify is not available.
pub async fn run(dir: PathBuf, sender: Sender<Event>) -> Result<(), ManifestsError> {
    watch::follow(Watcher::new(&dir)?, Reader::new(&dir)?, sender).await
}
