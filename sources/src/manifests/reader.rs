//! The files that changed, read and handed to the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, mem,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use switchyard_core::objects::{Event, Object};

use super::{
    ManifestsError,
    directory::{self, MOST_MIB, Signature},
    document::Content,
    problem::Problem,
    store::Store,
    syntax::Syntax,
};

/// A scan takes what was written in place once it has not changed for so long: its writer may not
/// be done, and the part of a manifest that is there is often one with fewer objects.
const SETTLED: Duration = Duration::from_secs(10);
/// A scan takes what has changed for so long, whether it has settled or not.
const OVERDUE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    pub(super) problems: Vec<Problem>,
}

/// The directory and the files that were read from it.
#[derive(Debug)]
pub(super) struct Reader {
    root: PathBuf,
    signatures: BTreeMap<PathBuf, Option<Signature>>,
    /// Files that were written in place, as they were first seen in that state, and when they were
    /// first seen in any.
    unsettled: BTreeMap<PathBuf, (Signature, Instant, Instant)>,
    /// Whether the next scan takes what has not settled, too.
    is_behind: bool,
    store: Store,
    /// The problems of the last scan. Directories and files that cannot be read come back at every
    /// scan, but are reported once.
    scan_problems: Vec<Problem>,
}

impl Reader {
    /// Returns the reader of a directory that must exist. No file is read yet.
    pub(super) fn new(dir: &Path) -> Result<Self, ManifestsError> {
        let failed = |source| ManifestsError::Directory { dir: dir.to_owned(), source };
        fs::read_dir(dir).map_err(failed)?;
        Ok(Self {
            root: dir.to_owned(),
            signatures: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            is_behind: false,
            store: Store::default(),
            scan_problems: Vec::new(),
        })
    }

    /// Lists the whole tree, and reads the files that are new or different. `visit` is called with
    /// the path of each directory, relative to the root.
    pub(super) fn rescan(&mut self, visit: &mut dyn FnMut(&Path)) -> Batch {
        self.rescan_at(Instant::now(), visit)
    }

    /// Has the next scan take what has not settled, too: the news of files that their writers have
    /// closed may be lost.
    pub(super) fn fall_behind(&mut self) {
        self.is_behind = true;
    }

    fn rescan_at(&mut self, now: Instant, visit: &mut dyn FnMut(&Path)) -> Batch {
        let scan = directory::scan(&self.root, visit);
        // Other links may never have led to a manifest.
        let is_manifest = |link: &Problem| {
            Syntax::from_path(&link.file).is_some()
                || self.signatures.keys().any(|file| file.starts_with(&link.file))
        };
        let links: Vec<_> = scan.links.into_iter().filter(is_manifest).collect();
        let is_unlisted = |file: &Path| scan.unlisted.iter().any(|dir| file.starts_with(dir));
        let gone = self
            .signatures
            .keys()
            .filter(|file| !scan.files.contains_key(*file) && !is_unlisted(file))
            .cloned();
        let mut changed: BTreeSet<_> = gone.collect();
        let is_behind = mem::take(&mut self.is_behind);
        let mut seen = mem::take(&mut self.unsettled);
        for (file, new) in &scan.files {
            let known = self.signatures.get(file).and_then(Option::as_ref);
            if known == Some(new) {
                continue;
            }
            let (before, since, first) = seen.remove(file).unwrap_or((*new, now, now));
            let since = if before == *new { since } else { now };
            let is_due = is_behind || now - since >= SETTLED || now - first >= OVERDUE;
            if known.is_some_and(|known| known.is_same_file(new)) && !is_due {
                self.unsettled.insert(file.clone(), (*new, since, first));
            } else {
                changed.insert(file.clone());
            }
        }
        let mut batch = self.reread(changed);
        batch.problems.splice(0..0, scan.problems.into_iter().chain(links));
        let before = mem::replace(&mut self.scan_problems, batch.problems.clone());
        batch.problems.retain(|problem| !before.contains(problem));
        batch
    }

    /// Reads these files again, whether they look different or not.
    pub(super) fn reread(&mut self, files: BTreeSet<PathBuf>) -> Batch {
        let changes = files
            .into_iter()
            .map(|file| {
                let content = self.read(&file);
                (file, content)
            })
            .collect();
        let (events, problems) = self.store.update(changes);
        Batch { events, problems }
    }

    /// Returns one [`Event::Replace`] for every kind, and the malformed objects.
    pub(super) fn everything(&self) -> Vec<Event> {
        self.store.everything()
    }

    /// Returns all objects that count.
    pub(super) fn into_objects(self) -> Vec<Object> {
        self.store.into_objects()
    }

    /// Reads a file; `None` if the file does not exist.
    fn read(&mut self, file: &Path) -> Option<Content> {
        let path = self.root.join(file);
        self.unsettled.remove(file);
        // Taken before the content: a write in between makes the next scan read again.
        let signature = fs::metadata(&path).and_then(|metadata| match metadata.is_file() {
            true => Ok(Signature::new(&metadata)),
            false => Err(io::ErrorKind::NotFound.into()),
        });
        let read = signature.and_then(|signature| {
            self.signatures.insert(file.to_owned(), Some(signature));
            if signature.is_too_large() {
                return Err(io::Error::other(format!("larger than {MOST_MIB} MiB")));
            }
            fs::read(&path)
        });
        let problem = match read.map(String::from_utf8) {
            Ok(Ok(text)) => {
                let syntax = Syntax::from_path(file).unwrap_or(Syntax::Yaml);
                return Some(Content::decode(file, syntax, &text));
            }
            Ok(Err(error)) => {
                Problem::with_file(file, format!("not UTF-8: {}", error.utf8_error()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
                self.signatures.remove(file);
                return None;
            }
            Err(error) => {
                // The next scan reads the file again, and notices if it is gone by then.
                self.signatures.insert(file.to_owned(), None);
                Problem::with_file(file, format!("cannot be read: {error}"))
            }
        };
        Some(Content::unreadable(problem))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::Value;

    use super::{super::read_documents, *};

    #[test]
    fn a_file_that_cannot_be_read_is_tried_again_and_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        fs::write(&file, "{apiVersion: v1, kind: Service, metadata: {name: web}}").unwrap();
        let mut reader = Reader::new(directory.path()).unwrap();
        assert_eq!(reader.rescan(&mut |_| ()).events.len(), 1);
        // A file whose first page cannot be read.
        fs::remove_file(&file).unwrap();
        symlink("/proc/self/mem", &file).unwrap();
        let problems = reader.rescan(&mut |_| ()).problems;
        assert!(problems[0].message.starts_with("cannot be read: "), "{problems:?}");
        assert!(reader.signatures.values().all(Option::is_none), "as if the file were new");
        assert_eq!(reader.rescan(&mut |_| ()).problems, []);
        // Nor is a file read that fills the memory.
        fs::remove_file(&file).unwrap();
        fs::write(&file, "{name: web}\n---\n").unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_len(257 << 20).unwrap();
        assert_eq!(read_documents::<Value>(directory.path(), "web").unwrap(), [Value::Null; 0]);
        let problems = reader.rescan(&mut |_| ()).problems;
        assert_eq!(problems[0].to_string(), "a.yaml: cannot be read: larger than 256 MiB");
        // Its objects go with it.
        fs::remove_file(&file).unwrap();
        let events = reader.rescan(&mut |_| ()).events;
        assert!(matches!(events[..], [Event::Delete(_)]), "{events:?}");
    }
    #[test]
    fn a_scan_takes_what_was_written_in_place_when_it_has_settled() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        let [one, two] = ["one", "two"].map(|name| {
            format!("---\n{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}}}\n")
        });
        fs::write(&file, one.clone() + &two).unwrap();
        let mut reader = Reader::new(directory.path()).unwrap();
        let start = Instant::now();
        let mut events = |seconds| {
            reader.rescan_at(start + Duration::from_secs(seconds), &mut |_| ()).events.len()
        };
        assert_eq!(events(0), 2);
        fs::write(&file, "").unwrap();
        assert_eq!(events(1), 0);
        fs::write(&file, &one).unwrap();
        assert_eq!([events(11), events(12), events(20)], [0; 3]);
        assert_eq!(events(21), 1, "without the second Service");
        // What takes the file's place is complete.
        let other = directory.path().join("other");
        fs::write(&other, &two).unwrap();
        fs::rename(&other, &file).unwrap();
        assert_eq!(events(22), 2);
        // Nor is anything waited for longer, or where its writer may have closed it unnoticed.
        let mut found = Vec::new();
        for (round, seconds) in (30..=100).step_by(10).enumerate() {
            fs::write(&file, two.replace("two", &"x".repeat(round + 1))).unwrap();
            found.push(events(seconds));
        }
        assert_eq!(found, [0, 0, 0, 0, 0, 0, 2, 0]);
        reader.fall_behind();
        assert_eq!(reader.rescan_at(start + Duration::from_secs(101), &mut |_| ()).events.len(), 2);
    }

    #[test]
    fn links_that_lead_nowhere_keep_their_objects() {
        let directory = tempfile::tempdir().unwrap();
        let [root, live, away] = ["root", "live", "away"].map(|name| directory.path().join(name));
        fs::create_dir(&root).unwrap();
        fs::create_dir(&live).unwrap();
        let web = "{apiVersion: v1, kind: Service, metadata: {name: web}}";
        fs::write(live.join("a.yaml"), web).unwrap();
        fs::write(live.join("b.yaml"), web.replace("web", "shop")).unwrap();
        symlink(live.join("a.yaml"), root.join("a.yaml")).unwrap();
        symlink(&live, root.join("all")).unwrap();
        symlink("gone", root.join("notes")).unwrap();
        let mut reader = Reader::new(&root).unwrap();
        assert_eq!(reader.rescan(&mut |_| ()).events.len(), 2);
        fs::rename(&live, &away).unwrap();
        let Batch { events, problems } = reader.rescan(&mut |_| ());
        assert_eq!((events.len(), problems.len()), (0, 2), "{events:?} {problems:?}");
        assert_eq!(reader.reread([PathBuf::from("a.yaml")].into()).events.len(), 0);
        assert_eq!(reader.rescan(&mut |_| ()).problems, []);
        fs::remove_file(root.join("all")).unwrap();
        fs::remove_file(root.join("a.yaml")).unwrap();
        assert_eq!(reader.rescan(&mut |_| ()).events.len(), 2);
    }
}
