//! The watch of the configuration file, which waits until the content changes.
//!
//! kube-proxy watches the file itself, and so misses changes of a mounted ConfigMap (a symbolic
//! link beside the file is exchanged), a file that is replaced, and a file that is deleted and
//! created again. Here, the directories are watched, and the content is compared: a write without a
//! change, and a missing or empty file, are ignored.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use switchyard_core::error::ErrorChain;
use tokio::time;

/// How long the directories must be quiet before a change counts, since writing may take a moment.
const SETTLE: Duration = Duration::from_millis(200);
/// The longest wait for quiet directories, since other files in them may change all the time.
const LONGEST: Duration = Duration::from_secs(2);
/// The period between reads of the file without any event, since some file systems send no events.
const LOOK: Duration = Duration::from_secs(60);
/// The largest number of symbolic links that are followed, the kernel's limit.
const MOST_LINKS: usize = 40;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The file has these bytes.
    Bytes(Vec<u8>),
    /// The file cannot be read, with this kind of error.
    Unreadable(io::ErrorKind),
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_owned())
    }
}

/// Waits until the content of the file differs from `known`, and returns the content. A missing or
/// empty file is ignored until it has content. If the directories cannot be watched, the file is
/// read periodically.
pub async fn changed(path: &Path, known: &Content) -> Content {
    let mut is_blind = false;
    loop {
        // Links may have other targets now, so the watch is opened anew.
        let mut events = match watch(path) {
            Ok(events) => Some(events),
            Err(error) => {
                if !is_blind {
                    let err = ErrorChain(&error);
                    tracing::warn!(%err, "Cannot watch the configuration file; polling it");
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

/// Whether an event arrives within that time.
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
            // The directory was removed just now, which the watch of its parent reports.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    inotify.into_event_stream([0; 4096])
}

/// Returns the directories of the file and of every symbolic link on the path to it.
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

    /// Returns a directory with the layout of a mounted ConfigMap, and the path of the file in it.
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

    /// Changes the target of `..data` atomically.
    fn exchange(root: &Path, name: &str) {
        symlink(name, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    /// Returns the content that is found after `act` if "a" was known, or `None` after two seconds.
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
