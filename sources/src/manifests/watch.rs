//! The changes of the tree, by inotify.

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsString,
    fs, future, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use switchyard_core::objects::Event;
use tokio::{sync::mpsc::Sender, task::spawn_blocking, time};
use tracing::{error, info, warn};

use super::{
    ManifestsError,
    directory::is_hidden,
    problem::{Problem, Severity},
    reader::{Batch, Reader},
    syntax::Syntax,
};

/// Changes that follow each other within this time are one batch.
const QUIET: Duration = Duration::from_millis(2);
/// A batch is read after this time even if changes keep coming.
const BATCH_LIMIT: Duration = Duration::from_millis(20);
/// The interval at which the tree is compared with the files that are known, for changes that
/// inotify does not report.
const RESCAN_PERIOD: Duration = Duration::from_secs(10);
/// The number of problems of one batch that are logged.
const MAX_LOGGED: usize = 50;

#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// The directory above the root, which reports changes of the root's own name.
    Above,
    /// A directory of the tree, relative to the root.
    Inside(PathBuf),
}

/// The files that have to be read again.
#[derive(Debug, Default)]
struct Pending {
    files: BTreeSet<PathBuf>,
    rescan: bool,
    /// Whether events may be lost.
    is_lossy: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.rescan
    }
}

/// The inotify watches on the tree.
pub(super) struct Watcher {
    root: PathBuf,
    name: Option<OsString>,
    /// `None` if the user's instances of inotify are used up.
    stream: Option<EventStream<Vec<u8>>>,
    /// A directory that is reached on two ways has one watch and two places.
    places: HashMap<WatchDescriptor, Vec<Place>>,
    is_incomplete: bool,
}

/// The watches that belong to one scan.
struct Registration {
    root: PathBuf,
    watches: Option<Watches>,
    places: HashMap<WatchDescriptor, Vec<Place>>,
    failure: Option<io::Error>,
}

impl Registration {
    fn add(&mut self, path: &Path, place: Place) {
        // Not MODIFY: a file is read when its writer closes it.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let Some(watches) = &mut self.watches else { return };
        match watches.add(path, mask) {
            Ok(descriptor) => self.places.entry(descriptor).or_default().push(place),
            // The directory was removed, which the watch of the directory above reports.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => self.failure = Some(error),
        }
    }
}

impl Watcher {
    /// Opens inotify for `dir`. The watches are added by the first scan.
    pub(super) fn new(dir: &Path) -> Result<Self, ManifestsError> {
        let failed = |source| ManifestsError::Directory { dir: dir.to_owned(), source };
        let stream =
            Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; 16 * 1024]));
        let stream = stream.inspect_err(|error| {
            warn!(
                dir = %dir.display(), err = %error,
                "inotify not available; rescanning every {} s", RESCAN_PERIOD.as_secs()
            );
        });
        let root = std::path::absolute(dir).map_err(failed)?;
        Ok(Self {
            name: root.file_name().map(ToOwned::to_owned),
            root,
            stream: stream.ok(),
            places: HashMap::new(),
            is_incomplete: false,
        })
    }

    /// Scans the tree and renews the watches on it.
    async fn rescan(&mut self, mut reader: Reader) -> Result<(Reader, Batch), ManifestsError> {
        let mut new = Registration {
            root: self.root.clone(),
            watches: self.stream.as_ref().map(EventStream::watches),
            places: HashMap::new(),
            failure: None,
        };
        let (reader, batch, new) = spawn_blocking(move || {
            if let Some(above) = new.root.parent().map(ToOwned::to_owned) {
                new.add(&above, Place::Above);
                // Without this watch, only a swap of the root itself is noticed late.
                new.failure = None;
            }
            let batch = reader.rescan(&mut |dir| {
                let path = new.root.join(dir);
                new.add(&path, Place::Inside(dir.to_owned()));
            });
            (reader, batch, new)
        })
        .await
        .map_err(ManifestsError::Reader)?;
        let mut watches = self.stream.as_ref().map(EventStream::watches);
        for descriptor in self.places.keys().filter(|old| !new.places.contains_key(old)) {
            // Fails if the directory was removed, which removed the watch too.
            let _ = watches.as_mut().map(|watches| watches.remove(descriptor.clone()));
        }
        self.places = new.places;
        if let Some(error) = &new.failure
            && !self.is_incomplete
        {
            warn!(
                dir = %self.root.display(), err = %error,
                "Failed to watch all manifest directories; rescanning every {} s",
                RESCAN_PERIOD.as_secs()
            );
        }
        self.is_incomplete = new.failure.is_some();
        Ok((reader, batch))
    }

    /// Waits for changes, and then until there are no more or the batch has taken too long.
    async fn changes(&mut self) -> io::Result<Pending> {
        let mut pending = Pending::default();
        while pending.is_empty() {
            let event = self.next_event().await?;
            self.add_event(event, &mut pending);
        }
        let deadline = time::Instant::now() + BATCH_LIMIT;
        while let Ok(event) = {
            let quiet = time::Instant::now() + QUIET;
            time::timeout_at(quiet.min(deadline), self.next_event()).await
        } {
            self.add_event(event?, &mut pending);
        }
        Ok(pending)
    }

    async fn next_event(&mut self) -> io::Result<EventOwned> {
        match &mut self.stream {
            Some(stream) => match stream.next().await {
                Some(event) => event,
                // The stream of inotify never ends.
                None => future::pending().await,
            },
            None => future::pending().await,
        }
    }

    /// Adds the files that an event concerns.
    fn add_event(&self, event: EventOwned, pending: &mut Pending) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            (pending.rescan, pending.is_lossy) = (true, true);
            return;
        }
        let Some(places) = self.places.get(&event.wd) else {
            return;
        };
        for place in places {
            match (place, &event.name) {
                (Place::Above, name) => pending.rescan |= name.is_some() && *name == self.name,
                // The directory itself was moved, removed or unmounted, or its mode was changed.
                (Place::Inside(_), None) => pending.rescan = true,
                (Place::Inside(dir), Some(name)) => {
                    self.add_entry(dir, name, event.mask, pending);
                }
            }
        }
    }

    fn add_entry(&self, dir: &Path, name: &OsString, mask: EventMask, pending: &mut Pending) {
        let path = dir.join(name);
        if is_hidden(name) {
            // Files of a mounted ConfigMap lead through the link `..data`, which is swapped.
            pending.rescan |= name.as_encoded_bytes().starts_with(b"..");
        } else if mask.contains(EventMask::ISDIR) || self.is_directory(&path) {
            pending.rescan = true;
        } else if Syntax::from_path(&path).is_some()
            && (!mask.contains(EventMask::CREATE) || self.is_complete(&path))
        {
            pending.files.insert(path);
        }
    }

    /// Whether the path is, or was, a directory or a link to a directory.
    fn is_directory(&self, path: &Path) -> bool {
        let place = Place::Inside(path.to_owned());
        self.places.values().flatten().any(|known| *known == place)
            || (Syntax::from_path(path).is_none() && self.root.join(path).is_dir())
    }

    /// Whether a file that was just made is complete: a link, symbolic or hard. Other files are
    /// read when their writer closes them.
    fn is_complete(&self, path: &Path) -> bool {
        fs::symlink_metadata(self.root.join(path))
            .is_ok_and(|metadata| metadata.is_symlink() || metadata.nlink() > 1)
    }
}

/// Reads everything, and follows changes until the receiver is dropped.
pub(super) async fn follow<I: From<Event>>(
    mut watcher: Watcher,
    reader: Reader,
    sender: Sender<I>,
) -> Result<(), ManifestsError> {
    let (mut reader, batch) = watcher.rescan(reader).await?;
    log(&batch.problems);
    let everything = reader.everything();
    info!(dir = %watcher.root.display(), "Read all manifests");
    if !send(&sender, everything).await {
        return Ok(());
    }
    loop {
        let pending = tokio::select! {
            changes = watcher.changes() => changes.unwrap_or_else(|error| {
                error!(err = %error, "inotify failed; rereading all manifests");
                Pending { rescan: true, is_lossy: true, ..Pending::default() }
            }),
            () = time::sleep(RESCAN_PERIOD) => Pending { rescan: true, ..Pending::default() },
            () = sender.closed() => return Ok(()),
        };
        let mut batch;
        let Pending { files, rescan, is_lossy } = pending;
        (reader, batch) = spawn_blocking(move || {
            let batch = reader.reread(files);
            (reader, batch)
        })
        .await
        .map_err(ManifestsError::Reader)?;
        if is_lossy {
            reader.fall_behind();
        }
        if rescan {
            let more;
            (reader, more) = watcher.rescan(reader).await?;
            batch.events.extend(more.events);
            batch.problems.extend(more.problems);
        }
        log(&batch.problems);
        if !send(&sender, batch.events).await {
            return Ok(());
        }
    }
}

/// Sends the events. Returns whether the receiver still exists.
async fn send<I: From<Event>>(sender: &Sender<I>, events: Vec<Event>) -> bool {
    for event in events {
        if sender.send(event.into()).await.is_err() {
            return false;
        }
    }
    true
}

/// The problems that are logged: errors first.
fn most_severe(problems: &[Problem]) -> impl Iterator<Item = &Problem> {
    let of = |severity| problems.iter().filter(move |problem| problem.severity == severity);
    of(Severity::Error).chain(of(Severity::Warning)).take(MAX_LOGGED)
}

fn log(problems: &[Problem]) {
    for problem in most_severe(problems) {
        match problem.severity {
            Severity::Warning => warn!("Manifest {problem}"),
            Severity::Error => error!("Manifest {problem}; keeping its last good state"),
        }
    }
    if let Some(more @ 1..) = problems.len().checked_sub(MAX_LOGGED) {
        error!("There are {more} more problems with manifests");
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::objects::Kind;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn errors_are_logged_before_warnings() {
        let error = Problem::with_file("b.yaml", "broken");
        let warning = Problem { severity: Severity::Warning, ..error.clone() };
        let problems = [vec![warning; MAX_LOGGED], vec![error.clone()]].concat();
        let logged: Vec<_> = most_severe(&problems).collect();
        assert_eq!((logged[0], logged.len()), (&error, MAX_LOGGED));
    }

    #[tokio::test(start_paused = true)]
    async fn without_inotify_the_tree_is_rescanned() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, (sender, mut receiver)) = (directory.path(), mpsc::channel::<Event>(16));
        let watcher = Watcher { stream: None, ..Watcher::new(dir).unwrap() };
        let following = tokio::spawn(follow(watcher, Reader::new(dir).unwrap(), sender));
        for _ in Kind::ALL {
            assert!(matches!(receiver.recv().await, Some(Event::Replace { .. })));
        }
        let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}"#;
        fs::write(dir.join("a"), node).unwrap();
        fs::rename(dir.join("a"), dir.join("a.json")).unwrap();
        assert!(matches!(receiver.recv().await, Some(Event::Apply(_))));
        following.abort();
    }
}
