//! A directory of YAML and JSON files, in place of an API server.
//!
//! # Manifests
//!
//! Every `*.yaml`, `*.yml` and `*.json` file below the directory is read, except hidden files. A
//! file may hold several documents and lists. Services, EndpointSlices, Nodes and ServiceCIDRs are
//! read, and objects of other kinds are skipped. Like the watch of an API server, the source
//! skips EndpointSlices labelled `service.kubernetes.io/headless`.
//!
//! - An object that cannot be decoded keeps its last good state, and so does every object of a
//!   document that is not YAML at all.
//! - The objects of a symbolic link that leads nowhere stay until the link is removed or the
//!   program is started again.
//! - If two files hold the same object, the file whose path sorts last counts. When that file is
//!   removed, the object of the other file takes its place.
//! - Changes are noticed by inotify and sent about 3 ms after the file was closed or renamed.
//!   Changes that inotify cannot see (network file systems, targets of symbolic links) are found by
//!   a comparison of file times every ten seconds. A file that was written in place must not have
//!   changed for ten seconds then, as its writer may not be done, but is read after a minute at the
//!   latest. All changes are found so where inotify is not available.

#![forbid(unsafe_code)]

mod directory;
mod document;
mod problem;
mod reader;
mod store;
mod syntax;
mod watch;

use std::{
    fs, io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use switchyard_core::objects::{Event, Object};
use tokio::{sync::mpsc::Sender, task::JoinError};

pub use self::problem::{Problem, Severity};
use self::{reader::Reader, syntax::Syntax, watch::Watcher};

/// Why the manifest source cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestsError {
    /// The directory does not exist, is not a directory, or cannot be read.
    #[error("cannot read the manifest directory `{}`", dir.display())]
    Directory {
        /// The directory as it was given.
        dir: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The task that reads the files panicked.
    #[error("the manifest reader ended unexpectedly")]
    Reader(#[source] JoinError),
}

/// Reads all manifests below `dir` once.
///
/// Returns the objects that count, sorted by key, and the problems with the rest.
///
/// # Errors
/// If `dir` itself cannot be read. Errors of single files are among the problems.
pub fn read_dir(dir: &Path) -> Result<(Vec<Object>, Vec<Problem>), ManifestsError> {
    let mut reader = Reader::new(dir)?;
    let batch = reader.rescan(&mut |_| ());
    Ok((reader.into_objects(), batch.problems))
}

/// Decodes the documents of all manifests below `dir` whose text contains a word. Those that cannot
/// be decoded are left out, and so are files that cannot be read or are too large.
///
/// # Errors
/// If `dir` itself cannot be read.
pub fn read_documents<T: DeserializeOwned>(
    dir: &Path,
    word: &str,
) -> Result<Vec<T>, ManifestsError> {
    let source = |source| ManifestsError::Directory { dir: dir.to_owned(), source };
    fs::read_dir(dir).map_err(source)?;
    let mut found = Vec::new();
    for (file, signature) in directory::scan(dir, &mut |_| ()).files {
        if signature.is_too_large() {
            continue;
        }
        let text = fs::read_to_string(dir.join(&file)).unwrap_or_default();
        if let Some(syntax) = Syntax::from_path(&file).filter(|_| text.contains(word)) {
            let (documents, _) = syntax::documents(syntax, &text);
            let named = documents.iter().filter(|document| document.contains(word));
            found.extend(named.filter_map(|document| document.decode(PhantomData).ok()));
        }
    }
    Ok(found)
}

/// Decodes one object of JSON as one of a manifest. Returns [`Event::Apply`], or [`Event::Delete`]
/// for an EndpointSlice that this source skips.
///
/// # Errors
/// If it is no object of a kind that is read, or one that cannot be decoded, which
/// [`Problem::object`] names then.
pub fn decode_object(json: &str) -> Result<Option<Event>, Box<Problem>> {
    document::decode_object(json)
}

/// Reads the text of a file with this name, whose extension is the syntax. Returns the objects and
/// problems. For tests.
#[cfg(feature = "testing")]
pub fn read_text(file: &Path, text: &str) -> (Vec<Object>, Vec<Problem>) {
    let syntax = Syntax::from_path(file).unwrap_or(Syntax::Yaml);
    let content = document::Content::decode(file, syntax, text);
    (content.objects, content.problems)
}

/// Reads all manifests below `dir`, sends one [`Event::Replace`] per kind, and then follows
/// changes until the receiver is dropped. Problems are logged.
///
/// # Errors
/// If `dir` cannot be read at the start.
pub async fn run<I: From<Event>>(dir: PathBuf, sender: Sender<I>) -> Result<(), ManifestsError> {
    watch::follow(Watcher::new(&dir)?, Reader::new(&dir)?, sender).await
}
