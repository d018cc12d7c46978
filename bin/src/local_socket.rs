//! The parts that all sockets for local programs share: opening one, and sending lines of JSON.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::OwnedFd,
        unix::{fs::FileTypeExt, net::UnixListener},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, fchmod, flock},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    },
};
use serde::Serialize;
use switchyard_core::track::Problem;
use tokio::{io::AsyncWriteExt, time::timeout};

/// The longest wait for a client that takes nothing of an answer, and for one that takes a part of
/// [`PART`].
const CLIENT: Duration = Duration::from_secs(5);
/// The bytes that a client has to take in [`CLIENT`].
const PART: usize = 1 << 20;
/// The clients that may wait to be accepted.
const QUEUE: i32 = 128;
/// The wait for another process that opens a socket in the same directory, and how often it is
/// looked for: anybody who can read the directory can have it wait.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const MOST_LOOKS: usize = 20;

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
    // Of two processes that begin at once, one finds the socket of the other.
    let _alone = lock(directory(path));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is no socket"));
        }
        Ok(_) if is_answered(path)? => {
            let text = "another process answers there";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        _ => {}
    }
    // The socket appears under its name once clients can connect, in the place of one that a dead
    // process left.
    let unnamed = PathBuf::from(format!("{}.new", path.display()));
    let _ = fs::remove_file(&unnamed);
    let listener = socket()?;
    // Before it has a name: no other program can ever open it, whatever the umask is.
    fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    bind(&listener, &SocketAddrUnix::new(&unnamed)?)?;
    let named = listen(&listener, QUEUE).map_err(Into::into);
    named.and_then(|()| fs::rename(&unnamed, path)).inspect_err(|_| {
        let _ = fs::remove_file(&unnamed);
    })?;
    Ok(Some(listener.into()))
}

/// Returns a socket whose calls do not wait.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Whether a process has the socket, if it may be asked.
fn is_answered(path: &Path) -> io::Result<bool> {
    match connect(socket()?, &SocketAddrUnix::new(path)?) {
        // It has not come to others that wait.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        // It may be a live one of another user.
        Err(error) => Err(error.into()),
    }
}

/// Locks a directory until the value goes; `None` if that takes long.
fn lock(directory: &Path) -> Option<File> {
    let directory = File::open(directory).ok()?;
    for _ in 0..MOST_LOOKS {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK) => thread::sleep(LOOK_AGAIN),
            Err(_) => return None,
        }
    }
    None
}

/// The directory of a path; that of a name alone is the current one.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether the directory of a path exists; that of a name alone is the current one.
pub fn has_directory(path: &Path) -> bool {
    path.parent().is_some() && directory(path).is_dir()
}

/// Sends a line, as [`send_all`] does.
pub async fn send(to: &mut (impl AsyncWriteExt + Unpin), line: &impl Serialize) -> io::Result<()> {
    send_all(to, &json_line(line)?).await
}

/// Returns a line of JSON.
pub fn json_line(of: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(of)?;
    line.push(b'\n');
    Ok(line)
}

/// Sends all bytes. A client that takes nothing for a time has failed, and so has one that takes
/// them too slowly to be waited for.
pub async fn send_all(to: &mut (impl AsyncWriteExt + Unpin), mut rest: &[u8]) -> io::Result<()> {
    let parts = u32::try_from(1 + rest.len() / PART).unwrap_or(u32::MAX);
    let sending = async {
        while !rest.is_empty() {
            let written = timeout(CLIENT, to.write(rest)).await;
            let written = written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[written..];
        }
        Ok(())
    };
    let sent = timeout(CLIENT.saturating_mul(parts), sending).await;
    sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
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
