//! The token file of a service account, which is replaced before the token in it expires.

use std::{
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::header::HeaderValue;
use tokio::time::Instant;

/// How long a token is used before the file is read again, as in client-go. Measured by a clock that
/// setting the time does not change.
const READ_AGAIN: Duration = Duration::from_secs(50);

/// A token file and the token that was last read from it.
#[derive(Debug)]
pub(super) struct TokenFile {
    path: PathBuf,
    token: Mutex<Token>,
}

#[derive(Debug)]
struct Token {
    header: HeaderValue,
    read: Instant,
    /// Whether the server rejected the token.
    is_rejected: bool,
}

impl TokenFile {
    /// Reads the file.
    pub(super) fn open(path: PathBuf) -> Result<Self, (PathBuf, io::Error)> {
        match read(&path) {
            Ok(header) => {
                let token = Token { header, read: Instant::now(), is_rejected: false };
                Ok(Self { path, token: Mutex::new(token) })
            }
            Err(error) => Err((path, error)),
        }
    }

    /// Returns the `Authorization` header. If the file can no longer be read, the last token stays.
    pub(super) fn header(&self) -> HeaderValue {
        let mut token = self.lock();
        if token.is_rejected || token.read.elapsed() > READ_AGAIN {
            token.is_rejected = false;
            token.read = Instant::now();
            if let Ok(header) = read(&self.path) {
                token.header = header;
            }
        }
        token.header.clone()
    }

    /// Has the file read again before the next request.
    pub(super) fn reject(&self) {
        self.lock().is_rejected = true;
    }

    fn lock(&self) -> MutexGuard<'_, Token> {
        // Each change is a single assignment.
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a token, without the line break that may follow it.
fn read(path: &PathBuf) -> io::Result<HeaderValue> {
    let invalid = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message.to_owned());
    let text = fs::read_to_string(path)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(invalid("the file holds no token"));
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| invalid("the token holds characters that no header may have"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_file_is_read_again_after_a_while_and_after_a_rejection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(path.clone()).unwrap();
        assert_eq!(file.header(), "Bearer one");
        fs::write(&path, "two").unwrap();
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(file.header(), "Bearer one");
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(file.header(), "Bearer two");
        fs::write(&path, "  three\r\n").unwrap();
        file.reject();
        assert_eq!(file.header(), "Bearer three");
        fs::remove_file(&path).unwrap();
        file.reject();
        assert_eq!(file.header(), "Bearer three", "the last token stays");
        assert!(TokenFile::open(path.clone()).is_err());
        fs::write(&path, "\n").unwrap();
        assert!(TokenFile::open(path).is_err());
    }
}
