//! Notices that the configuration file says something else.
//!
//! kube-proxy watches the file itself, and so misses what happens to a mounted ConfigMap (a symbolic
//! link beside the file is exchanged), a file that is replaced by another, and one that is deleted
//! and made again. We watch the directories, and compare the content: nothing happens because of a
//! write that changes nothing, or while the file is not there or empty.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio::time;

/// So long nothing must happen around the file before it counts: writing may take a moment.
const SETTLE: Duration = Duration::from_millis(200);
/// Longer than this nobody writes it: other files of its directory may change all the time.
const LONGEST: Duration = Duration::from_secs(2);
/// The file is looked at that often in any case: some file systems do not tell.
const LOOK: Duration = Duration::from_secs(60);
/// Symbolic links that are followed at most, as by the kernel.
const MOST_LINKS: usize = 40;

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// This.
    Bytes(Vec<u8>),
    /// It cannot be read, for this kind of reason.
    Unreadable(io::ErrorKind),
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_owned())
    }
}

/// Returns what is in the file when that is no longer what was `known`. A file that is not there, or
/// that has nothing in it, is on its way. If directories cannot be watched it is looked at now and
/// then.
pub async fn changed(path: &Path, known: &Content) -> Content {
    let mut is_blind = false;
    loop {
        // A new watch each time: links may lead elsewhere now.
        let mut events = match watch(path) {
            Ok(events) => Some(events),
            Err(error) => {
                if !is_blind {
                    let err = error.to_string();
                    tracing::warn!(err, "Cannot watch the configuration file; looking at it");
                }
                is_blind = true;
                None
            }
        };
        match read(path).filter(|content| content != known) {
            Some(content) => {
                let settled = async { while happens(&mut events, SETTLE).await {} };
                let _ = time::timeout(LONGEST, settled).await;
                if read(path).as_ref() == Some(&content) {
                    return content;
                }
            }
            None => {
                happens(&mut events, LOOK).await;
            }
        }
    }
}

/// Whether something happens within that time.
async fn happens(events: &mut Option<Events>, time: Duration) -> bool {
    let event = async {
        match events {
            Some(events) => events.next().await,
            None => std::future::pending().await,
        }
    };
    matches!(time::timeout(time, event).await, Ok(Some(Ok(_))))
}

fn read(path: &Path) -> Option<Content> {
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => None,
        Ok(bytes) => Some(Content::Bytes(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Content::Unreadable(error.kind())),
    }
}

type Events = inotify::EventStream<[u8; 4096]>;

fn watch(path: &Path) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    for directory in directories(path) {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE;
        match inotify.watches().add(&directory, mask) {
            Ok(_) => {}
            // It was there a moment ago; the others tell of what becomes of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    inotify.into_event_stream([0; 4096])
}

/// The directories of the file and of every symbolic link on the way to it.
fn directories(path: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut pending = vec![path.to_owned()];
    for _ in 0..MOST_LINKS {
        let Some(path) = pending.pop() else { break };
        let mut prefix = PathBuf::new();
        let components: Vec<_> = path.components().collect();
        for (index, component) in components.iter().enumerate() {
            let parent =
                if prefix.as_os_str().is_empty() { PathBuf::from(".") } else { prefix.clone() };
            prefix.push(component);
            let link = fs::read_link(&prefix).ok();
            if link.is_some() || index + 1 == components.len() {
                found.insert(parent.clone());
            }
            if let Some(target) = link {
                let rest: PathBuf = components[index + 1..].iter().collect();
                let next = parent.join(target);
                pending.push(if rest.as_os_str().is_empty() { next } else { next.join(rest) });
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    /// A directory as the kubelet mounts a ConfigMap, and the file in it.
    fn config_map(text: &str) -> (TempDir, PathBuf) {
        let directory = TempDir::new().unwrap();
        let root = directory.path();
        revision(root, "..1", text);
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/config.conf", root.join("config.conf")).unwrap();
        let path = root.join("config.conf");
        (directory, path)
    }

    fn revision(root: &Path, name: &str, text: &str) {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("config.conf"), text).unwrap();
    }

    /// Exchanges what `..data` leads to, at once.
    fn exchange(root: &Path, name: &str) {
        symlink(name, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    /// What is noticed after `act` if "a" was known, within a time that is long for either answer.
    async fn noticed(path: &Path, act: impl FnOnce()) -> Option<Content> {
        let known = Content::from("a");
        let waiting = changed(path, &known);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        act();
        time::timeout(Duration::from_secs(2), waiting).await.ok()
    }

    #[tokio::test]
    async fn a_config_map_that_changes_is_noticed() {
        let (directory, path) = config_map("a");
        revision(directory.path(), "..2", "b");
        let found = noticed(&path, || exchange(directory.path(), "..2")).await;
        assert_eq!(found, Some(Content::from("b")));
    }

    #[tokio::test]
    async fn a_config_map_that_says_the_same_is_not() {
        let (directory, path) = config_map("a");
        revision(directory.path(), "..2", "a");
        assert_eq!(noticed(&path, || exchange(directory.path(), "..2")).await, None);
    }

    #[tokio::test]
    async fn after_an_exchange_the_new_revision_is_watched() {
        let (directory, path) = config_map("a");
        revision(directory.path(), "..2", "a");
        let root = directory.path();
        let known = Content::from("a");
        let waiting = changed(&path, &known);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        exchange(root, "..2");
        assert!(time::timeout(Duration::from_millis(800), &mut waiting).await.is_err());
        fs::write(root.join("..2/config.conf"), "b").unwrap();
        time::timeout(Duration::from_secs(5), waiting).await.unwrap();
    }

    #[tokio::test]
    async fn plain_files_are_noticed_too() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("config.conf");
        fs::write(&path, "a").unwrap();
        let same = noticed(&path, || fs::write(&path, "a").unwrap()).await;
        assert_eq!(same, None, "the same again");
        let gone = noticed(&path, || fs::remove_file(&path).unwrap()).await;
        assert_eq!(gone, None, "gone for a moment");
        fs::write(&path, "a").unwrap();
        let empty = noticed(&path, || fs::write(&path, "").unwrap()).await;
        assert_eq!(empty, None, "about to be written");
        fs::write(&path, "a").unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "b").unwrap();
        let replaced = noticed(&path, || fs::rename(&other, &path).unwrap()).await;
        assert_eq!(replaced, Some(Content::from("b")), "replaced");
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_noticed_once() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("config.conf");
        fs::write(&path, "a").unwrap();
        let replace = || {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        };
        let found = noticed(&path, replace).await.unwrap();
        assert!(matches!(found, Content::Unreadable(_)), "{found:?}");
        let again = time::timeout(Duration::from_millis(500), changed(&path, &found)).await;
        assert!(again.is_err(), "it is known");
    }

    #[tokio::test]
    async fn a_directory_may_be_busy() {
        let (directory, path) = config_map("a");
        let busy = directory.path().to_owned();
        let writing = tokio::spawn(async move {
            loop {
                fs::write(busy.join("other"), "x").unwrap();
                time::sleep(Duration::from_millis(20)).await;
            }
        });
        revision(directory.path(), "..2", "b");
        let known = Content::from("a");
        let waiting = changed(&path, &known);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(300), &mut waiting).await.is_err());
        exchange(directory.path(), "..2");
        let found = time::timeout(Duration::from_secs(20), waiting).await.unwrap();
        assert_eq!(found, Content::from("b"));
        writing.abort();
    }

    #[tokio::test]
    async fn what_happened_before_watching_counts() {
        let (_directory, path) = config_map("a");
        let older = Content::from("older");
        let found = time::timeout(Duration::from_secs(1), changed(&path, &older)).await;
        assert_eq!(found.unwrap(), Content::from("a"));
    }
}
