//! The watch of the configuration file, which waits until the content changes.
//!
//! kube-proxy watches the file itself, and so misses changes of a mounted ConfigMap (a symbolic
//! link beside the file is exchanged), a file that is replaced, and a file that is deleted and
//! created again. Here, the file is read twice a second, which no kind of link or file system can
//! hide a change from, and the content is compared: a write without a change, and a missing or
//! empty file, are ignored, and so is what is no file: to read a pipe could take for ever.

use std::{fs, io, path::Path, time::Duration};

use tokio::time;

/// The period between reads of the file. Content counts once it has been read twice, since writing
/// may take a moment.
const PERIOD: Duration = Duration::from_millis(500);

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
/// empty file is ignored until it has content.
pub async fn changed(path: &Path, known: &Content) -> Content {
    let mut last = None;
    loop {
        match read(path).filter(|content| content != known) {
            Some(content) if last.as_ref() == Some(&content) => return content,
            content => last = content,
        }
        time::sleep(PERIOD).await;
    }
}

/// Whether the file has this content at the moment.
pub fn is(path: &Path, content: &Content) -> bool {
    read(path).as_ref() == Some(content)
}

fn read(path: &Path) -> Option<Content> {
    let is_stream = |metadata: fs::Metadata| !metadata.is_file() && !metadata.is_dir();
    if fs::metadata(path).is_ok_and(is_stream) {
        return None;
    }
    match fs::read(path) {
        Ok(bytes) if bytes.is_empty() => None,
        Ok(bytes) => Some(Content::Bytes(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Content::Unreadable(error.kind())),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    /// Returns the content that is found after `act` if "a" was known, or `None` after a while.
    async fn noticed(path: &Path, act: impl FnOnce()) -> Option<Content> {
        let known = Content::from("a");
        let waiting = changed(path, &known);
        tokio::pin!(waiting);
        assert!(time::timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        act();
        time::timeout(Duration::from_secs(2), waiting).await.ok()
    }

    #[tokio::test(start_paused = true)]
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
        fs::remove_file(&path).unwrap();
        let pipe = noticed(&path, || {
            assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        });
        assert_eq!(pipe.await, None, "a pipe");
    }

    #[tokio::test(start_paused = true)]
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
}
