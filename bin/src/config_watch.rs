//! Notices that the configuration file says something else.
//!
//! kube-proxy ends when its file is written to, so that whoever supervises it starts it again with
//! the new content; so do we. It watches the file itself, and so misses what happens to a mounted
//! ConfigMap (a symbolic link beside the file is exchanged), a file that is replaced by another,
//! and one that is deleted and made again. We watch the directories, and compare the content:
//! nothing happens because of a write that changes nothing, or while the file is not there.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use tokio::time;

use crate::config::settings::ConfigFile;

/// So long nothing must happen before the file is looked at: writing may take a moment.
const SETTLE: Duration = Duration::from_millis(200);
/// The file is looked at that often in any case: some file systems do not tell.
const LOOK: Duration = Duration::from_secs(60);
/// Symbolic links that are followed at most, as by the kernel.
const MOST_LINKS: usize = 40;

/// Ends when the file holds something else than when it was read.
pub async fn changed(file: &ConfigFile) -> io::Result<()> {
    loop {
        // A new watch each time: links may lead elsewhere now.
        let mut events = watch(&file.path)?;
        if differs(file) {
            return Ok(());
        }
        let _ = time::timeout(LOOK, events.next()).await;
        while let Ok(Some(_)) = time::timeout(SETTLE, events.next()).await {}
    }
}

/// Never ends if there is no file.
pub async fn changed_if_any(file: Option<&ConfigFile>) -> io::Result<()> {
    match file {
        Some(file) => changed(file).await,
        None => std::future::pending().await,
    }
}

fn differs(file: &ConfigFile) -> bool {
    match fs::read(&file.path) {
        Ok(bytes) if bytes.is_empty() => false,
        Ok(bytes) => bytes != file.text.as_bytes(),
        Err(error) => {
            tracing::debug!(path = %file.path.display(), err = %error, "Cannot read the configuration");
            false
        }
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

    /// A directory as the kubelet mounts a ConfigMap.
    fn config_map(text: &str) -> (TempDir, ConfigFile) {
        let directory = TempDir::new().unwrap();
        let root = directory.path();
        revision(root, "..1", text);
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/config.conf", root.join("config.conf")).unwrap();
        let file = ConfigFile { path: root.join("config.conf"), text: text.into() };
        (directory, file)
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

    /// Whether a change is noticed after `act`, within a time that is long for either answer.
    async fn noticed(file: &ConfigFile, act: impl FnOnce()) -> bool {
        let waiting = changed(file);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        act();
        match time::timeout(Duration::from_secs(2), waiting).await {
            Ok(result) => result.is_ok(),
            Err(_) => false,
        }
    }

    #[tokio::test]
    async fn a_config_map_that_changes_is_noticed() {
        let (directory, file) = config_map("a");
        revision(directory.path(), "..2", "b");
        assert!(noticed(&file, || exchange(directory.path(), "..2")).await);
    }

    #[tokio::test]
    async fn a_config_map_that_says_the_same_is_not() {
        let (directory, file) = config_map("a");
        revision(directory.path(), "..2", "a");
        assert!(!noticed(&file, || exchange(directory.path(), "..2")).await);
    }

    #[tokio::test]
    async fn after_an_exchange_the_new_revision_is_watched() {
        let (directory, file) = config_map("a");
        revision(directory.path(), "..2", "a");
        let root = directory.path();
        let waiting = changed(&file);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        exchange(root, "..2");
        assert!(time::timeout(Duration::from_millis(800), &mut waiting).await.is_err());
        fs::write(root.join("..2/config.conf"), "b").unwrap();
        time::timeout(Duration::from_secs(2), waiting).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn plain_files_are_noticed_too() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("config.conf");
        fs::write(&path, "a").unwrap();
        let file = ConfigFile { path: path.clone(), text: "a".into() };
        assert!(!noticed(&file, || fs::write(&path, "a").unwrap()).await, "the same again");
        assert!(!noticed(&file, || fs::remove_file(&path).unwrap()).await, "gone for a moment");
        fs::write(&path, "a").unwrap();
        let other = directory.path().join("other");
        fs::write(&other, "b").unwrap();
        assert!(noticed(&file, || fs::rename(&other, &path).unwrap()).await, "replaced");
    }

    #[tokio::test]
    async fn what_happened_before_watching_counts() {
        let (_directory, file) = config_map("a");
        let older = ConfigFile { text: "older".into(), ..file };
        time::timeout(Duration::from_secs(1), changed(&older)).await.unwrap().unwrap();
    }
}
