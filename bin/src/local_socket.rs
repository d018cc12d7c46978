//! The parts that all sockets for local programs share: opening one, and sending lines of JSON.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use serde::Serialize;
use switchyard_core::track::Problem;
use tokio::{io::AsyncWriteExt, time::timeout};

/// The longest wait for a client that takes nothing of an answer.
const CLIENT: Duration = Duration::from_secs(5);

/// Opens the socket, for the program's user alone. Returns `None` if the path is empty, or its
/// directory does not exist.
///
/// # Errors
/// If another process answers there, or the path belongs to something else than a socket.
pub fn open(path: impl AsRef<Path>) -> io::Result<Option<UnixListener>> {
    let path = path.as_ref();
    if !has_directory(path) {
        return Ok(None);
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => {
                let text = "another process answers there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            // It may be a live one of another user.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        },
        Err(_) => {}
    }
    // The socket appears under its name with its final mode, in the place of one that a dead
    // process left.
    let unnamed = PathBuf::from(format!("{}.{}", path.display(), process::id()));
    let _ = fs::remove_file(&unnamed);
    let listener = UnixListener::bind(&unnamed)?;
    fs::set_permissions(&unnamed, fs::Permissions::from_mode(0o600))?;
    fs::rename(&unnamed, path)?;
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Whether the directory of a path exists; that of a name alone is the current one.
pub fn has_directory(path: &Path) -> bool {
    path.parent().is_some_and(|it| it.as_os_str().is_empty() || it.is_dir())
}

/// Sends a line, as [`send_all`] does.
pub async fn send(to: &mut (impl AsyncWriteExt + Unpin), line: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    send_all(to, &line).await
}

/// Sends all bytes. A client that takes nothing for a time has failed.
pub async fn send_all(to: &mut (impl AsyncWriteExt + Unpin), mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let written = timeout(CLIENT, to.write(rest)).await;
        let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = &rest[written..];
    }
    Ok(())
}

/// A problem of an object, as a line has it.
#[derive(Debug, Serialize)]
pub struct ProblemLine<'a> {
    object: String,
    field: &'a str,
    reason: &'static str,
    message: &'a str,
}

impl<'a> From<&'a Problem> for ProblemLine<'a> {
    fn from(problem: &'a Problem) -> Self {
        Self {
            object: problem.object.to_string(),
            field: &problem.field,
            reason: problem.reason.as_str(),
            message: &problem.message,
        }
    }
}
