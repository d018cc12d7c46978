//! Asking the running proxy over its socket.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::runtime;

use super::{
    server::Request,
    snapshot::{self, Snapshot, SnapshotError},
    sources::WAIT,
};
use crate::{Failure, printable::json};

/// The longest wait for a part of an answer: longer than the server waits for the engine.
const PATIENCE: Duration = WAIT.saturating_mul(2);

/// Why the proxy does not answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "cannot reach a running proxy at {0}; run this as its user, name its --local-socket, or use \
         --manifests DIR or --from FILE"
    )]
    Connect(PathBuf, #[source] io::Error),
    #[error("the connection to the proxy failed")]
    Io(#[from] io::Error),
    #[error("the answer of the proxy cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("the proxy does not answer: {0}")]
    Refused(String),
    /// The snapshot cannot be read, or ends too early.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// The answer to a question.
#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    status: u8,
    #[serde(default)]
    text: String,
    #[serde(default)]
    answer: Value,
}

/// Returns the exit status and what is to be printed.
pub fn ask(path: &Path, request: &Request, is_json: bool) -> Result<(u8, String), ClientError> {
    match answer(path, request)? {
        Answer { status, answer, .. } if is_json => {
            Ok((status, serde_json::to_string_pretty(&answer)? + "\n"))
        }
        Answer { status, text, .. } => Ok((status, text)),
    }
}

/// Returns the answer as a value.
pub fn value<T: DeserializeOwned>(path: &Path, request: &Request) -> Result<T, ClientError> {
    Ok(serde_json::from_value(answer(path, request)?.answer)?)
}

fn answer(path: &Path, request: &Request) -> Result<Answer, ClientError> {
    let mut stream = send(path, request)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let answer: Answer = serde_json::from_slice(&text)?;
    match answer {
        Answer { error: Some(error), .. } => Err(ClientError::Refused(error)),
        answer => Ok(answer),
    }
}

/// Copies a snapshot to `output`.
pub fn snapshot(path: &Path, output: &mut dyn Write) -> Result<(), Failure> {
    let mut lines = BufReader::new(send(path, &Request::Snapshot)?);
    let (mut line, mut is_whole) = (String::new(), false);
    while lines.read_line(&mut line).map_err(ClientError::Io)? > 0 {
        output.write_all(json(&line).as_bytes())?;
        is_whole = line.starts_with("{\"end\"") && line.ends_with('\n');
        line.clear();
    }
    output.flush()?;
    if is_whole { Ok(()) } else { Err(ClientError::from(SnapshotError::Incomplete).into()) }
}

/// Returns the node and all Services.
pub fn services(path: &Path) -> Result<Snapshot, ClientError> {
    Ok(snapshot::read(BufReader::new(send(path, &Request::Services)?))?)
}

/// Returns the command line of the proxy, if the proxy is the same user's, whose words can be
/// trusted, and sees the same files.
pub fn command_line(path: &Path) -> io::Result<Vec<OsString>> {
    let stream = UnixStream::connect(path)?;
    stream.set_nonblocking(true)?;
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    // A process of another PID namespace has no number here.
    let peer = tokio::net::UnixStream::from_std(stream)?.peer_cred()?;
    let proxy = peer.pid().unwrap_or(0);
    let is_same = |name: &str| {
        let own = fs::read_link(format!("/proc/self/{name}"))?;
        io::Result::Ok(fs::read_link(format!("/proc/{proxy}/{name}"))? == own)
    };
    let is_own = peer.uid() == rustix::process::geteuid().as_raw();
    if !(is_own && is_same("ns/mnt")? && is_same("cwd")?) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let line = fs::read(format!("/proc/{proxy}/cmdline"))?;
    let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
    Ok(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

fn send(path: &Path, request: &Request) -> Result<UnixStream, ClientError> {
    let connected = UnixStream::connect(path);
    let mut stream = connected.map_err(|error| ClientError::Connect(path.to_owned(), error))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = serde_json::to_string(request)? + "\n";
    stream.write_all(line.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    Ok(stream)
}
